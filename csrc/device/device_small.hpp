// device_small.hpp: small captures, whose table is in the parameters of one launch (device::InlineLaunch).
//
// Such a capture needs no upload, so nothing but the launch is enqueued before the event. The counters of the
// launch are in a pool that is zeroed once: every launch leaves its counters at zero, and a device either
// accepts a launch or enqueues nothing. Small payloads are written by the launch into the record, with the
// guards and the commit word, without the arena and a copy. Threads: CounterPool one at a time
// (DeviceEngine's mutex); the functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.hpp"
#include "device/device_table.hpp"

namespace tdcore {

/// Maximum number of tiles of a small capture. A capture with more tiles runs for longer than an upload
/// takes.
inline constexpr std::uint64_t kInlineTiles = 4096;

struct InlineLimits {
  std::uint64_t tiles = 0;         // maximum; 0: all tables are uploaded
  std::uint64_t direct_bytes = 0;  // maximum of a payload, padded, that the launch writes into the record
};

/// Measures a table for the parameters of a launch. False if it does not fit. payload_bytes: padded.
bool measure_inline(std::span<const PlannedTensor> items, std::uint64_t payload_bytes,
                    const InlineLimits& limits, TableSize& size) noexcept;

struct InlinePlace {
  std::uint32_t* counters = nullptr;   // of CounterPool, zero
  TensorStats* partials = nullptr;     // device memory
  std::byte* payload = nullptr;        // device address of the packed values, after a guard
  std::uint64_t payload_bytes = 0;     // padded
  TensorStats* first_stats = nullptr;  // device address of the first entry's statistics
  std::uint64_t guard = 0;
};

/// Writes the table of a launch, without its commit word.
void fill_inline(std::span<const PlannedTensor> items, const TableSize& size, const InlinePlace& place,
                 device::InlineLaunch& launch) noexcept;

/// Writes zeros between and after the payloads of a record in host memory.
void zero_gaps(std::span<const PlannedTensor> items, std::byte* payload, std::uint64_t bytes) noexcept;

/// Counters of finished tiles and items, in device memory, for one launch at a time per slot.
class CounterPool {
 public:
  /// Allocates the pool, and enqueues its zeroing on a stream of the device. Without memory the pool stays
  /// empty.
  void make(Device& device, StreamHandle stream, std::size_t slots) noexcept;
  /// Whether the zeroing has ended. If the device rejected it, it is enqueued again. Does not wait.
  bool ready(Device& device) noexcept;
  std::uint32_t* at(std::size_t slot) const noexcept;

 private:
  enum class State { kNone, kRejected, kPending, kReady };

  void start(Device& device) noexcept;

  std::byte* memory_ = nullptr;
  std::size_t slots_ = 0;
  StreamHandle stream_ = 0;
  EventHandle event_ = 0;
  State state_ = State::kNone;
};

}  // namespace tdcore
