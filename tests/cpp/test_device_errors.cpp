// Capture on a device that fails, is closed, is killed or commits too early. Every lost tensor is counted,
// and no incomplete record is read as complete.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device_rig.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

RingConfig lane_for_all(std::uint64_t slots = 1024) { return config(8 * kMiB, slots, FullPolicy::kDrop); }

/// The three ways of a record: an uploaded table, a table in the launch parameters, and values that the
/// kernel writes into the record.
struct Way {
  const char* name;
  bool inline_tables;
  std::uint64_t direct_bytes;
  std::uint64_t
      works;  // fewer pieces of work than in a capture of statistics plus one of statistics and values
};
constexpr Way kWays[] = {{"an uploaded table", false, 0, 8},
                         {"a table in the parameters", true, 0, 6},
                         {"values written by the kernel", true, 64 * 1024, 4}};

DeviceCaptureConfig memory_of(const Way& way) {
  DeviceCaptureConfig memory = small_memory();
  memory.inline_tables = way.inline_tables;
  memory.direct_bytes = way.direct_bytes;
  return memory;
}

std::uint64_t committed_with_values(const Rig& rig, const Tensor& tensor) {
  std::uint64_t count = 0;
  const DrainedBatches drained = drain(*rig.consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
  for (const IndexRow& row : drained.rows) {
    const bool saved = row.entry.payload_offset != kNoPayload;
    REQUIRE(!saved || payload_bytes_of(*rig.consumer, row) == tensor.bytes);
    REQUIRE(row.entry.has_stats == 0 || row.entry.stats.count == row.entry.elements);
    count += row.entry.status == EntryStatus::kOk ? 1 : 0;
  }
  REQUIRE(drained.torn == 0);
  release(*rig.consumer, drained);
  REQUIRE(rig.consumer->pending_records() == 0);  // no reader waits for a record that will never come
  return count;
}

void failures_of_the_device() {
  for (const bool loses : {true, false}) {
    for (const CommitMode commit_mode : {CommitMode::kStreamWrite, CommitMode::kPoll}) {
      for (const Way& way : kWays) {
        it((std::string("a device that fails keeps or counts every tensor: ") + way.name).c_str(), [&] {
          static const Tensor kTensor(Dtype::kF32, {1000});  // a lost device reads it after this case
          for (std::uint64_t n = 0; n < 4 * way.works; ++n) {
            Rig rig({.seed = n + 1,
                     .delay_us = 20,
                     .best_commit_mode = commit_mode,
                     .fails_after = n,
                     .failure_loses_work = loses},
                    lane_for_all(), memory_of(way));
            for (int i = 0; i < 3; ++i) {
              (void)rig.capture({kTensor.request(kWantStats)});
              (void)rig.capture({kTensor.request(kAll)});
            }
            const bool refused = !rig.captures->report().error.empty();
            rig.captures->close();
            REQUIRE(refused || n >= 3 * way.works);
            REQUIRE(committed_with_values(rig, kTensor) + rig.dropped(DropReason::kDeviceError) == 6);
          }
        });
      }
    }
  }
  it("after a failure rows in the main ring say why there is nothing", [] {
    const Tensor tensor(Dtype::kF32, {10});
    Rig rig({.fails_after = 0});
    (void)rig.capture({tensor.request(kAll, 1)});
    const CaptureResult later =
        rig.capture({tensor.request(kAll, 2), without_value(EntryStatus::kAbsent, DropReason::kNone, 3)});
    REQUIRE(later.kept == 0 && later.not_kept == 1 && rig.dropped(DropReason::kDeviceError) == 2);
    REQUIRE(rig.dropped_bytes(DropReason::kDeviceError) == 80);
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 2 && drained.rows[0].entry.reason == DropReason::kDeviceError &&
            drained.rows[1].entry.status == EntryStatus::kAbsent);
    REQUIRE(rig.captures->report().error.find("simulated failure") != std::string::npos);
    REQUIRE(!rig.captures->mark_step_end(0, {}));  // the lane may still be written by what was lost
  });
  it("a device without memory counts everything and says what it lacks", [] {
    const Tensor tensor(Dtype::kF32, {10});
    Rig rig({.memory_bytes = 4096});
    REQUIRE(rig.capture({tensor.request()}).not_kept == 1 && rig.dropped(DropReason::kDeviceError) == 1);
    REQUIRE(rig.captures->report().error.find("no device memory for the arena (1048576 bytes)") == 0);
  });
  it("no device at all is an error like others", [] {
    Ring main(config());
    DeviceCapture captures(nullptr, nullptr, main, {});
    REQUIRE(!captures.mark_step_end(0, {}));
    const Tensor tensor(Dtype::kF32, {10});
    REQUIRE(captures.capture(std::vector<TensorRequest>{tensor.request()}, {}, 0).not_kept == 1);
    REQUIRE(!captures.report().error.empty() && !captures.busy());
  });
}

void rejections() {
  for (const CommitMode commit_mode : {CommitMode::kStreamWrite, CommitMode::kPoll}) {
    for (const Way& way : kWays) {
      it((std::string("a device that rejects work for a while is used again: ") + way.name).c_str(), [&] {
        const Tensor tensor(Dtype::kF32, {1000});
        std::uint64_t counted = 0;
        for (const std::uint64_t rejects : {1, 2, 7}) {
          for (std::uint64_t n = 0; n < 2 * way.works; ++n) {
            Rig rig({.seed = n + 1,
                     .delay_us = 20,
                     .best_commit_mode = commit_mode,
                     .rejects_from = n,
                     .rejects = rejects},
                    lane_for_all(), memory_of(way));
            std::uint64_t requested = 0;
            const auto capture_both = [&] {
              (void)rig.capture({tensor.request(kWantStats)});
              (void)rig.capture({tensor.request(kAll)});
              requested += 2;
            };
            capture_both();
            (void)rig.captures->mark_step_end(1, {});
            capture_both();
            // Every attempt after a pause removes at least one rejection.
            for (int i = 0; !rig.captures->report().error.empty() && i < 10'000; ++i) {
              std::this_thread::sleep_for(std::chrono::milliseconds{1});
              capture_both();
            }
            const std::uint64_t dropped = rig.dropped(DropReason::kDeviceError);
            REQUIRE(rig.capture({tensor.request(kAll)}).kept == 1);
            ++requested;
            rig.captures->close();
            REQUIRE(rig.dropped(DropReason::kDeviceError) >= dropped);
            REQUIRE(committed_with_values(rig, tensor) + rig.dropped(DropReason::kDeviceError) == requested);
            counted += rig.dropped(DropReason::kDeviceError);
          }
        }
        REQUIRE(counted > 0);
      });
    }
  }
  it("a paused device says that captures are tried again", [] {
    const Tensor tensor(Dtype::kF32, {10});
    DeviceCaptureConfig memory = small_memory();
    memory.first_retry = std::chrono::minutes{10};
    memory.inline_tables = false;
    Rig rig({.rejects_from = 0}, lane_for_all(), memory);
    REQUIRE(rig.capture({tensor.request()}).not_kept == 1);
    REQUIRE(
        rig.captures->report().error ==
        "the device rejected work: simulated rejection; captures are tried again, with pauses of up to 60 s");
    REQUIRE(!rig.captures->in_use() && rig.capture({tensor.request()}).not_kept == 1);
    REQUIRE(rig.dropped(DropReason::kDeviceError) == 2);
  });
}

void closing() {
  it("close waits for what is in flight", [] {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const Tensor tensor(Dtype::kF32, {5000});
      Rig rig({.seed = seed, .delay_us = 2000}, lane_for_all());
      for (int i = 0; i < 5; ++i) (void)rig.capture({tensor.request()});
      rig.captures->close();
      REQUIRE(committed_with_values(rig, tensor) == 5 && rig.captures->report().in_flight == 0);
      REQUIRE(rig.capture({tensor.request()}).not_kept == 1);
    }
  });
  it("what does not end in time keeps its memory, after the rings are gone", [] {
    static const Tensor kTensor(Dtype::kF32, {5000});  // the device reads it after this case
    SimDevice* device = nullptr;
    std::vector<std::shared_ptr<RingMemory>> memories;
    {
      Rig rig({}, lane_for_all());
      device = rig.device;
      memories = rig.main.memories();
      device->pause();
      (void)rig.capture({kTensor.request()});
    }
    device->resume();
    REQUIRE(device->synchronize(kTraining));
    while (memories[1]->slots()[0].commit.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    Consumer consumer(memories);
    const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 10, false);
    REQUIRE(drained.rows.size() == 1 && payload_bytes_of(consumer, drained.rows[0]) == kTensor.bytes);
  });
  it("a forked child captures nothing and disturbs nothing", [] {
    const Tensor tensor(Dtype::kF32, {100});
    auto rig = std::make_unique<Rig>(SimDeviceOptions{.delay_us = 2000}, lane_for_all());
    (void)rig->capture({tensor.request()});
    const pid_t child = ::fork();
    if (child == 0) {
      const CaptureResult result = rig->capture({tensor.request()});
      const bool nothing = result.kept + result.not_kept == 0 && !rig->captures->busy() &&
                           !rig->captures->mark_step_end(0, {}) && rig->captures->report().in_flight == 0;
      rig->captures->close();
      rig.reset();
      ::_exit(nothing ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(rig->drain_all().rows.size() == 1);
  });
}

void early_words() {
  if (kThreadSanitized) return;  // data that arrives after its commit is reported as a data race
  it("a record whose word comes before its data is not taken before it is whole", [] {
    std::uint64_t early = 0;
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      const Tensor tensor(Dtype::kF32, {5000});
      Rig rig({.seed = seed, .delay_us = 300, .early_words = true}, lane_for_all(),
              memory_of(kWays[seed % 3]));
      for (int i = 0; i < 8; ++i) {
        (void)rig.capture({tensor.request(i % 3 == 0 ? std::uint8_t{kWantStats} : kAll)});
      }
      std::uint64_t rows = 0;
      while (rows < 8) {
        const DrainedBatches drained = drain(*rig.consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
        for (const IndexRow& row : drained.rows) {
          REQUIRE(row.entry.payload_offset == kNoPayload ||
                  payload_bytes_of(*rig.consumer, row) == tensor.bytes);
          REQUIRE(row.entry.stats.count == 5000);
        }
        rows += drained.rows.size();
      }
      early += rig.main.early_commits();
      rig.settle();
    }
    REQUIRE(early > 0);
  });
  it("a word that came too early takes the rung down, at last to commits by the host", [] {
    const Tensor tensor(Dtype::kF32, {5000});
    Rig rig({}, lane_for_all());
    std::atomic<std::uint64_t>& early = rig.main.memory()->control().early_commits;
    for (const CommitMode commit_mode :
         {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll, CommitMode::kPoll}) {
      REQUIRE(rig.capture({tensor.request()}).kept == 1 && rig.captures->report().commit_mode == commit_mode);
      early.fetch_add(3, std::memory_order_relaxed);  // like the count of the consumer
    }
    REQUIRE(rig.captures->report().early_commits == 12);
    REQUIRE(rig.drain_all().rows.size() == 4);
  });
}

// ---- a producer that is killed

/// The child captures until it is killed; it sends the place of its lane, then its number of requested
/// records.
[[noreturn]] void produce_until_killed(int to_parent, std::uint64_t seed, CommitMode commit_mode) {
  Rig rig({.seed = seed, .delay_us = 100, .best_commit_mode = commit_mode}, lane_for_all(64));
  Tensor tensor(Dtype::kF32, {3000});
  const std::vector<int> fds = rig.main.fds();  // of the main ring and its lane
  const auto bytes = static_cast<ssize_t>(2 * sizeof(int));
  if (::write(to_parent, fds.data(), 2 * sizeof(int)) != bytes) ::_exit(1);
  for (std::uint32_t i = 0;; ++i) {
    rig.device->enqueue(kTraining, [&tensor, i] { tensor.fill(i); });
    (void)rig.capture({tensor.request(i % 4 == 0 ? std::uint8_t{kWantStats} : kAll, i)});
  }
}

/// Whether the row has the values of its number.
bool row_is_right(const Consumer& consumer, const IndexRow& row) {
  Tensor expected(Dtype::kF32, {3000});
  expected.fill(row.entry.name);
  const TensorStats stats = reduce(expected.view());
  return std::memcmp(&row.entry.stats, &stats, sizeof stats) == 0 &&
         (row.entry.payload_offset == kNoPayload || payload_bytes_of(consumer, row) == expected.bytes);
}

void killed_producers() {
  for (const CommitMode commit_mode : {CommitMode::kStreamWrite, CommitMode::kPoll}) {
    it("of a producer that was killed in flight records are whole or torn, never wrong", [&] {
      std::uint64_t rows = 0;
      for (std::uint64_t seed = 1; seed <= 15; ++seed) {
        int ends[2] = {-1, -1};
        REQUIRE(::pipe(ends) == 0);
        const pid_t child = ::fork();
        if (child == 0) produce_until_killed(ends[1], seed, commit_mode);
        int fds[2] = {-1, -1};
        REQUIRE(::read(ends[0], fds, sizeof fds) == sizeof fds);
        std::vector<std::shared_ptr<RingMemory>> memories;
        for (int& fd : fds) {
          const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd);
          fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
          memories.push_back(RingMemory::attach(fd));
        }
        Consumer consumer(memories);
        std::uint64_t taken = 0;
        const auto take = [&](bool dead) {
          const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, dead);
          for (const IndexRow& row : drained.rows)
            REQUIRE(row.entry.status != EntryStatus::kOk || row_is_right(consumer, row));
          taken += drained.rows.size();
          release(consumer, drained);
        };
        while (taken < 20 + seed) take(false);
        ::kill(child, SIGKILL);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        take(true);
        rows += taken;
        REQUIRE(consumer.pending_records() == 0);
        for (const int end : {ends[0], ends[1], fds[0], fds[1]}) ::close(end);
      }
      REQUIRE(rows >= 15 * 20);
    });
  }
}

}  // namespace

int main() {
  if (!kSanitized)
    killed_producers();  // ThreadSanitizer observes one process only, and forks with threads are slow
  failures_of_the_device();
  rejections();
  closing();
  early_words();
  return result();
}
