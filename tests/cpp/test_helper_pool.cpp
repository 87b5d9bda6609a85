// The helpers of a capture: every unit runs once, one job at a time, without leaks; results have the bits of
// one thread.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/helper_pool.hpp"
#include "captured.hpp"
#include "check.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

std::shared_ptr<const ForkGuard> guard() { return std::make_shared<const ForkGuard>(); }

/// Number of runs of each unit.
struct Marks {
  explicit Marks(std::uint32_t count) : counts(count) {}
  static void mark(void* context, std::uint32_t index) noexcept {
    ++static_cast<Marks*>(context)->counts[index];  // plain: a unit belongs to one thread
  }
  bool all_are(int wanted) const {
    for (const int count : counts) {
      if (count != wanted) return false;
    }
    return true;
  }
  std::vector<int> counts;
};

/// The first unit waits until the second unit has begun in another thread; otherwise its wait times out.
struct Meeting {
  static void meet(void* context, std::uint32_t index) noexcept {
    auto& meeting = *static_cast<Meeting*>(context);
    if (index == 1) {
      meeting.second_began.store(true, std::memory_order_relaxed);
      return;
    }
    for (int i = 0; i < 5000 && !meeting.second_began.load(std::memory_order_relaxed); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    meeting.met = meeting.second_began.load(std::memory_order_relaxed);
  }
  std::atomic<bool> second_began{false};  // relaxed: orders no other access
  bool met = false;                       // run() publishes it
};

constexpr std::uint64_t kRingBytes = std::uint64_t{64} << 20;

RingConfig with_threads(int threads) {
  RingConfig result = config(kRingBytes, 64);
  result.threads = threads;
  return result;
}

std::vector<std::byte> record_of(const Tensors& tensors, int threads) {
  Ring ring(with_threads(threads));
  Consumer consumer(ring.memory());
  REQUIRE(tensors.capture_into(ring).not_kept == 0);
  std::vector<std::byte> bytes;
  while (const std::optional<RecordView> record = consumer.next(false)) {
    auto* const header = reinterpret_cast<const BatchHeader*>(record->data);
    BatchHeader timeless = *header;
    timeless.time_ns = 0;
    const auto* const head = reinterpret_cast<const std::byte*>(&timeless);
    bytes.insert(bytes.end(), head, head + sizeof(timeless));
    bytes.insert(bytes.end(), record->data + sizeof(timeless), record->data + record->bytes);
  }
  return bytes;
}

}  // namespace

int main() {
  it("every unit of every job is run once", [] {
    HelperPool pool(3, guard());
    for (std::uint32_t count : {0U, 1U, 2U, 3U, 100U}) {
      Marks marks(count);
      for (int job = 1; job <= 200; ++job) {
        pool.run(Marks::mark, &marks, count);
        REQUIRE(marks.all_are(job));
      }
    }
  });
  it("a helper takes part", [] {
    HelperPool pool(1, guard());
    Meeting meeting;
    pool.run(Meeting::meet, &meeting, 2);
    REQUIRE(meeting.met);
  });
  it("callers at the same time get all their units run", [] {
    HelperPool pool(2, guard());
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&pool] {
        Marks marks(7);
        for (int job = 0; job < 500; ++job) pool.run(Marks::mark, &marks, 7);
        REQUIRE(marks.all_are(500));
      });
    }
    for (std::thread& caller : callers) caller.join();
  });
  it("a pool that was never used ends", [] { HelperPool pool(2, guard()); });
  for (const std::uint8_t flags : {std::uint8_t{kWantPayload}, std::uint8_t{kWantStats}, kBoth}) {
    it("records have the bytes of one thread", [flags] {
      const Tensors small = Tensors::contiguous(700, 1000, flags);
      const Tensors large = Tensors::contiguous(2, (1 << 20) * 5 / 4, flags);
      const Tensors parts = Tensors::contiguous(1, 3 << 20, flags);
      const Tensors strided(1, {1500, 1000}, {1, 1500}, 1'500'000, flags);
      for (const Tensors* tensors : {&small, &large, &parts, &strided}) {
        const std::vector<std::byte> alone = record_of(*tensors, 1);
        REQUIRE(!alone.empty() && alone == record_of(*tensors, 3));
      }
    });
  }
  it("a warm pool serves many captures and close() ends it", [] {
    Ring ring(with_threads(2));
    Consumer consumer(ring.memory());
    const Tensors tensors = Tensors::contiguous(8, 100'000);
    for (int call = 0; call < 50; ++call) {
      REQUIRE(tensors.capture_into(ring).kept == 8);
      drain(consumer);
    }
    ring.close();
    REQUIRE(ring.helpers() == nullptr);
    REQUIRE(tensors.capture_into(ring).kept == 0);
  });
  if (!kThreadSanitized) {  // ThreadSanitizer does not support forks of a process with threads
    it("a forked child leaves the helpers to its parent", [] {
      auto ring = std::make_unique<Ring>(with_threads(2));
      Consumer consumer(ring->memory());
      const Tensors tensors = Tensors::contiguous(8, 100'000);
      REQUIRE(tensors.capture_into(*ring).kept == 8);
      const pid_t child = ::fork();
      if (child == 0) {
        const bool nothing = tensors.capture_into(*ring).kept == 0;
        ring.reset();
        ::_exit(nothing ? 0 : 1);
      }
      int status = -1;
      REQUIRE(::waitpid(child, &status, 0) == child && status == 0);
      drain(consumer);
      REQUIRE(tensors.capture_into(*ring).kept == 8);
    });
  }
  return result();
}
