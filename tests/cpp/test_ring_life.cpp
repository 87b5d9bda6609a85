// The ring's life (fork, close, attach, prefault) and its tables: names, totals, texts.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "check.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/ring.hpp"
#include "rings.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

/// Runs `body` in a forked child. Returns its exit status, or -1.
template <typename Body>
int in_child(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// ---- life

void life() {
  it("in a forked child every entry point does nothing and the parent's ring stays as it is", [] {
    auto ring = std::make_unique<Ring>(config());
    auto consumer = std::make_unique<Consumer>(ring->memory());
    // The child also destroys the ring, and ThreadSanitizer does not detect that the parent's thread is not
    // in the child.
    if (!kSanitized) ring->start_prefault();
    REQUIRE(put(*ring, 64, 1));
    const Reservation open = ring->try_reserve(RecordKind::kBatch, 64, 64);
    const int status = in_child([&] {
      bool ok = !ring->usable() && !put(*ring, 64, 2) && !ring->wait_for_room(64) &&
                !ring->intern("x", 1, "") && !ring->put_document("key", "text") && !ring->stop_request() &&
                ring->memory() == nullptr;
      ring->commit(open);
      ring->abort(open);
      ring->count_drop(DropReason::kSparse, 1, 1);
      ring->count_capture(1, 1, 1);
      ring->set_closing();
      ring->start_prefault();
      ok = ok && ring->counters().captures == 0 && ring->progress().epoch == 0;
      ok = ok && !consumer->next(false) && consumer->pending_records() == 0 && !consumer->closing();
      consumer->report(1, 1, 1, 1, nullptr);
      ring->close();
      consumer.reset();
      ring.reset();
      // A new ring of the child works.
      Ring own(config());
      return ok && own.usable() && put(own, 64, 3) ? 0 : 1;
    });
    REQUIRE(status == 0);
    REQUIRE(ring->usable() &&
            ring->counters().drops[static_cast<std::size_t>(DropReason::kSparse)].tensors == 0);
    ring->commit(open);
    REQUIRE(consumer->next(false) && consumer->next(false) && !consumer->closing());
  });
  it("close waits for a record in flight, and later calls do nothing", [] {
    Ring ring(config());
    const Reservation open = ring.try_reserve(RecordKind::kBatch, 64, 64);
    std::thread closer([&] { ring.close(); });
    while (ring.usable()) std::this_thread::yield();
    std::memset(open.data, 1, open.bytes);  // still mapped
    ring.count_drop(DropReason::kSparse, 1, 1);
    ring.commit(open);
    closer.join();
    REQUIRE(!put(ring, 64, 1) && !ring.intern("x", 1, "") && ring.fd() == -1);
    ring.close();
    ring.count_capture(1, 1, 1);
    REQUIRE(ring.progress().epoch == 0);
  });
  it("totals can still be read after close", [] {
    Ring ring(config());
    ring.count_capture(3, 100, 7);
    ring.count_drop(DropReason::kSparse, 2, 50);
    ring.close();
    const Counters counters = ring.counters();
    REQUIRE(counters.captures == 1 && counters.tensors == 3 && counters.payload_bytes == 100 &&
            counters.capture_ns == 7);
    REQUIRE(counters.drops[static_cast<std::size_t>(DropReason::kSparse)].bytes == 50);
  });
  it("prefault changes no byte and can be cut short by close", [] {
    Ring ring(config(16 << 20, 64));
    REQUIRE(put(ring, 5000, 7));
    ring.start_prefault();
    ring.start_prefault();
    const std::shared_ptr<RingMemory> memory = ring.memory();
    while (!memory->prefault_done()) std::this_thread::yield();
    const std::optional<RecordView> record = Consumer(memory).next(false);
    REQUIRE(record && holds(*record, 5000, 7));
    Ring other(config(64 << 20, 64));
    other.start_prefault();
    other.close();
  });
  it("a descriptor that is no ring is refused with a reason", [] {
    const auto refusal = [](int fd) {
      return message_of<std::invalid_argument>([&] { (void)RingMemory::attach(fd); });
    };
    const int empty = ::memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(refusal(empty).find("control page") != std::string::npos);
    REQUIRE(::ftruncate(empty, 1 << 20) == 0);
    REQUIRE(refusal(empty).find("sealed") != std::string::npos);
    REQUIRE(::fcntl(empty, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    REQUIRE(refusal(empty).find("magic") != std::string::npos);
    ::close(empty);
    REQUIRE(!message_of<std::system_error>([] { (void)RingMemory::attach(-1); }).empty());
    Ring ring(config());
    ControlPage& control = ring.memory()->control();
    ++control.layout;
    REQUIRE(refusal(ring.fd()).find("another build") != std::string::npos);
    --control.layout;
    control.data_bytes *= 2;
    REQUIRE(refusal(ring.fd()).find("do not match") != std::string::npos);
    control.data_bytes /= 2;
    REQUIRE(refusal(ring.fd()).empty());
  });
  it("the memory can be neither shrunk nor grown", [] {
    Ring ring(config());
    REQUIRE(::ftruncate(ring.fd(), 0) != 0);
    REQUIRE(::ftruncate(ring.fd(), 1 << 24) != 0);
  });
}

// ---- names, totals, texts

void tables() {
  it("a name has one id, whoever asks and how often", [] {
    Ring ring(config());
    std::vector<std::thread> threads;
    std::array<std::array<std::uint32_t, 20>, 4> ids{};
    for (auto& mine : ids) {
      threads.emplace_back([&ring, &mine] {
        for (unsigned i = 0; i < mine.size(); ++i)
          mine[i] = ring.intern("name" + std::to_string(i), i, "origin").value_or(1000);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& mine : ids) REQUIRE(mine == ids[0]);
    Consumer consumer(ring.memory());
    NameCursor cursor;
    const std::vector<Name> names = consumer.names(cursor);
    REQUIRE(names.size() == 20);
    for (unsigned i = 0; i < 20; ++i) {
      const Name& name = names.at(ids[0][i]);
      REQUIRE(name.name == "name" + std::to_string(i) && name.kind == i && name.origin == "origin");
    }
    REQUIRE(consumer.names(cursor).empty());
    REQUIRE(ring.intern("later", 1, "") == 20U);
    REQUIRE(consumer.names(cursor).size() == 1);
    REQUIRE(ring.intern("later", 2, "") == 21U);           // another kind is another name
    REQUIRE(ring.intern("later", 2, "", "place") == 22U);  // and so is another place
    REQUIRE(ring.intern("later", 2, "", "place") == 22U);
    const std::vector<Name> more = consumer.names(cursor);
    REQUIRE(more.size() == 2 && more[0].shard.empty() && more[1].name == "later" && more[1].shard == "place");
  });
  it("a full table refuses new names and still knows the old ones", [] {
    Ring ring(config());
    std::uint32_t known = 0;
    const std::string padding(100, 'x');
    while (ring.intern(std::to_string(known) + padding, 1, "")) ++known;
    REQUIRE(known > 20 && known < 4096 / 100);
    constexpr std::uint32_t kLoss = 6;
    REQUIRE(ring.intern("loss", kLoss, "") == known);  // a small kind: room is kept for it
    ++known;
    REQUIRE(!ring.intern("weight" + padding, 1, ""));
    REQUIRE(ring.intern("0" + padding, 1, "") == 0U);
    REQUIRE(!ring.intern(std::string(5000, 'y'), 1, ""));
    NameCursor cursor;
    REQUIRE(Consumer(ring.memory()).names(cursor).size() == known);
  });
  it("a corrupt table of names is an error, not a walk through memory", [] {
    Ring ring(config());
    REQUIRE(ring.intern("name", 1, "origin") == 0U);
    const std::uint32_t huge = 0xffffffff;
    std::memcpy(ring.memory()->names(), &huge, sizeof(huge));
    NameCursor cursor;
    Consumer consumer(ring.memory());
    REQUIRE(!message_of<std::runtime_error>([&] { (void)consumer.names(cursor); }).empty());
    ring.memory()->control().names_published.store(~std::uint64_t{0});
    REQUIRE(!message_of<std::runtime_error>([&] { (void)consumer.names(cursor); }).empty());
  });
  it("reports add up over consumers and show the last error", [] {
    Ring ring(config());
    REQUIRE(ring.progress().last_step == -1 && ring.progress().heartbeat_ns == 0);
    const std::string error = "disk full at \xc3\xbc";
    Consumer(ring.memory()).report(1, 10, 100, 7, &error);
    Consumer(ring.memory()).report(2, 20, 200, 5, nullptr);
    const Progress progress = ring.progress();
    REQUIRE(progress.epoch == 2 && progress.records == 3 && progress.bytes == 30 && progress.rows == 300);
    REQUIRE(progress.last_step == 7 && progress.errors == 1 && progress.error == error &&
            progress.heartbeat_ns > 0);
    const std::string long_error = std::string(kErrorTextBytes - 1, 'a') + "\xc3\xbc";
    Consumer(ring.memory()).report(0, 0, 0, 0, &long_error);
    REQUIRE(ring.progress().error == std::string(kErrorTextBytes - 1, 'a'));
    ring.memory()->control().error.version.fetch_or(1);  // a consumer killed while writing
    REQUIRE(!ring.progress().error.empty());
    Consumer(ring.memory()).report(0, 0, 0, 0, &error);
    REQUIRE(ring.progress().error == error);
  });
  it("the first stop request stands", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    REQUIRE(!ring.stop_request());
    REQUIRE(!consumer.request_stop("") && !consumer.request_stop(std::string(kControlTextBytes + 1, 'x')));
    REQUIRE(consumer.request_stop("{\"rule\":\"a\"}") && consumer.request_stop("{\"rule\":\"b\"}"));
    REQUIRE(ring.stop_request() == "{\"rule\":\"a\"}");
  });
  it("each request is returned once, and the next request waits for the previous request", [] {
    Ring ring(config());
    Consumer first(ring.memory());
    REQUIRE(!ring.was_asked() && !ring.take_request());
    REQUIRE(!first.try_post_request("") && !first.try_post_request(std::string(kControlTextBytes + 1, 'x')));
    REQUIRE(first.try_post_request("{\"number\":0}") && !first.try_post_request("{\"number\":1}"));
    REQUIRE(ring.was_asked() && ring.take_request() == "{\"number\":0}");
    REQUIRE(!ring.was_asked() && !ring.take_request());
    Consumer second(ring.memory());
    REQUIRE(second.requests_posted() == 1 && second.try_post_request(std::string(kControlTextBytes, 'y')));
    REQUIRE(ring.take_request() == std::string(kControlTextBytes, 'y') && second.requests_posted() == 2);
    REQUIRE(second.request_stop("stop") && ring.was_asked() && !ring.take_request());
  });
  it("of several threads each request goes to one, whole", [] {
    constexpr int kRequests = 2000;
    Ring ring(config());
    Consumer consumer(ring.memory());
    std::atomic<int> taken{0};
    std::atomic<bool> torn{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        while (taken.load() < kRequests) {
          const std::optional<std::string> text = ring.take_request();
          if (!text) {
            std::this_thread::yield();
            continue;
          }
          if (text->find_first_not_of(text->front()) != std::string::npos) torn.store(true);
          taken.fetch_add(1);
        }
      });
    }
    for (int sent = 0; sent < kRequests;) {
      const std::string text(1 + static_cast<std::size_t>(sent % 100) * 80,
                             static_cast<char>('a' + sent % 26));
      if (consumer.try_post_request(text))
        ++sent;
      else
        std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(!torn.load() && taken.load() == kRequests && !ring.was_asked());
  });
  it("the order of execution starts at 0 with every step", [] {
    Ring ring(config());
    REQUIRE(ring.next_seq(1, 3) == 0 && ring.next_seq(1, 2) == 3 && ring.next_seq(2, 1) == 0 &&
            ring.next_seq(2, 1) == 1);
  });
  it("a step that is resumed goes on counting, with up to 63 steps in between", [] {
    Ring ring(config());
    REQUIRE(ring.next_seq(10, 3) == 0);
    for (std::int64_t step = 11; step < 74; ++step) REQUIRE(ring.next_seq(step, 2) == 0);
    REQUIRE(ring.next_seq(10, 1) == 3 && ring.next_seq(73, 1) == 2);
  });
  it("steps of threads that alternate are numbered without doubles", [] {
    constexpr std::uint32_t kCalls = 2000;
    Ring ring(config());
    std::vector<std::vector<std::uint32_t>> firsts(4);
    std::vector<std::thread> threads;
    for (std::vector<std::uint32_t>& mine : firsts) {
      threads.emplace_back([&] {
        for (std::uint32_t call = 0; call < kCalls; ++call) {
          mine.push_back(ring.next_seq(10, 1));
          (void)ring.next_seq(11 + call % 2, 1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<bool> given(firsts.size() * kCalls);
    for (const std::vector<std::uint32_t>& mine : firsts) {
      for (const std::uint32_t first : mine) {
        REQUIRE(first < given.size() && !given[first]);
        given[first] = true;
      }
    }
  });
}

}  // namespace

int main() {
  life();
  tables();
  return tdcore::testing::result();
}
