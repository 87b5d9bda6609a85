// The kernels of CUDA graphs, run on the CPU: the gate, launches with a gate, and collections.
#include <array>
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

/// Results of a batch, and a record.
struct Bench {
  explicit Bench(std::uint32_t count) : results(count), entries(count), sources(count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memset(&results[i].stats, static_cast<int>(i % 200 + 1), sizeof(TensorStats));
      sources[i] = i % 5 == 4 ? device::kNoResult : count - 1 - i;
    }
    std::memset(static_cast<void*>(entries.data()), 0, count * sizeof(Entry));
  }
  void collect() {
    const device::Collection collection{.results = &results[0].stats,
                                        .entries = &entries[0].stats,
                                        .stride = sizeof(Entry),
                                        .sources = sources.data(),
                                        .epoch = kEpoch,
                                        .ran = &ran,
                                        .claim = &claim,
                                        .outcome = &outcome,
                                        .kind = &kind,
                                        .commit_word = &word,
                                        .commit_value = 77,
                                        .count = static_cast<std::uint32_t>(entries.size()),
                                        .aborted = 3};
    emulation::run_blocks(1, device::kThreads, 1, 5, [&] { tdcore_collect(collection); });
  }
  bool entries_are_right(bool copied) const {
    const TensorStats nothing{};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const TensorStats& want =
          copied && sources[i] != device::kNoResult ? results[sources[i]].stats : nothing;
      if (std::memcmp(&entries[i].stats, &want, sizeof want) != 0) return false;
    }
    return true;
  }

  std::vector<Entry> results, entries;
  std::vector<std::uint32_t> sources;
  std::uint64_t ran = kEpoch, claim = 0, outcome = 0, word = 0;
  std::uint32_t kind = 1;
};

void a_collection_copies_the_results_of_its_epoch_before_it_commits() {
  for (const std::uint32_t count : {1U, 7U, 255U, 256U, 257U, 600U}) {
    Bench bench(count);
    bool whole = false;
    device::on_store_release = [&](std::uint64_t*, std::uint64_t) { whole = bench.entries_are_right(true); };
    bench.collect();
    device::on_store_release = nullptr;
    REQUIRE(whole && bench.word == 77 && bench.outcome == 1 && bench.kind == 1 && bench.claim == kEpoch);
  }
}

void a_batch_of_another_epoch_or_whose_tensors_are_claimed_aborts_its_record() {
  for (const bool claimed : {false, true}) {
    Bench bench(20);
    if (claimed) bench.claim = kEpoch;
    if (!claimed) bench.ran = kEpoch - 1;
    bench.collect();
    REQUIRE(bench.entries_are_right(false) && bench.word == 77 && bench.outcome == 2 && bench.kind == 3);
    REQUIRE(bench.claim == (claimed ? kEpoch : 0));
  }
}

}  // namespace

int main() {
  it("gates", a_launch_with_a_closed_gate_writes_nothing_and_with_an_open_gate_stores_its_value);
  it("collections", a_collection_copies_the_results_of_its_epoch_before_it_commits);
  it("other batches", a_batch_of_another_epoch_or_whose_tensors_are_claimed_aborts_its_record);
  return result();
}
