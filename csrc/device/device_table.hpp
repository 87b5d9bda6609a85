// device_table.hpp: the launches of one batch as the kernels read them (device/launch.hpp).
//
// One upload contains the whole table: items to pack, items to reduce, layouts, the guard, counters that
// begin at zero. After the table, in device memory, are the partial results. The guard is packed to both ends
// of the payload by two more items, so that it is copied like the payload. A small table is in the parameters
// of a launch instead (device_small.hpp). Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "capture/capture_values.hpp"
#include "device/launch.hpp"
#include "ring/record.hpp"

namespace tdcore {

inline constexpr std::uint64_t kDeviceAlignBytes = 256;

/// Maximum bytes of a table per entry (upload and statistics of one tile), and maximum further bytes.
inline constexpr std::uint64_t kTableEntryBytes =
    2 * sizeof(device::Item) + sizeof(device::ItemLayout) + 2 * sizeof(std::uint32_t);
inline constexpr std::uint64_t kTableFixedBytes =
    2 * sizeof(device::Item) + 2 * kGuardBytes + 2 * kDeviceAlignBytes;

struct TableSize {
  std::uint32_t packs = 0;  // including two for the guard of an uploaded table; 0 without payload
  std::uint32_t stats = 0;
  std::uint32_t layouts = 0;
  std::uint64_t stats_tiles = 0;
  std::uint64_t upload_bytes = 0;
  std::uint64_t device_bytes = 0;
  bool inlined = false;  // the table is in the parameters of one launch
  bool direct = false;   // inlined: the launch writes values into the record, without the arena

  bool empty() const noexcept { return packs == 0 && stats == 0; }
  /// Whether values are packed into the arena and copied.
  bool copies() const noexcept { return packs > 0 && !direct; }
};

/// Whether the kernels pack or reduce an item.
bool is_packed(const PlannedTensor& item) noexcept;
bool is_reduced(const PlannedTensor& item) noexcept;

TableSize measure_table(std::span<const PlannedTensor> items) noexcept;

struct TablePlace {
  std::byte* host = nullptr;           // pinned, upload_bytes
  std::byte* device = nullptr;         // device_bytes
  std::byte* payload = nullptr;        // in device memory: guard, payload, guard
  std::uint64_t payload_bytes = 0;     // padded
  TensorStats* first_stats = nullptr;  // device address of the first entry's statistics
  std::uint64_t guard = 0;
};

struct Launches {
  device::Launch stats{};  // count 0: none
  device::Launch pack{};
};

/// Writes the table to pinned memory.
Launches fill_table(std::span<const PlannedTensor> items, const TableSize& size,
                    const TablePlace& place) noexcept;

/// Writer of consecutive items, whose tiles it numbers from `first_tile` on.
class ItemWriter {
 public:
  explicit ItemWriter(device::Item* first, std::uint64_t first_tile = 0) noexcept
      : next_(first), tiles_(first_tile) {}
  void add(device::Item item) noexcept;
  std::uint64_t tiles() const noexcept { return tiles_; }

 private:
  device::Item* next_;
  std::uint64_t tiles_;
};

/// Whether the kernels need a layout for the tensor, and whether its values are transposed (row_axes_of()).
bool needs_layout(const PlannedTensor& item) noexcept;
bool is_transposed(const PlannedTensor& item) noexcept;
/// Adds the items of all tensors, and writes their layouts. payload: device address of the packed values.
void write_items(std::span<const PlannedTensor> items, ItemWriter& packs, ItemWriter& stats,
                 device::ItemLayout* layouts, std::byte* payload, TensorStats* first_stats) noexcept;

/// Value of ItemLayout::row_axes: the axes up to the one with stride 1, if the last axis has a larger stride,
/// and boxes have more than a few rows and columns. 0 for layouts with a stride of 0 or below.
std::uint32_t row_axes_of(const device::ItemLayout& layout) noexcept;

/// Removes dimensions of extent 1, and joins neighbors that are contiguous in memory.
void join_layout(const TensorView& view, device::ItemLayout& layout) noexcept;

}  // namespace tdcore
