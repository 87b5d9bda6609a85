// device_rig.hpp: rings, a simulated device and a DeviceCapture for the C++ tests, and the comparison of its
// records with those of the CPU. Threads: as for the parts.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.hpp"
#include "check.hpp"
#include "device/device_capture.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "rings.hpp"
#include "sim/sim_device.hpp"
#include "stats/cpu.hpp"

namespace tdcore::testing {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint8_t kAll = kWantPayload | kWantStats;
inline constexpr StreamHandle kTraining = 7;  // a stream of the training

inline DeviceCaptureConfig small_memory(std::uint64_t arena_bytes = kMiB,
                                        std::uint64_t scratch_bytes = kMiB) {
  return {.arena_bytes = arena_bytes,
          .scratch_bytes = scratch_bytes,
          .table_bytes = kMiB,
          .max_items = 8192,
          .in_flight = 256,
          .first_retry = std::chrono::milliseconds{1}};
}

/// A main ring with the given lane.
inline RingConfig with_lane(const RingConfig& lane) {
  RingConfig result = config(kMiB, 64, lane.policy);
  result.block_timeout = lane.block_timeout;
  result.device_lanes = 1;
  result.device_lane_bytes = lane.data_bytes;
  result.device_lane_slots = lane.slots;
  return result;
}

/// A main ring, a lane and one device.
struct Rig {
  explicit Rig(const SimDeviceOptions& options = {}, const RingConfig& lane_config = config(8 * kMiB, 256),
               const DeviceCaptureConfig& memory = small_memory())
      : main(with_lane(lane_config)), lane(main.lanes()[0]) {
    auto made = std::make_unique<SimDevice>(options);
    device = made.get();
    captures = std::make_unique<DeviceCapture>(std::move(made), lane, main, memory);
    consumer = std::make_unique<Consumer>(main.memories());
  }

  CaptureResult capture(const std::vector<TensorRequest>& requests, StreamHandle stream = kTraining,
                        std::int64_t step = 1) {
    return captures->capture(requests, {.step = step, .mode_step = step, .mode = 1, .call = 3}, stream);
  }
  /// Waits until the device has committed all of its records.
  void settle() const {
    while (captures->busy()) std::this_thread::yield();
  }
  DrainedBatches drain_all() const {
    settle();
    return tdcore::drain(*consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
  }
  std::uint64_t dropped(DropReason reason) const {
    return main.counters().drops[static_cast<std::size_t>(reason)].tensors;
  }
  std::uint64_t dropped_bytes(DropReason reason) const {
    return main.counters().drops[static_cast<std::size_t>(reason)].bytes;
  }

  Ring main;
  std::shared_ptr<Ring> lane;
  SimDevice* device;  // until captures->close()
  std::unique_ptr<DeviceCapture> captures;
  std::unique_ptr<Consumer> consumer;
};

/// A tensor whose memory the device reads late, with its own bytes, shape and strides.
struct Tensor {
  Tensor(Dtype type, std::vector<std::int64_t> extents, std::vector<std::int64_t> steps = {},
         std::uint64_t behind = 0)
      : dtype(type), shape(std::move(extents)), strides(std::move(steps)) {
    std::uint64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
    bytes.resize((behind == 0 ? elements : behind) * dtype_bytes(dtype));
    fill(1);
  }
  /// Fills in values that depend on the seed. Every bit pattern of the dtype may occur, except for bool.
  void fill(std::uint64_t seed) {
    std::uint64_t word = seed * 0x9E3779B97F4A7C15;
    for (std::byte& byte : bytes) {
      word = word * 6364136223846793005U + 1442695040888963407U;
      byte = static_cast<std::byte>(dtype == Dtype::kBool ? (word >> 60) & 1 : word >> 56);
    }
  }
  TensorView view() const {
    return {.data = bytes.empty() ? nullptr : bytes.data() + first * dtype_bytes(dtype),
            .shape = shape.data(),
            .strides = strides.empty() ? nullptr : strides.data(),
            .ndim = static_cast<int>(shape.size()),
            .dtype = dtype};
  }
  TensorRequest request(std::uint8_t flags = kAll, std::uint32_t name = 0) const {
    return {.tensor = view(),
            .name = name,
            .flags = flags,
            .status = EntryStatus::kOk,
            .reason = DropReason::kNone};
  }

  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::vector<std::byte> bytes;
  std::uint64_t first = 0;  // element of the memory at which the view begins
};

inline TensorRequest without_value(EntryStatus status, DropReason reason, std::uint32_t name) {
  return {.tensor = {}, .name = name, .flags = kAll, .status = status, .reason = reason};
}

/// Drained records of a ring without lanes, or of the last lane.
inline std::vector<std::byte> payload_bytes_of(const Consumer& consumer, const IndexRow& row) {
  std::vector<std::byte> bytes(row.entry.payload_bytes);
  if (!bytes.empty()) std::memcpy(bytes.data(), consumer.data().back() + row.location, bytes.size());
  return bytes;
}

/// All members of a row except the place of its payload.
inline bool same_row(const IndexRow& left, const IndexRow& right) {
  Entry a = left.entry;
  Entry b = right.entry;
  const bool saved = (a.payload_offset == kNoPayload) == (b.payload_offset == kNoPayload);
  a.payload_offset = b.payload_offset = 0;
  return saved && std::memcmp(&a, &b, sizeof(Entry)) == 0 && left.step == right.step &&
         left.mode_step == right.mode_step && left.mode == right.mode;
}

/// Merged parts of one name: its statistics, and its payload end to end.
struct Whole {
  TensorStats stats = empty_stats();
  std::vector<std::byte> bytes;
  std::uint32_t rows = 0;
};
inline Whole whole_of(const Consumer& consumer, const DrainedBatches& drained, std::uint32_t name) {
  Whole whole;
  for (const IndexRow& row : drained.rows) {
    if (row.entry.name != name) continue;
    if (row.entry.has_stats != 0) merge(whole.stats, row.entry.stats);
    const std::vector<std::byte> part = payload_bytes_of(consumer, row);
    whole.bytes.insert(whole.bytes.end(), part.begin(), part.end());
    ++whole.rows;
  }
  return whole;
}

/// The bytes of the view, in C order.
inline std::vector<std::byte> values_of(const TensorView& view) {
  std::vector<std::byte> bytes(element_count(view) * dtype_bytes(view.dtype));
  if (!bytes.empty()) copy_strided(view, 0, element_count(view), bytes.data());
  return bytes;
}

}  // namespace tdcore::testing
