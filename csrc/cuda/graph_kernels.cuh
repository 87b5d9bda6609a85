// graph_kernels.cuh: the gate of a graph's statistics kernels, and the collection of their results.
//
// The gate of a graph is read by all of its statistics kernels, and written only by the graph itself. So all
// blocks of a replay find the same value, whatever other streams do to the armed word meanwhile.
// Threads: one thread for the gate; one block of kThreads threads for a collection.
#pragma once

#include "cuda/values.cuh"

namespace tdcore::device {

struct CollectionState {
  u32 sources[kThreads];  // of the next kThreads entries
  bool counts;            // whether the batch has run and was not collected from another graph
};

inline constexpr u32 kResultWords = sizeof(TensorStats) / sizeof(u64);
static_assert(sizeof(TensorStats) % sizeof(u64) == 0);

TDCORE_DEVICE u64* words_of(const void* results, u64 stride, u32 number) {
  return reinterpret_cast<u64*>(reinterpret_cast<std::uintptr_t>(results) + number * stride);
}

/// Copies words [first, end) of the results of all entries.
TDCORE_DEVICE void copy_results(CollectionState& state, const Collection& collection, u32 first, u32 end) {
  TDCORE_NO_UNROLL
  for (u32 begin = 0; begin < collection.count; begin += kThreads) {
    const u32 left = collection.count - begin, some = left < kThreads ? left : kThreads;
    __syncthreads();  // all warps have read the previous sources
    if (threadIdx.x < some) state.sources[threadIdx.x] = collection.sources[begin + threadIdx.x];
    __syncthreads();
    TDCORE_NO_UNROLL
    for (u32 entry = threadIdx.x / kLanes; entry < some; entry += kThreads / kLanes) {
      if (state.sources[entry] == kNoResult) continue;
      const u64* from = words_of(collection.results, collection.stride, state.sources[entry]);
      u64* to = words_of(collection.entries, collection.stride, begin + entry);
      for (u32 word = first + threadIdx.x % kLanes; word < end; word += kLanes) to[word] = from[word];
    }
  }
}

TDCORE_DEVICE void collect_kernel(CollectionState& state, const Collection& collection) {
  if (threadIdx.x == 0) {
    state.counts = *collection.ran == collection.epoch && *collection.claim != collection.epoch;
    if (state.counts) {
      *collection.claim = collection.epoch;
    } else {
      *collection.kind = collection.aborted;
    }
    *collection.outcome = state.counts ? 1 : 2;
  }
  __syncthreads();
  if (state.counts) {
    // An entry's count, its first word, marks the other words as complete.
    copy_results(state, collection, 1, kResultWords);
    __threadfence_system();
    __syncthreads();
    copy_results(state, collection, 0, 1);
  }
  __threadfence_system();  // all results before the word
  __syncthreads();
  if (threadIdx.x == 0 && collection.commit_word != nullptr) {
    store_release_system(collection.commit_word, collection.commit_value);
  }
}

}  // namespace tdcore::device
