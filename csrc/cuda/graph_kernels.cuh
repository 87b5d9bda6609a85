// graph_kernels.cuh: the gate of a graph's statistics kernels, and the collection of their results.
//
// The gate of a graph is read by all of its statistics kernels, and written only by the graph itself. So all
// blocks of a replay find the same value, whatever other streams do to the armed word meanwhile.
// Threads: one thread for the gate; one block of kThreads threads for each record of a collection.
#pragma once

#include "cuda/values.cuh"

namespace tdcore::device {

struct CollectionState {
  const u64* results[kThreads];          // by entry; null: nothing is copied
  CollectionOutcome outcomes[kThreads];  // by batch
  bool counts[kThreads];                 // by batch
};

inline constexpr u32 kResultWords = sizeof(TensorStats) / sizeof(u64);
static_assert(sizeof(TensorStats) % sizeof(u64) == 0 && kCollectedEntries == kThreads);

TDCORE_DEVICE unsigned char* entry_of(const Collection& collection, const CollectedRecord& record,
                                      u32 entry) {
  return reinterpret_cast<unsigned char*>(record.entries) + u64{entry} * collection.entry_bytes;
}

/// Copies words [first, end) of the results of all entries.
TDCORE_DEVICE void copy_results(const CollectionState& state, const Collection& collection,
                                const CollectedRecord& record, u32 first, u32 end) {
  TDCORE_NO_UNROLL
  for (u32 entry = threadIdx.x / kLanes; entry < record.count; entry += kThreads / kLanes) {
    const u64* from = state.results[entry];
    if (from == nullptr) continue;
    u64* to = reinterpret_cast<u64*>(entry_of(collection, record, entry));
    for (u32 word = first + threadIdx.x % kLanes; word < end; word += kLanes) to[word] = from[word];
  }
}

/// Decides which batches count. Thread t decides for batch t.
TDCORE_DEVICE void choose_batches(CollectionState& state, const Collection& collection,
                                  const CollectedRecord& record) {
  if (threadIdx.x >= record.batch_count) return;
  const CollectedBatch batch = record.batches[threadIdx.x];
  const bool counts = *batch.ran == collection.epoch && *batch.claim != collection.epoch;
  if (counts) *batch.claim = collection.epoch;
  state.counts[threadIdx.x] = counts;
  state.outcomes[threadIdx.x] = {batch.tensors, batch.without_values, batch.without_value_bytes};
}

/// Reads the source of entry t in thread t. Removes the row of an entry whose batch does not count.
TDCORE_DEVICE void read_sources(CollectionState& state, const Collection& collection,
                                const CollectedRecord& record) {
  if (threadIdx.x >= record.count) return;
  const CollectedEntry source = record.sources[threadIdx.x];
  const bool counts = state.counts[source.batch];
  state.results[threadIdx.x] = counts ? reinterpret_cast<const u64*>(source.result) : nullptr;
  if (!counts)
    entry_of(collection, record, threadIdx.x)[collection.status_offset] =
        static_cast<unsigned char>(collection.no_row);
}

/// One thread.
TDCORE_DEVICE void write_outcome(const CollectionState& state, const Collection& collection,
                                 const CollectedRecord& record) {
  CollectionOutcome sum{};
  bool any = false;
  TDCORE_NO_UNROLL
  for (u32 batch = 0; batch < record.batch_count; ++batch) {
    if (!state.counts[batch]) continue;
    any = true;
    sum.tensors += state.outcomes[batch].tensors;
    sum.without_values += state.outcomes[batch].without_values;
    sum.without_value_bytes += state.outcomes[batch].without_value_bytes;
  }
  *record.outcome = sum;
  if (!any) *record.kind = collection.aborted;
}

TDCORE_DEVICE void collect_kernel(CollectionState& state, const Collection& collection) {
  const CollectedRecord& record = collection.records[blockIdx.x];
  choose_batches(state, collection, record);
  __syncthreads();
  read_sources(state, collection, record);
  if (threadIdx.x == 0) write_outcome(state, collection, record);
  __syncthreads();
  // An entry's count, its first word, marks the other words as complete.
  copy_results(state, collection, record, 1, kResultWords);
  __threadfence_system();
  __syncthreads();
  copy_results(state, collection, record, 0, 1);
  __threadfence_system();  // all results before the word
  __syncthreads();
  if (threadIdx.x == 0 && record.commit_word != nullptr) {
    store_release_system(record.commit_word, record.commit_value);
  }
}

}  // namespace tdcore::device
