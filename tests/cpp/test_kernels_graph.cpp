// The kernels of CUDA graphs, run on the CPU: the gate, launches with a gate, and collections.
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "gpu_emulation.hpp"
// Included after the names that it uses.
#include "cuda/kernels.cuh"
#include "ring/record.hpp"
#include "stats/cpu.hpp"

using namespace tdcore;
using namespace tdcore::testing;

namespace {

constexpr std::uint64_t kEpoch = 41;

void a_launch_with_a_closed_gate_writes_nothing_and_with_an_open_gate_stores_its_value() {
  const std::vector<float> values(2 * device::kTileElements + 7, 1.5F);
  TensorStats result = empty_stats();
  std::vector<TensorStats> partials(3);
  std::array<std::uint32_t, 8> counters{};
  std::uint64_t ran = 0, gate = 0, armed = 0;
  device::Item item{};
  item.data = values.data();
  item.elements = values.size();
  item.stats = &result;
  item.layout = device::kContiguous;
  item.dtype = static_cast<std::uint8_t>(Dtype::kF32);
  device::InlineLaunch parameter{};
  device::Launch& launch = parameter.launch;
  launch.items = &item;
  launch.tiles = 3;
  launch.count = 1;
  launch.partials = partials.data();
  launch.finished_items = counters.data();
  launch.finished_tiles = counters.data() + 1;
  launch.commit_word = &ran;
  launch.commit_value = 5;
  launch.gate = &gate;
  const auto replay = [&] {
    emulation::run_blocks(1, 1, 1, 1, [&] { tdcore_gate(&gate, &armed); });
    emulation::run_blocks(2, device::kThreads, 2, 3, [&] { tdcore_stats(parameter); });
  };
  replay();
  REQUIRE(ran == 0 && result.count == 0);
  armed = kEpoch;
  replay();
  REQUIRE(ran == kEpoch && result.count == values.size() && result.mean == 1.5);
  for (const std::uint32_t counter : counters) REQUIRE(counter == 0);
  launch.tiles = launch.count = 0;  // tensors without elements
  armed = kEpoch + 1;
  replay();
  REQUIRE(ran == kEpoch + 1);
}

/// A record of a collection, and the results of its batches. Every fifth entry has no result.
struct CollectedBench {
  CollectedBench(std::uint32_t count, std::uint32_t batch_count)
      : results(count), entries(count), sources(count), ran(batch_count, kEpoch), claims(batch_count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memset(static_cast<void*>(&results[i]), static_cast<int>(i % 200 + 1), sizeof(TensorStats));
      sources[i].result = i % 5 == 4 ? nullptr : &results[count - 1 - i];
      sources[i].batch = i * batch_count / count;
    }
    std::memset(static_cast<void*>(entries.data()), 0, count * sizeof(Entry));
    for (std::uint32_t i = 0; i < batch_count; ++i)
      batches.push_back({.ran = &ran[i],
                         .claim = &claims[i],
                         .without_value_bytes = 1000,
                         .without_values = 10,
                         .tensors = i + 1});
  }
  device::CollectedRecord record() {
    return {.entries = &entries[0].stats,
            .batches = batches.data(),
            .sources = sources.data(),
            .outcome = &outcome,
            .kind = &kind,
            .commit_word = &word,
            .commit_value = 77,
            .count = static_cast<std::uint32_t>(entries.size()),
            .batch_count = static_cast<std::uint32_t>(batches.size())};
  }
  /// Whether the entries have the results of the batches that count, and are without a row otherwise.
  bool entries_are_right(const std::vector<bool>& counts) const {
    const TensorStats nothing{};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const bool counted = counts[sources[i].batch];
      const TensorStats& want = counted && sources[i].result != nullptr ? *sources[i].result : nothing;
      if (std::memcmp(&entries[i].stats, &want, sizeof want) != 0) return false;
      if (entries[i].status != (counted ? EntryStatus::kOk : EntryStatus::kNoRow)) return false;
    }
    return true;
  }
  /// Whether a collection in which these batches count has written everything.
  bool is_right(const std::vector<bool>& counts) const {
    std::uint64_t tensors = 0, some = 0;
    bool claimed = true;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      claimed = claimed && (!counts[i] || claims[i] == kEpoch);
      some += counts[i] ? 1 : 0;
      tensors += counts[i] ? i + 1 : 0;
    }
    return entries_are_right(counts) && claimed && word == 77 && kind == (some > 0 ? 1 : 3) &&
           outcome.tensors == tensors && outcome.without_values == 10 * some &&
           outcome.without_value_bytes == 1000 * some;
  }

  std::vector<TensorStats> results;
  std::vector<Entry> entries;
  std::vector<device::CollectedEntry> sources;
  std::vector<device::CollectedBatch> batches;
  std::vector<std::uint64_t> ran, claims;
  device::CollectionOutcome outcome{};
  std::uint64_t word = 0;
  std::uint32_t kind = 1;
};

void collect(std::vector<CollectedBench>& benches) {
  device::Collection collection{};
  collection.epoch = kEpoch;
  collection.count = static_cast<std::uint32_t>(benches.size());
  collection.entry_bytes = sizeof(Entry);
  collection.status_offset = offsetof(Entry, status) - offsetof(Entry, stats);
  collection.no_row = static_cast<std::uint32_t>(EntryStatus::kNoRow);
  collection.aborted = 3;
  for (std::size_t i = 0; i < benches.size(); ++i) collection.records[i] = benches[i].record();
  emulation::run_blocks(collection.count, device::kThreads, collection.count, 5,
                        [&] { tdcore_collect(collection); });
}

void a_collection_copies_the_results_of_its_epoch_before_it_commits() {
  for (const std::uint32_t batch_count : {1U, 3U, 7U}) {
    std::vector<CollectedBench> benches;
    benches.reserve(4);
    for (const std::uint32_t count : {7U, 31U, 255U, 256U}) benches.emplace_back(count, batch_count);
    const std::vector<bool> all(batch_count, true);
    std::size_t whole = 0;
    device::on_store_release = [&](std::uint64_t* word, std::uint64_t) {
      for (const CollectedBench& bench : benches)
        whole += word == &bench.word && bench.entries_are_right(all) ? 1 : 0;
    };
    collect(benches);
    device::on_store_release = nullptr;
    REQUIRE(whole == benches.size());
    for (const CollectedBench& bench : benches) REQUIRE(bench.is_right(all));
  }
  std::vector<CollectedBench> largest;
  largest.emplace_back(256, 256);
  collect(largest);
  REQUIRE(largest[0].is_right(std::vector<bool>(256, true)));
}

void entries_of_batches_that_do_not_count_have_no_row_and_a_record_without_rows_is_aborted() {
  for (unsigned pattern = 0; pattern < 27; ++pattern) {  // of each batch: counts, other epoch, claimed
    std::vector<CollectedBench> benches;
    benches.reserve(2);
    benches.emplace_back(20, 3);
    benches.emplace_back(256, 3);
    std::vector<bool> counts;
    unsigned left = pattern;
    for (std::size_t i = 0; i < 3; ++i, left /= 3) {
      counts.push_back(left % 3 == 0);
      for (CollectedBench& bench : benches) {
        if (left % 3 == 1) bench.ran[i] = kEpoch - 1;
        if (left % 3 == 2) bench.claims[i] = kEpoch;
      }
    }
    collect(benches);
    for (const CollectedBench& bench : benches) REQUIRE(bench.is_right(counts));
  }
}

}  // namespace

int main() {
  it("gates", a_launch_with_a_closed_gate_writes_nothing_and_with_an_open_gate_stores_its_value);
  it("collections", a_collection_copies_the_results_of_its_epoch_before_it_commits);
  it("other batches", entries_of_batches_that_do_not_count_have_no_row_and_a_record_without_rows_is_aborted);
  return result();
}
