// Copies of several sizes, each followed by a word. When the host reads the word, it must read the bytes too.
#include "cuda/commit_probe.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace tdcore {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kProbeBytes = kProbeHostBytes - 4096;
constexpr std::uint64_t kSizes[] = {64, 4096, 65536, kProbeBytes, 8, kProbeBytes - 4096, 256, 32768};
constexpr std::uint64_t kMark = 0x7464636f72650000;  // last word of each copy, plus the number of the copy

struct Bench {
  Device& device;
  StreamHandle stream;
  EventHandle event;
  std::uint64_t* host;     // the word, alone on a page, followed by the destination of the copies
  std::uint64_t* pattern;  // pinned source of the uploads
  void* memory;

  std::uint64_t* arrivals() const noexcept { return host + 512; }
};

enum class Seen { kYes, kNo, kBusy };

/// Waits for the value. kNo: the device has passed the write and the value is not visible. kBusy: the device
/// has not passed the write in time.
Seen wait_for(const Bench& bench, std::uint64_t value, Clock::time_point deadline) {
  // Acquire: pairs with the device's release of the word, so that earlier copies are visible.
  const std::atomic_ref<std::uint64_t> word(*bench.host);
  bool past = false;
  for (;;) {
    if (word.load(std::memory_order_acquire) == value) return Seen::kYes;
    if (past) return Seen::kNo;
    if (Clock::now() > deadline) return Seen::kBusy;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    past = bench.device.query_event(bench.event) != EventState::kPending;
    if (past)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the word may arrive later than the event
  }
}

/// The fault of the commit mode; empty if it works.
const char* fault_of(const Bench& bench, CommitMode commit_mode, Clock::time_point deadline) {
  std::uint64_t number = 1 + 16 * static_cast<std::uint64_t>(commit_mode);
  for (const std::uint64_t bytes : kSizes) {
    ++number;
    const std::uint64_t last = bytes / 8 - 1;
    // All earlier copies have arrived, so the pinned pattern may change.
    bench.pattern[last] = kMark + number;
    bench.arrivals()[last] = 0;
    Device& device = bench.device;
    if (!device.copy_to_device(bench.stream, bench.memory, bench.pattern, bytes) ||
        !device.copy_to_host(bench.stream, bench.arrivals(), bench.memory, bytes) ||
        !device.write_word(bench.stream, bench.host, number, commit_mode) ||
        !device.record_event(bench.event, bench.stream)) {
      return "is rejected by the device";
    }
    const Seen seen = wait_for(bench, number, deadline);
    if (seen == Seen::kBusy) return "was not reached in time: the device is busy";
    if (seen == Seen::kNo) return "is not visible to the host";
    if (bench.arrivals()[last] != kMark + number) return "is visible before the copied bytes";
  }
  return "";
}

const char* name_of(CommitMode commit_mode) {
  return commit_mode == CommitMode::kStreamWrite ? "a write in stream order" : "a commit kernel";
}

}  // namespace

CommitMode probe_commit(Device& device, CommitMode first, int patience_ms, std::string& reason,
                        void* given) noexcept {
  try {
    auto* const host =
        static_cast<std::uint64_t*>(given != nullptr ? given : device.allocate_host(kProbeHostBytes));
    auto* const pattern = static_cast<std::uint64_t*>(device.allocate_host(kProbeBytes));
    const Bench bench{.device = device,
                      .stream = device.make_stream(),
                      .event = device.make_event(),
                      .host = host,
                      .pattern = pattern,
                      .memory = device.allocate(kProbeBytes)};
    if (host == nullptr || pattern == nullptr || bench.stream == 0 || bench.event == 0 ||
        bench.memory == nullptr) {
      reason = "no memory for the probe: " + device.errors();
      return CommitMode::kPoll;
    }
    std::memset(host, 0, kProbeHostBytes);
    std::memset(pattern, 0, kProbeBytes);
    for (const CommitMode commit_mode : {CommitMode::kStreamWrite, CommitMode::kCommitKernel}) {
      if (commit_mode < first) continue;
      const auto deadline = Clock::now() + std::chrono::milliseconds(patience_ms);
      const std::string fault = fault_of(bench, commit_mode, deadline);
      if (fault.empty()) return commit_mode;
      reason += (reason.empty() ? "" : "; ") + std::string(name_of(commit_mode)) + " " + fault;
    }
  } catch (...) {  // no host memory: the commit mode that needs no memory
  }
  return CommitMode::kPoll;
}

}  // namespace tdcore
