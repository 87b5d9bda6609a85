// device.hpp: the interface of an accelerator: memory, streams, events, copies, two kernels, a commit word.
//
// CudaDevice (csrc/cuda/) is a CUDA device. SimDevice (csrc/sim/, for tests) is a simulated device: its
// memory is host memory and its streams are threads with random delays, so that the parts above this file are
// tested on CPUs. A function that enqueues work returns immediately and never waits for the device. It
// returns false if the device rejects the work (after an error, or without a context); then nothing was
// enqueued.
//
// Threads: any thread may call any function. A stream belongs to the framework or to the device; work on one
// stream runs in order, and streams run concurrently.
// Fork: no function may be called in a forked child; DeviceCapture makes sure of this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/launch.hpp"

namespace tdcore {

/// The handle of a stream in its framework; 0 is the default stream.
using StreamHandle = std::uintptr_t;
/// An event of a Device; 0 is none.
using EventHandle = std::uintptr_t;

enum class EventState { kDone, kPending, kFailed };

/// The way to commit a record when its bytes are in the ring; the best mode is first. A batch with only
/// statistics, or a small batch, is committed by the kernel that writes it, in every commit mode except
/// kPoll.
enum class CommitMode : std::uint8_t {
  kStreamWrite = 0,   // a write of the commit word in stream order, without a kernel
  kCommitKernel = 1,  // a kernel of one thread
  kPoll = 2,  // a thread of the trainer polls events; records in flight are lost if the trainer is killed
};

inline constexpr std::array<const char*, 3> kCommitModeNames{"stream_write", "commit_kernel", "poll"};

/// The name for users.
constexpr const char* commit_mode_name(CommitMode commit_mode) noexcept {
  return kCommitModeNames[static_cast<std::size_t>(commit_mode)];
}

/// The kernels that a Device launches.
enum class Kernel { kStats, kPack };

struct DeviceInfo {
  std::string name;
  std::string kernels;  // their origin: "fatbin", "nvrtc", "host"
  std::uint32_t multiprocessors = 1;
  std::uint64_t memory_bytes = 0;
  std::uint64_t launch_tiles = ~std::uint64_t{0};   // maximum number of tiles of launch_inline()
  CommitMode best_commit_mode = CommitMode::kPoll;  // the best mode that works, by a probe
  std::string commit_mode_reason;                   // reason why no better mode works
};

class Device {
 public:
  virtual ~Device() = default;

  const DeviceInfo& info() const noexcept { return info_; }

  // ---- set-up: may wait, may allocate. If these functions are called while a stream is being captured into
  // a graph, nothing is added to the graph, and the capture stays valid.
  /// Allocates device memory, 256-byte aligned; null if there is none. Freed with the Device.
  virtual void* allocate(std::uint64_t bytes) noexcept = 0;
  /// Allocates pinned host memory that the device can access; null if there is none. Freed with the Device.
  virtual void* allocate_host(std::uint64_t bytes) noexcept = 0;
  /// Pins existing memory (whole pages), so that the device can access it. False, with nothing pinned, after
  /// an error.
  virtual bool pin(void* memory, std::uint64_t bytes) noexcept = 0;
  /// Create a separate stream for copies to the host, and an event. 0 after an error.
  virtual StreamHandle make_stream() noexcept = 0;
  virtual EventHandle make_event() noexcept = 0;
  /// Device memory that can be allocated now, by this process or another one; 0 if it is not known.
  virtual std::uint64_t free_bytes() noexcept = 0;

  // ---- hot path: enqueues, never waits
  /// Device address of pinned host memory. The offset is the same for all memory of one call of pin() or
  /// allocate_host().
  virtual void* device_address(void* pinned) const noexcept = 0;
  /// Whether the stream is being captured into a CUDA graph. Then work on this stream becomes a part of the
  /// graph. Only open_gate() and launches with a gate may be enqueued on it.
  virtual bool is_capturing(StreamHandle stream) noexcept = 0;
  virtual bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                              std::uint64_t bytes) noexcept = 0;
  virtual bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                            std::uint64_t bytes) noexcept = 0;
  virtual bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept = 0;
  virtual bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept = 0;
  /// One launch of the statistics kernel whose table is in the parameters, of at most info().launch_tiles
  /// tiles.
  virtual bool launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept = 0;
  /// Stores the value to an aligned word of pinned memory after all earlier work of the stream is visible to
  /// the host. commit_mode: kStreamWrite or kCommitKernel.
  virtual bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                          CommitMode commit_mode) noexcept = 0;
  virtual bool record_event(EventHandle event, StreamHandle stream) noexcept = 0;
  /// Makes later work of the stream wait for the event. The host does not wait.
  virtual bool wait_event(StreamHandle stream, EventHandle event) noexcept = 0;
  virtual EventState query_event(EventHandle event) noexcept = 0;

  // ---- graphs (device_graphs.hpp)
  /// Number of the capture in which the stream takes part, unique in the process; 0 if it is not known. All
  /// streams of one capture have the same number.
  virtual std::uint64_t capture_id(StreamHandle stream) noexcept = 0;
  /// Calls ended(data) once, from any thread, when neither the graph that the stream is being captured into
  /// nor an executable copy of it exists any more, and their work has ended. False if the device cannot
  /// watch the graph; then `ended` is not called.
  virtual bool watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept = 0;
  /// Copies the word `armed` to `gate`. Both are in device memory.
  virtual bool open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept = 0;
  /// Stores the value to a word of device memory, in stream order.
  virtual bool set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept = 0;
  /// Copies results of graphs into records. The records of one call are written in any order.
  virtual bool collect(StreamHandle stream, const device::Collection& collection) noexcept = 0;

  /// Whether every later call fails. Other errors, such as a lack of memory, may pass.
  virtual bool is_lost() const noexcept = 0;
  /// Text of the first error, and of the latest error if it differs; empty without an error.
  virtual std::string errors() const = 0;

 protected:
  DeviceInfo info_;  // constant once the device is set up
};

}  // namespace tdcore
