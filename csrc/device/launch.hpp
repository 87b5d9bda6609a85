// launch.hpp: the parameters of a launch of the kernels: plain data, read by host code, nvcc, NVRTC and the
// CPU.
//
// One launch processes a list of items. Each item is a tensor or a range of a tensor. An item is split into
// *tiles* of kTileElements elements (the last tile may be shorter), independent of the grid. Therefore
// results do not depend on the number of blocks, or on the block that takes a tile. Block b takes tiles b, b
// + grid, b + 2 * grid, ... Results of tiles are merged in groups of kGroupTiles, and then the results of the
// groups. Several launches, one after the other on a stream, may process parts of a list (first_tile).
//
// The table (items and layouts) is in device memory while the launch runs, or in the parameters of the launch
// (InlineLaunch). `stats`, `commit_word`, and in some launches the packed values and the guards, are device
// addresses of pinned host memory (the ring); everything else is device memory.
// Threads: plain data; the launcher fills it, the device reads it.
#pragma once

#include "base/dtype.hpp"
#include "base/tiles.hpp"
#include "stats/stats.hpp"

namespace tdcore::device {

inline constexpr std::uint32_t kGroupTiles = 64;
inline constexpr std::uint32_t kThreads = 256;  // threads of a block
inline constexpr std::uint32_t kMaxLayoutDims = 16;
inline constexpr std::uint32_t kContiguous = 0xFFFFFFFF;  // value of Item::layout

/// Memory layout of an item that is not contiguous, without dimensions of extent 1, and with neighbors joined
/// if they are contiguous in memory. Strides are in elements, and may be negative or 0.
struct ItemLayout {
  std::uint32_t ndim;
  std::uint32_t
      row_axes;  // if not 0, values are packed through boxes: number of axes of a row (transpose.cuh)
  std::int64_t shape[kMaxLayoutDims];
  std::int64_t strides[kMaxLayoutDims];
};

/// Elements [first_element, first_element + elements) of a tensor, in C order.
struct Item {
  const void* data;             // first element of the tensor; contiguous: of this item
  std::uint64_t first_element;  // 0 for contiguous items, whose `data` is the address of the first element
  std::uint64_t elements;
  std::uint64_t first_tile;   // tiles of the items before it
  void* packed;               // pack: address of the packed elements, 16-byte aligned
  TensorStats* stats;         // stats: address of the result
  std::uint32_t layout;       // index in Launch::layouts, or kContiguous
  std::uint8_t dtype;         // Dtype
  std::uint8_t packed_dtype;  // as dtype; or kF16 or kBF16 for kF32 (and kF64): rounded to nearest even
  std::uint8_t unused[2];
};

/// Parameter of the pack kernel, by value, and first part of the parameter of the statistics kernel.
struct Launch {
  const Item* items;  // in the order of first_tile; null: in the parameters
  const ItemLayout* layouts;
  std::uint64_t first_tile;  // this launch processes tiles [first_tile, tiles)
  std::uint64_t tiles;       // number of tiles of all items, or the end of a part
  std::uint32_t count;       // number of items
  std::uint32_t unused;
  // stats: scratch. One partial result per tile; counters_of() counters of finished tiles and groups, and one
  // counter of finished items. Counters are zero at the start and at the end.
  TensorStats* partials;
  std::uint32_t* finished_tiles;
  std::uint32_t* finished_items;
  // stats: an item's count is stored after the rest of its result. If commit_word is not null, the block that
  // finishes the last item stores commit_value there after all results, with release for the whole system.
  std::uint64_t* commit_word;
  std::uint64_t commit_value;
  // stats, in a graph: a word in device memory. If it is 0, the launch does nothing. Otherwise the value of
  // the word is stored to commit_word, in place of commit_value. Null outside of graphs.
  const std::uint64_t* gate;
};
static_assert(sizeof(Item) == 56 && sizeof(ItemLayout) == 264 && sizeof(Launch) == 88);

inline constexpr std::uint32_t kCollectedEntries = 256;  // most entries of a record of a collection
inline constexpr std::uint32_t kCollectedRecords = 32;   // most records of one launch

/// A batch of a graph in a record of a collection.
///
/// The batch counts if `ran` is the epoch, and if no other batch has claimed the same tensors in this epoch.
/// Otherwise its entries become entries without a row.
struct CollectedBatch {
  const std::uint64_t* ran;  // epoch of the last replay; device memory, like the next word
  std::uint64_t* claim;      // epoch of the last batch with these tensors that counted
  std::uint64_t without_value_bytes;
  std::uint32_t without_values;  // tensors whose values were requested
  std::uint32_t tensors;
};

struct CollectedEntry {
  const TensorStats* result;  // device memory; null: the host has written the statistics
  std::uint32_t batch;        // number of the batch in the record
  std::uint32_t unused;
};

/// Sums of the batches of a record that count.
struct CollectionOutcome {
  std::uint64_t tensors;
  std::uint64_t without_values;
  std::uint64_t without_value_bytes;
};

/// A record in the ring. If no batch counts, the record becomes an aborted one.
struct CollectedRecord {
  TensorStats* entries;           // statistics of the first entry
  const CollectedBatch* batches;  // behind the entries, in the ring
  const CollectedEntry* sources;  // by entry; in the ring
  CollectionOutcome* outcome;     // pinned memory
  std::uint32_t* kind;            // kind of the record, in its slot of the ring
  std::uint64_t* commit_word;     // null: the host commits
  std::uint64_t commit_value;
  std::uint32_t count;        // number of entries
  std::uint32_t batch_count;  // at most `count`
};

/// Parameter of the kernel that copies results of graphs into records, by value: one block for each record.
/// No two batches of a launch have the same claim.
struct Collection {
  std::uint64_t epoch;
  std::uint32_t count;          // number of records
  std::uint32_t entry_bytes;    // sizeof(Entry)
  std::uint32_t status_offset;  // of the status of an entry, from its statistics
  std::uint32_t no_row;         // the status of an entry without a row
  std::uint32_t aborted;        // the kind of an aborted record
  std::uint32_t unused;
  CollectedRecord records[kCollectedRecords];
};
static_assert(sizeof(CollectedRecord) == 64 && sizeof(Collection) == 2080);

inline constexpr std::uint32_t kInlineItems = 32;
inline constexpr std::uint32_t kInlineLayouts = 8;

/// Parameter of the statistics kernel, by value. A small table is in the parameters: then no copy precedes
/// the launch, and `launch.items` and `launch.layouts` are null. Such a launch can also pack values: its
/// items are `launch.count` items with statistics, followed by `packs` items to pack, whose tiles are
/// numbered after the tiles of the statistics.
struct InlineLaunch {
  Launch launch;              // tiles: of all items
  std::uint64_t stats_tiles;  // tiles of the items with statistics
  std::uint64_t pack_tiles;   // tiles of the items to pack
  // Addresses of kGuardWords words before and after the packed values, or null. The block that finishes the
  // last item stores `guard` and zeros there, after all results and values, and before the commit word.
  void* guards[2];
  std::uint64_t guard;
  std::uint32_t packs;
  std::uint32_t unused;
  Item items[kInlineItems];
  ItemLayout layouts[kInlineLayouts];
};
// Before CUDA 12.1 the parameters of a kernel have at most 4,096 bytes.
static_assert(sizeof(InlineLaunch) <= 4096);

inline constexpr std::uint32_t kGuardWords = 8;

/// Number of counters at Launch::finished_tiles. The counters of an item begin at first_tile / kGroupTiles +
/// 2 * (position of the item): one per group, then one for the groups.
TDCORE_HD constexpr std::uint64_t counters_of(std::uint64_t tiles, std::uint64_t items) noexcept {
  return tiles / kGroupTiles + 2 * items;
}

}  // namespace tdcore::device
