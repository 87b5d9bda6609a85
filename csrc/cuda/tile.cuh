// tile.cuh: statistics of one tile, computed by one block.
//
// Thread t takes vectors t, t + 256, ... of the tile. The block merges its warps' values (passes.cuh) in a
// fixed order and collects the histogram.
// Threads: all threads of a block call these functions together.
#pragma once

#include "cuda/passes.cuh"

namespace tdcore::device {

/// Sums the threads' columns and resets them to zero.
TDCORE_DEVICE void collect_histogram(Shared& shared) {
  constexpr u32 kParts = kThreads / kLog2Bins;  // threads that share a row
  const u32 bin = threadIdx.x / kParts, part = threadIdx.x % kParts;
  u32 sums = 0;  // two sums of 16 bits: a bin of a tile has at most kTileElements values
  TDCORE_UNROLL
  for (u32 i = 0; i < kRowWords / kParts; ++i) {
    // Each row begins one step later than the previous row, so the rows of a warp have no bank conflicts.
    u32& word = shared.histogram[bin * kRowWords + (part + kParts * (i + bin)) % kRowWords];
    sums += (word & 0x00FF00FF) + (word >> 8 & 0x00FF00FF);
    word = 0;
  }
  u32 count = (sums & 0xFFFF) + (sums >> 16);
  TDCORE_UNROLL
  for (u32 distance = 1; distance != kParts; distance *= 2) {
    count += __shfl_xor_sync(kAllLanes, count, distance);
  }
  if (part == 0) {
    shared.bins[bin] = count;
    if (count != 0) atomicAdd(&shared.binned, count);
  }
}
static_assert(kTileElements < 0x10000);

/// Writes the doubles of `to`, without its counts.
TDCORE_DEVICE void write_values(TensorStats& to, const Values& values) {
  const bool none = !(values.finite > 0);
  const double nan = __builtin_nan("");
  to.min = none ? nan : values.min;
  to.max = none ? nan : values.max;
  to.mean = none ? nan : values.mean;
  to.m2 = none ? 0 : values.m2;
  to.abs_sum = none ? 0 : values.abs_sum;
  to.square_sum = none ? 0 : values.square_sum;
  to.abs_min = none ? nan : values.abs_min;
  to.abs_max = none ? nan : values.abs_max;
}

/// Number of subnormal values, for types for which it follows from the bins.
TDCORE_DEVICE u32 subnormal_in_bins(const u32* bins, Dtype dtype) {
  const int first_normal = dtype == Dtype::kF16 || dtype == Dtype::kF8E5M2 ? -14
                           : dtype == Dtype::kF8E4M3                       ? -6
                                                                           : kLog2Min;
  u32 count = 0;
  for (int bin = 0; bin < first_normal - kLog2Min; ++bin) count += bins[bin];
  return count;
}

/// Writes a tile's result except the bins. One thread.
TDCORE_DEVICE void write_tile(Shared& shared, TensorStats& to, Values values) {
  const Dtype dtype = static_cast<Dtype>(shared.task.item.dtype);
  const u32 elements = shared.task.elements;
  const u32 finite = elements - shared.nan - shared.pos_inf - shared.neg_inf;
  const u32 zeros = has_values(dtype) ? finite - shared.binned : 0;
  if (shared.task.tiles != 1) to.count = elements;  // finish_item() stores the count of a result last
  to.nan_count = shared.nan;
  to.pos_inf_count = shared.pos_inf;
  to.neg_inf_count = shared.neg_inf;
  to.zero_count = zeros;
  to.subnormal_count = shared.subnormal + subnormal_in_bins(shared.bins, dtype);
  if (zeros != 0) values.abs_min = 0;
  write_values(to, values);
  shared.binned = shared.nan = shared.pos_inf = shared.neg_inf = shared.subnormal = 0;
}

/// Computes the statistics of the current tile. Complete after the next barrier of the block.
TDCORE_DEVICE void reduce_tile(Shared& shared) {
  reduce_warp(shared);
  __syncthreads();
  collect_histogram(shared);
  Values values = threadIdx.x < kWarps ? shared.warps[threadIdx.x] : no_values();
  if (threadIdx.x < kLanes) merge_lanes(values, kWarps);
  __syncthreads();
  TensorStats& to = *shared.task.to;
  if (threadIdx.x < kLog2Bins) to.log2_counts[threadIdx.x] = shared.bins[threadIdx.x];
  if (threadIdx.x == 0) write_tile(shared, to, values);
}

}  // namespace tdcore::device
