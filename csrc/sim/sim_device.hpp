// sim_device.hpp: a simulated accelerator: its memory is host memory, its streams are threads that take
// their time. What stands above device.hpp is tested on it, on CPUs and under sanitizers.
//
// It has the guarantees of CUDA and no others: work on one stream runs in order, streams run concurrently,
// kernel arguments are taken at the launch and memory when the work runs. Nothing but
// query_event() and the word of a commit tells the host that something was done; ThreadSanitizer would see an
// access that rests on anything else.
// Streams that make_stream() returned are the device's own; any other handle is a stream of "the training",
// made at its first use. enqueue() adds work to it.
//
// Threads: as Device; one thread per stream. enqueue() and the functions below it are for tests.
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
  std::uint64_t seed = 1;       // of all delays
  std::uint32_t delay_us = 20;  // longest delay before a piece of work; 0: none
  // The training's work is done when the call that enqueues it returns; only the device's own streams are
  // late. For tensors of libraries that compute at once.
  bool sync_compute = false;
  CommitMode best_commit_mode = CommitMode::kStreamWrite;  // what a probe found to work
  std::string commit_mode_reason = {};
  std::uint64_t fails_after = ~std::uint64_t{0};  // that many pieces of work are taken, then none
  // With the failure: what was enqueued and has not run never runs (a lost context), or it does.
  bool failure_loses_work = true;
  bool early_words = false;  // every second commit comes before the data that it is for
  std::uint64_t memory_bytes = std::uint64_t{1} << 40;  // more is not to be had
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimDeviceOptions& options = {});
  ~SimDevice() override;  // what has not run never runs
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  void* allocate(std::uint64_t bytes) noexcept override;
  void* allocate_host(std::uint64_t bytes) noexcept override;
  bool pin(void* memory, std::uint64_t bytes) noexcept override;
  StreamHandle make_stream() noexcept override;
  EventHandle make_event() noexcept override;

  void* device_address(void* pinned) const noexcept override { return pinned; }
  bool is_capturing(StreamHandle stream) noexcept override;
  bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                      std::uint64_t bytes) noexcept override;
  bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                    std::uint64_t bytes) noexcept override;
  bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept override;
  bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept override;
  bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                  CommitMode commit_mode) noexcept override;
  bool record_event(EventHandle event, StreamHandle stream) noexcept override;
  bool wait_event(StreamHandle stream, EventHandle event) noexcept override;
  EventState query_event(EventHandle event) noexcept override;
  std::string first_error() const override;

  /// Work of the training; it must not throw.
  void enqueue(StreamHandle stream, std::function<void()> work);
  /// Waits until all that was enqueued has run; false when the device has lost it.
  bool synchronize(StreamHandle stream);
  void set_capturing(StreamHandle stream, bool capturing);
  /// Nothing runs until resume(): what is enqueued stays in flight.
  void pause() noexcept { control_.paused.store(true, std::memory_order_relaxed); }
  void resume() noexcept { control_.paused.store(false, std::memory_order_relaxed); }
  /// From now on the device refuses.
  void fail() noexcept;
  /// Pieces of work taken so far.
  std::uint64_t operations() const noexcept { return operations_.load(std::memory_order_relaxed); }
  /// Writes beyond an allocation, and launches whose counters were not zero: found so far.
  std::uint64_t violations() const noexcept;

 private:
  struct SimAllocation {
    std::unique_ptr<std::byte[]> memory;
    std::byte* begin;
    std::uint64_t bytes;
  };

  void* allocate_guarded(std::uint64_t bytes) noexcept;
  bool push(StreamHandle stream, SimWork& work) noexcept;
  SimStream& stream_of(StreamHandle handle);
  void abandon_events() noexcept;

  const SimDeviceOptions options_;
  SimControl control_;
  std::atomic<std::uint64_t> operations_{0};  // relaxed: a count
  mutable std::mutex mutex_;                  // of what follows; never held while work runs
  std::vector<SimAllocation> allocations_;
  std::uint64_t allocated_ = 0;
  std::vector<std::shared_ptr<SimEvent>> events_;
  std::unordered_map<StreamHandle, std::unique_ptr<SimStream>> streams_;
  std::unordered_map<StreamHandle, bool> capturing_;
};

}  // namespace tdcore
