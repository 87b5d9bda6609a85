// sim_device.hpp: a simulated accelerator. Its memory is host memory, and its streams are threads with random
// delays. With this device, the parts above device.hpp are tested on CPUs and under sanitizers.
//
// The device has only the guarantees of CUDA: work on one stream runs in order, streams run concurrently,
// kernel arguments are read at the launch, and memory when the work runs. The host learns of finished work
// only by query_event() and by commit words; ThreadSanitizer reports any other access as a data race.
//
// A graph is the list of the work that was enqueued on one stream during a capture. A replay enqueues a copy
// of this work. Only work that a graph may contain is accepted during a capture; other work is a violation.
//
// Streams of make_stream() belong to the device. Any other handle is a stream of the training, created at its
// first use; enqueue() adds work to it.
//
// Threads: as for Device; one thread per stream. enqueue() and the functions below it are for tests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.hpp"
#include "sim/sim_stream.hpp"

namespace tdcore {

struct SimDeviceOptions {
  std::uint64_t seed = 1;       // seed of all delays
  std::uint32_t delay_us = 20;  // longest delay before a piece of work in microseconds; 0: no delay
  // Largest number of pending pieces of work of a stream; a call that enqueues more waits, as in CUDA. 0:
  // any.
  std::uint32_t queue_limit = 0;
  // The work of the training is done when the call that enqueues it returns; only streams of the device are
  // delayed. For tensors of libraries that compute synchronously.
  bool sync_compute = false;
  CommitMode best_commit_mode = CommitMode::kStreamWrite;  // result of a probe
  std::string commit_mode_reason = {};
  std::uint64_t fails_after = ~std::uint64_t{0};  // number of pieces of work before the failure
  // The device rejects this number of pieces of work from piece `rejects_from` on, and accepts later ones.
  std::uint64_t rejects_from = ~std::uint64_t{0};
  std::uint64_t rejects = 1;
  // Whether enqueued work that has not run at the failure never runs (a lost context).
  bool failure_loses_work = true;
  bool early_words = false;                             // every second commit is before its data
  std::uint64_t memory_bytes = std::uint64_t{1} << 40;  // maximum
  std::uint64_t pin_bytes = std::uint64_t{1} << 40;     // maximum of one call of pin()
  std::uint64_t launch_tiles = ~std::uint64_t{0};       // maximum number of tiles of launch_inline()
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimDeviceOptions& options = {});
  ~SimDevice() override;  // pending work never runs
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  void* allocate(std::uint64_t bytes) noexcept override;
  void* allocate_host(std::uint64_t bytes) noexcept override;
  bool pin(void* memory, std::uint64_t bytes) noexcept override;
  StreamHandle make_stream() noexcept override;
  EventHandle make_event() noexcept override;
  std::uint64_t free_bytes() noexcept override;

  void* device_address(void* pinned) const noexcept override { return pinned; }
  bool is_capturing(StreamHandle stream) noexcept override;
  bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                      std::uint64_t bytes) noexcept override;
  bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                    std::uint64_t bytes) noexcept override;
  bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept override;
  bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept override;
  bool launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept override;
  bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                  CommitMode commit_mode) noexcept override;
  bool record_event(EventHandle event, StreamHandle stream) noexcept override;
  bool wait_event(StreamHandle stream, EventHandle event) noexcept override;
  EventState query_event(EventHandle event) noexcept override;
  std::uint64_t capture_id(StreamHandle stream) noexcept override;
  bool watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept override;
  bool open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept override;
  bool set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept override;
  bool collect(StreamHandle stream, const device::Collection& collection) noexcept override;
  bool is_lost() const noexcept override { return control_.failed.load(std::memory_order_relaxed); }
  std::string errors() const override;

  /// Enqueues work of the training, which must not throw.
  void enqueue(StreamHandle stream, std::function<void()> work);
  /// Waits until all enqueued work of the stream has run. False if the device has lost it.
  bool synchronize(StreamHandle stream);
  /// Makes the stream seem to be captured by a library that does not provide the graph.
  void set_capturing(StreamHandle stream, bool capturing);
  /// Captures later work of the stream into a graph. Returns its number.
  std::uint64_t begin_capture(StreamHandle stream);
  void end_capture(StreamHandle stream);
  /// Enqueues the work of a graph. False if the device has failed, or if there is no such graph.
  bool replay(std::uint64_t graph, StreamHandle stream);
  /// Destroys a graph. Enqueued work of replays still runs.
  void destroy_graph(std::uint64_t graph);
  /// Stops all work until resume(). Enqueued work stays pending.
  void pause() noexcept { control_.paused.store(true, std::memory_order_relaxed); }
  void resume() noexcept { control_.paused.store(false, std::memory_order_relaxed); }
  /// Makes the device reject all further work.
  void fail() noexcept;
  /// Number of accepted pieces of work so far.
  std::uint64_t operations() const noexcept { return operations_.load(std::memory_order_relaxed); }
  /// Number of writes outside of an allocation, plus launches whose counters were not zero, found so far.
  std::uint64_t violations() const noexcept;

 private:
  struct SimAllocation {
    std::unique_ptr<std::byte[]> memory;
    std::byte* begin;
    std::uint64_t bytes;
  };

  /// A graph: the work to replay.
  struct SimGraph {
    std::vector<SimWork> work;
    std::shared_ptr<SimGraphLife> life = std::make_shared<SimGraphLife>();
  };

  bool record(StreamHandle stream, const SimWork& work);
  void* allocate_guarded(std::uint64_t bytes) noexcept;
  bool push(StreamHandle stream, SimWork& work) noexcept;
  SimStream& stream_of(StreamHandle handle);
  void abandon_events() noexcept;

  const SimDeviceOptions options_;
  SimControl control_;
  std::atomic<std::uint64_t> operations_{0};  // relaxed: a count
  std::atomic<bool> rejected_{false};         // relaxed: for errors()
  mutable std::mutex mutex_;                  // guards the following members; never held while work runs
  std::vector<SimAllocation> allocations_;
  std::uint64_t allocated_ = 0;
  std::vector<std::shared_ptr<SimEvent>> events_;
  std::unordered_map<StreamHandle, std::unique_ptr<SimStream>> streams_;
  std::unordered_map<StreamHandle, bool> capturing_;
  std::unordered_map<StreamHandle, std::uint64_t> captures_;  // streams that are being captured: their graphs
  std::unordered_map<std::uint64_t, SimGraph> graphs_;
  std::uint64_t graph_count_ = 0;
};

}  // namespace tdcore
