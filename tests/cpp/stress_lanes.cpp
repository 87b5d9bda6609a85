// A main ring and two lanes whose records are committed out of order, through consumers that are killed
// (SIGKILL) at random moments and started again, each in a separate process. A ledger in shared memory has
// one word per ticket, with the record that was read under the ticket. At the end each record of each lane
// must be in the ledger exactly once, and in the order of its lane. (ThreadSanitizer observes only one
// process; for it, test_lane_order drops consumers instead.)
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "lanes.hpp"
#include "ring/consumer/consumer.hpp"

extern char** environ;

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kRings = 3;
constexpr std::uint64_t kEach = kSanitized ? 5'000 : 200'000;
constexpr std::uint64_t kTotal = kRings * kEach;
constexpr int kFirstFd = 100;  // descriptors of the rings in the consumer's process; then the ledger

/// Shared with the consumers; all-zero to begin with. Relaxed throughout: processes that end order the rest.
struct Ledger {
  std::atomic<std::uint64_t> release_begun;
  std::atomic<std::uint64_t> release_done;
  std::atomic<std::uint64_t> errors;
  std::atomic<std::uint64_t> reread;
  std::atomic<std::uint64_t> read_under[kTotal];  // by ticket: lane << 40 | number + 1
};

Ledger& map_ledger(int fd) {
  void* const at = ::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) std::abort();
  return *static_cast<Ledger*>(at);
}

void complain(Ledger& ledger, const char* what, std::uint64_t ticket) {
  if (ledger.errors.fetch_add(1) < 10)
    std::fprintf(stderr, "ticket %llu: %s\n", static_cast<unsigned long long>(ticket), what);
}

// ---- the consumer's process

void read_record(const RecordView& record, Ledger& ledger) {
  BatchHeader header{};
  if (record.torn || record.bytes < sizeof(header)) return complain(ledger, "torn", record.ticket);
  std::memcpy(&header, record.data, sizeof(header));
  for (std::uint64_t i = 0; i < header.payload_bytes; ++i) {
    if (record.data[header.payload_offset + i] != static_cast<std::byte>(header.step & 0xff))
      return complain(ledger, "wrong bytes", record.ticket);
  }
  if (record.ticket >= kTotal) return complain(ledger, "beyond the last ticket", record.ticket);
  const std::uint64_t word =
      (std::uint64_t{record.lane} << 40) | (static_cast<std::uint64_t>(header.step) + 1);
  const std::uint64_t before = ledger.read_under[record.ticket].exchange(word);
  if (before != 0 && before != word) complain(ledger, "another record than before the kill", record.ticket);
  if (before == word) ledger.reread.fetch_add(1);
}

int consume() {
  std::vector<std::shared_ptr<RingMemory>> rings;
  for (int i = 0; i < static_cast<int>(kRings); ++i) rings.push_back(RingMemory::attach(kFirstFd + i));
  Ledger& ledger = map_ledger(kFirstFd + static_cast<int>(kRings));
  Consumer consumer(std::move(rings));
  Mark begin = consumer.mark();
  if (begin.ticket < ledger.release_done || begin.ticket > ledger.release_begun)
    complain(ledger, "begins at the wrong place", begin.ticket);
  for (;;) {
    const bool last_look = consumer.closing();
    const std::optional<RecordView> record = consumer.next(false);
    if (record) read_record(*record, ledger);
    const std::uint64_t held = consumer.mark().ticket - begin.ticket;
    if (held > 0 && (!record || held >= 50)) {
      ledger.release_begun = consumer.mark().ticket;
      consumer.release(begin, consumer.mark());
      ledger.release_done = consumer.mark().ticket;
      begin = consumer.mark();
    }
    if (!record && last_look && consumer.pending_records() == 0) return 0;
    if (!record) std::this_thread::yield();
  }
}

// ---- the trainer's process

/// Up to four records are in flight at once, and end in any order.
void produce(Ring& lane, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::deque<DeviceRecord> open;
  for (std::uint64_t n = 0; n < kEach || !open.empty();) {
    if (n < kEach && open.size() < 4) {
      const DeviceRecord record(lane, 64 * (random() % 8), static_cast<unsigned>(n), n + 1);
      if (record) {
        open.push_back(record);
        ++n;
      } else {
        std::this_thread::yield();
      }
    }
    if (open.empty() || random() % 2 == 0) continue;
    const auto which = static_cast<std::ptrdiff_t>(random() % open.size());
    open[static_cast<std::size_t>(which)].finish();
    open.erase(open.begin() + which);
  }
}

pid_t start_consumer(const Ring& ring, int ledger_fd) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // The copies are inherited; the originals are close-on-exec.
  int copy = kFirstFd;
  for (const int fd : ring.fds()) ::posix_spawn_file_actions_adddup2(&actions, fd, copy++);
  ::posix_spawn_file_actions_adddup2(&actions, ledger_fd, copy);
  char program[] = "/proc/self/exe";
  char role[] = "consume";
  char* arguments[] = {program, role, nullptr};
  pid_t pid = -1;
  if (::posix_spawn(&pid, program, &actions, nullptr, arguments, environ) != 0) std::abort();
  ::posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int judge(const Ledger& ledger) {
  std::array<std::uint64_t, kRings> next{};
  std::uint64_t wrong = ledger.errors;
  for (const std::atomic<std::uint64_t>& read : ledger.read_under) {
    const std::uint64_t word = read;
    const std::uint64_t lane = word >> 40;
    if (word == 0 || lane >= kRings || (word & ((std::uint64_t{1} << 40) - 1)) != ++next[lane]) ++wrong;
  }
  for (const std::uint64_t count : next) wrong += count == kEach ? 0 : 1;
  return wrong == 0 ? 0 : 1;
}

int run() {
  Ring ring(laned(kRings - 1, 1024, 1 << 20));
  take_all(ring);
  const int ledger_fd = ::memfd_create("ledger", MFD_CLOEXEC);
  if (ledger_fd < 0 || ::ftruncate(ledger_fd, sizeof(Ledger)) != 0) return 1;
  Ledger& ledger = map_ledger(ledger_fd);
  pid_t consumer = start_consumer(ring, ledger_fd);
  std::atomic<std::uint64_t> running{kRings};
  std::vector<std::thread> producers;
  for (std::uint64_t lane = 0; lane < kRings; ++lane) {
    producers.emplace_back([&ring, &running, lane] {
      produce(lane == 0 ? ring : *ring.lanes()[lane - 1], lane);
      running.fetch_sub(1);
    });
  }
  std::mt19937_64 random{20261128};
  unsigned kills = 0;
  while (running > 0 && ledger.errors == 0) {
    // Usually after the consumer has released records, so that the test also ends on slow machines.
    const std::uint64_t before = ledger.release_done;
    const bool at_any_time = random() % 8 == 0;
    while (!at_any_time && running > 0 && ledger.release_done == before && ledger.errors == 0)
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    ::kill(consumer, SIGKILL);
    (void)wait_for(consumer);
    ++kills;
    consumer = start_consumer(ring, ledger_fd);
  }
  if (ledger.errors != 0) std::_Exit(1);  // the producers may wait forever
  for (std::thread& producer : producers) producer.join();
  ring.set_closing();
  int failed = wait_for(consumer);
  failed |= judge(ledger);
  std::printf("%llu records, %u kills, %llu read again, %s\n", static_cast<unsigned long long>(kTotal), kills,
              static_cast<unsigned long long>(ledger.reread.load()),
              failed == 0 ? "each delivered once" : "WRONG");
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "consume") return consume();
  if (kThreadSanitized) return 0;
  return run();
}
