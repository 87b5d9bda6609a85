// Ten million records with checksums from four threads, through consumers that are killed (SIGKILL) at random
// moments and started again, each in a separate process.
//
// ThreadSanitizer observes only one process. It cannot detect that one producer's record was published to
// another through the consumer's process, and would report their writes to one slot as a race. For
// ThreadSanitizer, the consumer is a thread that drops its state at a random moment, so that the tool
// observes every synchronization.
//
// A ledger in shared memory has one word per ticket, in which the consumer stores the record that it read
// under the ticket. A record that is read again after a kill must be the same record under the same ticket.
// At the end each record of each producer must be in the ledger exactly once, and in its order. Two more
// words, stored before and after each release, are limits of the head with which a restarted consumer may
// begin.
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
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/crc32c.hpp"
#include "check.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/ring.hpp"

extern char** environ;

namespace {

using namespace tdcore;

constexpr std::uint64_t kProducers = 4;
constexpr std::uint64_t kEach = tdcore::testing::kSanitized ? 50'000 : 2'500'000;
constexpr std::uint64_t kTotal = kProducers * kEach;
constexpr std::uint64_t kReleaseEvery = 50;

struct Header {
  std::uint32_t crc;  // of all following bytes
  std::uint32_t producer;
  std::uint64_t number;
};

/// Shared with the consumers; all-zero to begin with. Relaxed throughout: processes that end order the rest.
struct Ledger {
  std::atomic<std::uint64_t> release_begun;
  std::atomic<std::uint64_t> release_done;
  std::atomic<std::uint64_t> errors;
  std::atomic<std::uint64_t> reread;              // read again after a kill: allowed, and should occur
  std::atomic<std::uint64_t> read_under[kTotal];  // by ticket: producer << 40 | number + 1
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
  Header header{};
  if (record.torn || record.bytes < sizeof(header))
    return complain(ledger, "torn or too short", record.ticket);
  std::memcpy(&header, record.data, sizeof(header));
  const std::size_t skipped = sizeof(header.crc);
  if (crc32c(record.data + skipped, record.bytes - skipped) != header.crc)
    return complain(ledger, "wrong checksum", record.ticket);
  if (record.ticket >= kTotal) return complain(ledger, "beyond the last ticket", record.ticket);
  const std::uint64_t word = (std::uint64_t{header.producer} << 40) | (header.number + 1);
  const std::uint64_t before = ledger.read_under[record.ticket].exchange(word);
  if (before != 0 && before != word) complain(ledger, "another record than before the kill", record.ticket);
  if (before == word) ledger.reread.fetch_add(1);
}

/// Reads and releases records until the ring is closing and empty, or until `killed` is set (relaxed: it
/// orders no other access). Returns an exit status.
int consume(Consumer& consumer, Ledger& ledger, const std::atomic<bool>& killed) {
  Mark begin = consumer.mark();
  if (begin.ticket < ledger.release_done || begin.ticket > ledger.release_begun)
    complain(ledger, "begins at the wrong place", begin.ticket);
  while (!killed.load(std::memory_order_relaxed)) {
    const bool last_look = consumer.closing();
    const std::optional<RecordView> record = consumer.next(false);
    if (record) read_record(*record, ledger);
    if (killed.load(std::memory_order_relaxed)) break;
    const std::uint64_t held = consumer.mark().ticket - begin.ticket;
    if (held > 0 && (!record || held >= kReleaseEvery)) {
      ledger.release_begun = consumer.mark().ticket;
      consumer.release(begin, consumer.mark());
      ledger.release_done = consumer.mark().ticket;
      begin = consumer.mark();
    }
    if (!record && last_look && consumer.pending_records() == 0) return 0;
    if (!record) std::this_thread::yield();
  }
  return 1;
}

int consume_in_a_process(int ring_fd, int ledger_fd) {
  Consumer consumer(RingMemory::attach(ring_fd));
  return consume(consumer, map_ledger(ledger_fd), std::atomic<bool>(false));
}

// ---- the trainer's process

void produce(Ring& ring, std::uint32_t producer) {
  std::uint64_t random = producer + 1;
  for (std::uint64_t number = 0; number < kEach; ++number) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t bytes = sizeof(Header) + (random >> 33) % 112;
    Reservation room;
    while (!(room = ring.try_reserve(RecordKind::kBatch, bytes, kTensorAlignBytes)))
      std::this_thread::yield();
    Header header{0, producer, number};
    std::memset(room.data, static_cast<int>(random >> 56), bytes);
    std::memcpy(room.data, &header, sizeof(header));
    header.crc = crc32c(room.data + sizeof(header.crc), bytes - sizeof(header.crc));
    std::memcpy(room.data, &header.crc, sizeof(header.crc));
    ring.commit(room);
  }
}

/// A consumer in a separate process.
class ConsumerProcess {
 public:
  ConsumerProcess(const Ring& ring, Ledger&, int ledger_fd) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    // The copies are inherited; the originals are close-on-exec.
    ::posix_spawn_file_actions_adddup2(&actions, ring.fd(), 100);
    ::posix_spawn_file_actions_adddup2(&actions, ledger_fd, 101);
    char program[] = "/proc/self/exe";
    char role[] = "consume";
    char* arguments[] = {program, role, nullptr};
    if (::posix_spawn(&pid_, program, &actions, nullptr, arguments, environ) != 0) std::abort();
    ::posix_spawn_file_actions_destroy(&actions);
  }
  void kill() { ::kill(pid_, SIGKILL); }
  int wait() const {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

/// A consumer in a thread, on the mapping of the producers. kill() and wait() from the thread that created
/// it.
class ConsumerThread {
 public:
  ConsumerThread(const Ring& ring, Ledger& ledger, int)
      : thread_([this, memory = ring.memory(), &ledger] {
          Consumer consumer(memory);
          status_ = consume(consumer, ledger, killed_);
        }) {}
  void kill() { killed_.store(true, std::memory_order_relaxed); }
  int wait() {
    thread_.join();
    return status_;
  }

 private:
  std::atomic<bool> killed_{false};  // relaxed; see consume()
  int status_ = -1;                  // the thread's until join()
  std::thread thread_;
};

using ConsumerLife = std::conditional_t<tdcore::testing::kThreadSanitized, ConsumerThread, ConsumerProcess>;

int judge(const Ledger& ledger) {
  std::array<std::uint64_t, kProducers> next{};
  std::uint64_t wrong = ledger.errors;
  for (std::uint64_t ticket = 0; ticket < kTotal; ++ticket) {
    const std::uint64_t word = ledger.read_under[ticket];
    const std::uint64_t producer = word >> 40;
    const std::uint64_t number = (word & ((std::uint64_t{1} << 40) - 1)) - 1;
    if (word == 0 || producer >= kProducers || number != next[producer]++) ++wrong;
  }
  for (const std::uint64_t count : next) wrong += count == kEach ? 0 : 1;
  return wrong == 0 ? 0 : 1;
}

int run() {
  RingConfig config;
  config.data_bytes = std::uint64_t{1} << 20;
  config.first_data_bytes = std::uint64_t{4} << 10;  // it grows while it is used
  config.slots = 4096;
  config.names_bytes = 4096;
  config.policy = FullPolicy::kDrop;
  Ring ring(config);
  const int ledger_fd = ::memfd_create("ledger", MFD_CLOEXEC);
  if (ledger_fd < 0 || ::ftruncate(ledger_fd, sizeof(Ledger)) != 0) return 1;
  Ledger& ledger = map_ledger(ledger_fd);

  auto consumer = std::make_unique<ConsumerLife>(ring, ledger, ledger_fd);
  std::atomic<unsigned> running{kProducers};
  std::vector<std::thread> producers;
  for (std::uint32_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&ring, &running, p] {
      produce(ring, p);
      running.fetch_sub(1);
    });
  }
  std::mt19937_64 random{20260801};
  unsigned kills = 0;
  while (running > 0 && ledger.errors == 0) {
    // Usually after the consumer has released records, so that the test also ends on slow machines; sometimes
    // just after its start.
    const std::uint64_t before = ledger.release_done;
    const bool at_any_time = random() % 8 == 0;
    while (!at_any_time && running > 0 && ledger.release_done == before && ledger.errors == 0)
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    consumer->kill();
    (void)consumer->wait();
    ++kills;
    consumer = std::make_unique<ConsumerLife>(ring, ledger, ledger_fd);
  }
  if (ledger.errors != 0) std::_Exit(1);  // the producers may wait forever
  for (std::thread& producer : producers) producer.join();
  ring.set_closing();
  int failed = consumer->wait();
  failed |= judge(ledger);
  std::printf("%llu records, %u kills, %llu read again, %s\n", static_cast<unsigned long long>(kTotal), kills,
              static_cast<unsigned long long>(ledger.reread.load()),
              failed == 0 ? "each delivered once" : "WRONG");
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "consume") return consume_in_a_process(100, 101);
  return run();
}
