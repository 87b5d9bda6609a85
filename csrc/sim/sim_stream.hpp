// sim_stream.hpp: one stream of the simulated device: a queue of work, and a thread that runs it.
//
// push() only allocates memory for a piece of work; the calling thread acquires no store of the worker.
// Therefore, if a host reuses memory without a query of an event, ThreadSanitizer detects a data race. For
// this reason the queue is a list of nodes with futexes instead of a mutex and a condition variable. Threads:
// push() from any thread; one worker per stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "sim/sim_pace.hpp"

namespace tdcore {

/// State that all streams of a device share.
struct SimControl {
  std::atomic<bool> paused{false};           // relaxed: tests
  std::atomic<bool> stopping{false};         // relaxed: workers end at their next check
  std::atomic<bool> failed{false};           // relaxed: no work is accepted any more
  std::atomic<bool> lost{false};             // relaxed: no work runs any more
  std::atomic<std::uint64_t> violations{0};  // relaxed: a count
  std::uint64_t seed = 1;                    // constant once streams run, like the next three
  std::uint32_t delay_us = 0;
  std::uint32_t queue_limit = 0;  // largest number of pending pieces of work of a stream; 0: any
  bool early_words = false;
};

/// An event counts its records: the n-th record has happened when `done` is n. 32 bits, for a futex. Streams
/// of other devices may wait for the event, also after its own device is lost or destroyed.
struct SimEvent : std::enable_shared_from_this<SimEvent> {
  std::atomic<std::uint32_t> recorded{0};  // relaxed: the caller orders record and query or wait
  std::atomic<std::uint32_t> done{0};      // release by the stream; acquire by query and wait
  std::atomic<bool> abandoned{false};      // relaxed: no thread waits any more
};

/// Object that lives as long as a graph or work of its replays.
class SimGraphLife {
 public:
  SimGraphLife() = default;
  SimGraphLife(const SimGraphLife&) = delete;
  SimGraphLife& operator=(const SimGraphLife&) = delete;
  ~SimGraphLife() {
    for (const auto& [ended, data] : watchers) ended(data);
  }

  std::vector<std::pair<void (*)(void*), void*>> watchers;  // under the mutex of the device
};

struct SimWork {
  enum class Kind {
    kCopy,
    kCopyOut,
    kFill,
    kStats,
    kPack,
    kInline,
    kWord,
    kRecord,
    kWait,
    kCall,
    kGate,        // copies the word `from` to `to`
    kDeviceWord,  // a word of device memory
    kCollect,
  };
  Kind kind = Kind::kCall;
  void* to = nullptr;
  const void* from = nullptr;
  std::uint64_t bytes = 0;  // or the value of the word
  device::Launch launch{};
  std::shared_ptr<const device::InlineLaunch> inlined{};   // kInline
  std::shared_ptr<const device::Collection> collection{};  // kCollect
  std::shared_ptr<SimEvent> event{};
  std::uint32_t generation = 0;
  std::function<void()> call{};
  std::shared_ptr<const SimGraphLife> graph{};  // work of a replay
};

class SimStream {
 public:
  /// `now`: work runs in push(), in the calling thread.
  SimStream(SimControl& control, std::uint64_t number, bool now);
  ~SimStream();
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  /// Adds a piece of work. False if there is no memory for it.
  bool push(SimWork& work) noexcept;

 private:
  struct Node;

  void run() noexcept;
  bool take_turn() noexcept;
  void perform(SimWork& work, const Node& node) noexcept;
  void perform_launch(const SimWork& work) noexcept;
  void perform_gated(const SimWork& work) noexcept;
  void perform_collection(const device::Collection& collection) noexcept;
  bool wait_for(const SimEvent& event, std::uint32_t generation) noexcept;
  void wait_for_queue() noexcept;
  bool leaving() const noexcept;

  SimControl& control_;
  SimPace pace_;  // used by the worker; with `now`, under mutex_
  const bool now_;
  std::mutex mutex_;                      // for push(); the worker never takes it
  Node* last_;                            // under mutex_
  Node* first_;                           // used by the worker: done, its successor is next
  std::atomic<std::uint32_t> pushed_{0};  // release in push(); a futex, which orders no other access
  std::atomic<std::uint32_t> done_{0};    // pieces of work; relaxed: only limits the length of the queue
  std::unique_ptr<std::thread> worker_;   // null if no thread could be started
};

}  // namespace tdcore
