// device.hpp: what the capture needs of an accelerator: memory, streams, events, copies, two kernels, a word.
//
// CudaDevice (csrc/cuda/) is the real one. SimDevice (csrc/sim/, for tests) is a simulated one: its memory is
// host memory and its streams are threads that take their time, so that the parts above this file are tested
// on CPUs. Whatever enqueues returns at once and never waits for the device; it returns false when the device
// refuses (an error that it keeps, a lost context), and then nothing was enqueued.
// Threads: any thread may call anything. A stream belongs to the framework or to the device; what is
// enqueued on one stream runs in order, and streams run concurrently.
// Fork: nothing here may be called in a forked child; DeviceCapture sees to that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/launch.hpp"

namespace tdcore {

/// A stream as its framework gives it; 0 is the default stream.
using StreamHandle = std::uintptr_t;
/// An event of a Device; 0 is none.
using EventHandle = std::uintptr_t;

enum class EventState { kDone, kPending, kFailed };

/// How a record is committed once its bytes are in the ring, best first. Statistics alone are committed by
/// the kernel that makes them, in every commit mode but kPoll.
enum class CommitMode : std::uint8_t {
  kStreamWrite = 0,   // a write of the word in stream order, without a kernel
  kCommitKernel = 1,  // a kernel of one thread
  kPoll = 2,          // a thread of the trainer asks events; what is in flight is lost when it is killed
};

inline constexpr std::array<const char*, 3> kCommitModeNames{"stream_write", "commit_kernel", "poll"};

/// The name that users see.
constexpr const char* commit_mode_name(CommitMode commit_mode) noexcept {
  return kCommitModeNames[static_cast<std::size_t>(commit_mode)];
}

/// The kernels that a Device launches.
enum class Kernel { kStats, kPack };

struct DeviceInfo {
  std::string name;
  std::string kernels;  // where they come from: "fatbin", "nvrtc", "host"
  std::uint32_t multiprocessors = 1;
  std::uint64_t memory_bytes = 0;
  CommitMode best_commit_mode = CommitMode::kPoll;  // the best one that a probe found to work
  std::string commit_mode_reason;                   // why none better
};

class Device {
 public:
  virtual ~Device() = default;

  const DeviceInfo& info() const noexcept { return info_; }

  // ---- set-up: may wait, may allocate; not called while a stream is being captured into a graph
  /// Device memory, 256-byte aligned; null when there is none. Lives as long as the Device.
  virtual void* allocate(std::uint64_t bytes) noexcept = 0;
  /// Pinned host memory that the device sees; null when there is none. Lives as long as the Device.
  virtual void* allocate_host(std::uint64_t bytes) noexcept = 0;
  /// Pins memory that is there (whole pages) and lets the device see it. False, and nothing pinned, when it
  /// cannot be.
  virtual bool pin(void* memory, std::uint64_t bytes) noexcept = 0;
  /// A stream of its own for copies to the host, and an event. 0 when there is none.
  virtual StreamHandle make_stream() noexcept = 0;
  virtual EventHandle make_event() noexcept = 0;

  // ---- hot path: enqueues, never waits
  /// Where the device sees pinned host memory: one distance for all of what one call pinned or allocated.
  virtual void* device_address(void* pinned) const noexcept = 0;
  /// Whether the stream is being captured into a graph: nothing may be enqueued then.
  virtual bool is_capturing(StreamHandle stream) noexcept = 0;
  virtual bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                              std::uint64_t bytes) noexcept = 0;
  virtual bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                            std::uint64_t bytes) noexcept = 0;
  virtual bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept = 0;
  virtual bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept = 0;
  /// Stores the value to an aligned word of pinned memory after everything before it in the stream is
  /// visible to the host. commit_mode: kStreamWrite or kCommitKernel.
  virtual bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                          CommitMode commit_mode) noexcept = 0;
  virtual bool record_event(EventHandle event, StreamHandle stream) noexcept = 0;
  /// What comes after in the stream waits for the event; the host does not.
  virtual bool wait_event(StreamHandle stream, EventHandle event) noexcept = 0;
  virtual EventState query_event(EventHandle event) noexcept = 0;

  /// What went wrong first, in words; empty when nothing did.
  virtual std::string first_error() const = 0;

 protected:
  DeviceInfo info_;  // constant once the device is set up
};

}  // namespace tdcore
