// stats_kernel.cuh: merges the results of tiles to results of items, and finishes a launch. The loop over the
// tiles is in capture_kernel.cuh.
//
// A block writes a tile's result to Launch::partials and counts the tile. The block that finishes a group of
// kGroupTiles tiles merges their results; the block that finishes the last group of an item merges the
// groups. The order of the merges depends only on the item, so results have the same bits for any grid and
// any order of the blocks. With one level instead of two, the last block alone would read 624 bytes per tile
// of a huge tensor, which takes longer than the tensor.
//
// Memory order: all threads of a block write and synchronize at a barrier; then thread 0 fences and counts
// (release). The thread that finds the count complete fences (acquire), and its block synchronizes at a
// barrier before it reads. Threads: all threads of a block call these functions together.
#pragma once

#include "cuda/tile.cuh"

namespace tdcore::device {

/// The last item that begins at or before a tile; `from` is such an item.
TDCORE_DEVICE u32 item_of(const Item* items, u32 end, u64 tile, u32 from) {
  u32 count = end - from;  // candidates from `from` on
  while (count > 1) {      // the lanes of a warp check 32 items at a time
    const u32 stride = (count + kLanes - 1) / kLanes, ask = (threadIdx.x % kLanes) * stride;
    const bool before = ask < count && items[from + ask].first_tile <= tile;
    const u32 last = static_cast<u32>(__popc(__ballot_sync(kAllLanes, before))) - 1;
    from += last * stride;
    count = count - last * stride < stride ? count - last * stride : stride;
  }
  return from;
}

/// Counts one more of `all`. True for all threads of the last block, which can then read the writes of the
/// other blocks before their counts.
TDCORE_DEVICE bool is_last(Shared& shared, u32* counter, u64 all) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    shared.last = atomicAdd(counter, 1u) + 1 == all;
    if (shared.last) {
      *counter = 0;  // no block counts any more
      __threadfence();
    }
  }
  __syncthreads();
  return shared.last;
}

TDCORE_DEVICE Values values_of(const TensorStats& stats) {
  Values values;
  // Elements without statistics (complex) are counted, but have no values.
  values.finite = stats.min == stats.min ? static_cast<double>(finite_count(stats)) : 0;
  values.mean = stats.mean;
  values.m2 = stats.m2;
  values.abs_sum = stats.abs_sum;
  values.square_sum = stats.square_sum;
  values.min = stats.min;
  values.max = stats.max;
  values.abs_min = stats.abs_min;
  values.abs_max = stats.abs_max;
  return values;
}

/// Merges `count` results into `to`, which may be one of the results. The distance between two results is
/// `stride`. The count of an item's result is not written.
TDCORE_DEVICE void merge_results(Shared& shared, const TensorStats* results, u64 stride, u64 count,
                                 TensorStats& to) {
  const u32 column = threadIdx.x % (kThreads / 2), half = threadIdx.x / (kThreads / 2);
  const u32 word = column < kCountWords ? column : column + kValueWords;
  if (column < kColumns) {
    u64 sum = 0;
    TDCORE_UNROLL_4
    for (u64 i = half; i < count; i += 2) {
      sum += reinterpret_cast<const u64*>(results + i * stride)[word];
    }
    shared.columns[half][column] = sum;
  }
  Values values = no_values();
  TDCORE_NO_UNROLL
  for (u64 i = threadIdx.x; i < count; i += kThreads) merge_values(values, values_of(results[i * stride]));
  merge_lanes(values, kLanes);
  if (threadIdx.x % kLanes == 0) shared.warps[threadIdx.x / kLanes] = values;
  __syncthreads();
  values = threadIdx.x < kWarps ? shared.warps[threadIdx.x] : no_values();
  if (threadIdx.x < kLanes) merge_lanes(values, kWarps);
  if (threadIdx.x == 0) write_values(to, values);
  if (threadIdx.x < kColumns && (threadIdx.x != 0 || &to != shared.task.item.stats)) {
    reinterpret_cast<u64*>(&to)[word] = shared.columns[0][column] + shared.columns[1][column];
  }
}

/// Commits a finished launch, if it has a commit word. One thread.
TDCORE_DEVICE void commit(const Launch& launch) {
  if (launch.commit_word == nullptr) return;
  store_release_system(launch.commit_word, launch.gate != nullptr ? *launch.gate : launch.commit_value);
}

/// Stores the guards around packed values. One thread.
TDCORE_DEVICE void store_guards(const InlineLaunch& all) {
  TDCORE_NO_UNROLL
  for (u32 i = 0; i < kGuardWords; ++i) {
    static_cast<u64*>(all.guards[0])[i] = i == 0 ? all.guard : 0;
    static_cast<u64*>(all.guards[1])[i] = i == 0 ? all.guard : 0;
  }
}

/// Counts a finished item with statistics, or a packed tile. The last one commits. Called by one thread,
/// after a fence for the whole system that follows the writes of its block.
TDCORE_DEVICE void count_finished(const InlineLaunch& all) {
  const Launch& launch = all.launch;
  // Pairs with the same addition of the other blocks: the fence before it releases the writes of a block, and
  // the fence after it acquires the writes of all blocks.
  if (atomicAdd(launch.finished_items, 1u) + 1 != launch.count + all.pack_tiles) return;
  *launch.finished_items = 0;
  __threadfence_system();  // all results and values before the guards and the word
  if (all.guards[0] != nullptr) {
    store_guards(all);
    __threadfence_system();  // the guards before the word
  }
  commit(launch);
}

/// Called after the block has written an item's result. Stores its count, which marks the result as complete,
/// and counts the item.
TDCORE_DEVICE void finish_item(Shared& shared, const InlineLaunch& all) {
  __syncthreads();  // the result is written by all threads
  if (threadIdx.x != 0) return;
  __threadfence_system();
  shared.task.item.stats->count = shared.task.item.elements;
  __threadfence_system();
  count_finished(all);
}

/// Sets the current tile. Called by the first warp.
TDCORE_DEVICE void take(Shared& shared, const Launch& launch, u64 tile) {
  const u32 position = item_of(shared.items, launch.count, tile, shared.task.position);
  __syncwarp();  // all lanes have read shared.task.position before the first lane writes it
  if (threadIdx.x != 0) return;
  const Item item = shared.items[position];
  const u64 local = tile - item.first_tile, tiles = tiles_of(item.elements);
  const u64 left = item.elements - local * kTileElements;
  TileTask& task = shared.task;
  task.item = item;
  task.source = element_source(shared.layouts, item, local * kTileElements,
                               static_cast<u32>(dtype_bytes(static_cast<Dtype>(item.dtype))));
  task.tile = local;
  task.tiles = tiles;
  task.to = tiles == 1 ? item.stats : launch.partials + tile;
  task.position = position;
  task.elements = left < kTileElements ? static_cast<u32>(left) : kTileElements;
}

/// Merges the results of a group, or of all groups, if the block has finished them. True if the item is
/// finished.
TDCORE_DEVICE bool merge_tiles(Shared& shared, const Launch& launch) {
  const TileTask& task = shared.task;
  const u64 groups = (task.tiles - 1) / kGroupTiles + 1, first = task.tile / kGroupTiles * kGroupTiles;
  const u64 in_group = task.tiles - first < kGroupTiles ? task.tiles - first : kGroupTiles;
  TensorStats* partials = launch.partials + task.item.first_tile;
  u32* counters = launch.finished_tiles + task.item.first_tile / kGroupTiles + 2 * task.position;
  if (!is_last(shared, counters + first / kGroupTiles, in_group)) return false;
  merge_results(shared, partials + first, 1, in_group, groups == 1 ? *task.item.stats : partials[first]);
  if (groups == 1) return true;
  if (!is_last(shared, counters + groups, groups)) return false;
  merge_results(shared, partials, kGroupTiles, groups, *task.item.stats);
  return true;
}

}  // namespace tdcore::device
