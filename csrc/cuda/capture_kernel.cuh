// capture_kernel.cuh: the loop of the statistics kernel over the tiles of a launch: statistics first, then,
// in launches whose table is in the parameters, values to pack.
//
// A block that has packed a tile counts it like an item with statistics, so the block that finishes last
// stores the guards and commits, and one launch writes a whole record. Threads: all threads of a block call
// these functions together.
#pragma once

#include "cuda/pack_kernel.cuh"
#include "cuda/stats_kernel.cuh"

namespace tdcore::device {

/// Packs a tile of a launch whose table is in the parameters. Boxes would need more registers than the
/// statistics leave, so transposed tensors of such launches are small (device_small.hpp) and gathered.
TDCORE_DEVICE void pack_inline_tile(const InlineLaunch& all, u64 tile) {
  const u32 at = item_of(all.items, all.launch.count + all.packs, tile, all.launch.count);
  const Item& item = all.items[at];
  pack_tile<false>(nullptr, all.layouts, item, tile - item.first_tile);
  __syncthreads();  // the values are written by all threads
  if (threadIdx.x != 0) return;
  __threadfence_system();
  count_finished(all);
}

TDCORE_DEVICE void capture_kernel(Shared& shared, const InlineLaunch& all) {
  const Launch& launch = all.launch;
  // No other work writes to the gate while the launch runs, so all blocks decide alike.
  if (launch.gate != nullptr && *launch.gate == 0) return;
  for (u32 i = threadIdx.x; i < kLog2Bins * kRowWords; i += kThreads) shared.histogram[i] = 0;
  if (threadIdx.x == 0) {
    const bool uploaded = launch.items != nullptr;
    shared.items = uploaded ? launch.items : all.items;
    shared.layouts = uploaded ? launch.layouts : all.layouts;
    shared.task.position = 0;
    shared.binned = shared.nan = shared.pos_inf = shared.neg_inf = shared.subnormal = 0;
  }
  TDCORE_NO_UNROLL
  for (u32 at = blockIdx.x; at < static_cast<u32>(launch.tiles - launch.first_tile); at += gridDim.x) {
    const u64 tile = launch.first_tile + at;
    if (all.packs != 0 && tile >= all.stats_tiles) {
      pack_inline_tile(all, tile);
      continue;
    }
    __syncthreads();  // no thread writes to shared memory that another thread still reads
    if (threadIdx.x < kLanes) take(shared, launch, tile);
    __syncthreads();
    reduce_tile(shared);
    if (shared.task.tiles == 1 || merge_tiles(shared, launch)) finish_item(shared, all);
  }
  if (launch.tiles == 0 && blockIdx.x == 0 && threadIdx.x == 0) commit(launch);
}

}  // namespace tdcore::device
