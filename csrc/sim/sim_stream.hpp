// sim_stream.hpp: one stream of the simulated device: a queue, and a thread that works it off.
//
// The queue only allocates memory for one more piece of work: the enqueuing thread acquires no store of the
// worker. So if a host reuses memory without a query of an event, ThreadSanitizer detects a data race. For
// this reason the queue is a list of nodes with futexes instead of a mutex and a condition. Threads: push()
// from any thread; one worker per stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "device/device.hpp"
#include "sim/sim_pace.hpp"

namespace tdcore {

/// Of all streams of a device.
struct SimControl {
  std::atomic<bool> paused{false};           // relaxed: tests
  std::atomic<bool> stopping{false};         // relaxed: workers leave at the next look
  std::atomic<bool> failed{false};           // relaxed: nothing is taken any more
  std::atomic<bool> lost{false};             // relaxed: nothing is run any more
  std::atomic<std::uint64_t> violations{0};  // relaxed: a count
  std::uint64_t seed = 1;                    // constant once streams run, as the next two
  std::uint32_t delay_us = 0;
  bool early_words = false;
};

/// Counts its records: the n-th is done when `done` is n. 32 bits: a futex. Streams of other devices may wait
/// for it, also when its own is lost or gone.
struct SimEvent : std::enable_shared_from_this<SimEvent> {
  std::atomic<std::uint32_t> recorded{0};  // relaxed: ordered by the one who records and then asks or waits
  std::atomic<std::uint32_t> done{0};      // release by the stream; acquire by who asks or waits
  std::atomic<bool> abandoned{false};      // relaxed: no thread waits any more
};

struct SimWork {
  enum class Kind { kCopy, kCopyOut, kFill, kStats, kPack, kWord, kRecord, kWait, kCall };
  Kind kind = Kind::kCall;
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t bytes = 0;  // or the value of the word
  device::Launch launch{};
  std::shared_ptr<SimEvent> event{};
  std::uint32_t generation = 0;
  std::function<void()> call{};
};

class SimStream {
 public:
  /// `now`: work is done in push(), by the thread that calls it.
  SimStream(SimControl& control, std::uint64_t number, bool now);
  ~SimStream();
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  /// False when there is no memory for it.
  bool push(SimWork& work) noexcept;

 private:
  struct Node;

  void run() noexcept;
  bool take_turn() noexcept;
  void perform(SimWork& work, const Node& node) noexcept;
  void perform_launch(const SimWork& work) noexcept;
  bool wait_for(const SimEvent& event, std::uint32_t generation) noexcept;
  bool leaving() const noexcept;

  SimControl& control_;
  SimPace pace_;  // the worker's; with `now` under mutex_
  const bool now_;
  std::mutex mutex_;                      // of those who enqueue; the worker never takes it
  Node* last_;                            // under mutex_
  Node* first_;                           // the worker's: done, its successor is next
  std::atomic<std::uint32_t> pushed_{0};  // release in push(); a futex, and orders nothing else
  std::unique_ptr<std::thread> worker_;   // null when none could be started
};

}  // namespace tdcore
