// launch.hpp: the parameters of a launch of the kernels: plain data, read by host code, nvcc, NVRTC and the
// CPU.
//
// One launch serves a list of items, each a tensor or a range of one. An item is cut into *tiles* of
// kTileElements elements (the last one shorter), whatever the grid: results do not depend on how many blocks
// there are, nor on which block takes which tile. Blocks take tiles b, b + grid, b + 2 * grid, ...
// Results of tiles are merged in groups of kGroupTiles, the groups' then with each other.
// The table (items and layouts) is in device memory while the launch runs; `stats` and `commit_word` are
// device addresses of pinned host memory (the ring), everything else is device memory.
// Threads: plain data; the launcher fills it, the device reads it.
#pragma once

#include "base/dtype.hpp"
#include "base/tiles.hpp"
#include "stats/stats.hpp"

namespace tdcore::device {

inline constexpr std::uint32_t kGroupTiles = 64;
inline constexpr std::uint32_t kThreads = 256;  // of a block
inline constexpr std::uint32_t kMaxLayoutDims = 16;
inline constexpr std::uint32_t kContiguous = 0xFFFFFFFF;  // of Item::layout

/// Memory layout of an item that is not contiguous, without dimensions of extent 1, and with joined
/// neighbours that follow each other in memory. Strides in elements, of any sign, 0 included.
struct ItemLayout {
  std::uint32_t ndim;
  std::uint32_t unused;
  std::int64_t shape[kMaxLayoutDims];
  std::int64_t strides[kMaxLayoutDims];
};

/// Elements [first_element, first_element + elements) of a tensor, in C order.
struct Item {
  const void* data;             // first element of the tensor; contiguous: of this item
  std::uint64_t first_element;  // 0 for contiguous items, whose `data` says where they begin
  std::uint64_t elements;
  std::uint64_t first_tile;   // tiles of the items before it
  void* packed;               // pack: where its elements go, 16-byte aligned
  TensorStats* stats;         // stats: where its result goes
  std::uint32_t layout;       // index in Launch::layouts, or kContiguous
  std::uint8_t dtype;         // Dtype
  std::uint8_t packed_dtype;  // as dtype; or kF16 or kBF16 for kF32 (and kF64): rounded to nearest even
  std::uint8_t unused[2];
};

/// Parameter of both kernels, by value.
struct Launch {
  const Item* items;  // in the order of first_tile
  const ItemLayout* layouts;
  std::uint64_t tiles;  // of all items
  std::uint32_t count;  // items
  std::uint32_t unused;
  // stats: scratch. One partial result per tile; counters_of() counters of finished tiles and groups, and one
  // of finished items. Counters are zero at the start, and left zero again.
  TensorStats* partials;
  std::uint32_t* finished_tiles;
  std::uint32_t* finished_items;
  // stats: an item's count is stored after the rest of its result. When commit_word is not null, the block
  // that finishes the last item stores commit_value there, released to the whole system, after all results.
  std::uint64_t* commit_word;
  std::uint64_t commit_value;
};
static_assert(sizeof(Item) == 56 && sizeof(ItemLayout) == 264 && sizeof(Launch) == 72);

/// Counters behind Launch::finished_tiles. Those of an item begin at first_tile / kGroupTiles + 2 * its
/// position: one per group, then one for the groups.
TDCORE_HD constexpr std::uint64_t counters_of(std::uint64_t tiles, std::uint64_t items) noexcept {
  return tiles / kGroupTiles + 2 * items;
}

}  // namespace tdcore::device
