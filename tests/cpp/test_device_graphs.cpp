// Statistics inside CUDA graphs, on the simulated device: the rows of saved steps are those of the buffers at
// the last replay. test_device_graph_faults.cpp has failures, threads and random programs.
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "graph_rig.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

void replays() {
  for (const CommitMode commit_mode :
       {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll})
    it("saved steps have the statistics of their replay, and other steps no rows", [&] {
      GraphRig rig({.delay_us = 50, .best_commit_mode = commit_mode}, roomy());
      Tensor& first = rig.buffer(Dtype::kF32, {40, 30});
      Tensor& second = rig.buffer(Dtype::kF16, {3 * device::kTileElements + 5});
      const std::uint64_t graph =
          rig.graph_of({{first.request(kStats, 1), second.request(kStats, 2)}, {second.request(kStats, 3)}});
      REQUIRE(rig.refused == 0 && rig.rows().empty());
      std::map<std::int64_t, std::uint64_t> seeds;
      for (std::int64_t step = 0; step < 20; ++step) {  // the host does not wait for the device
        rig.fill(first, static_cast<std::uint64_t>(100 + step));
        rig.fill(second, static_cast<std::uint64_t>(200 + step));
        if (step % 3 != 0) {
          REQUIRE(rig.device->replay(graph, kTraining));
        } else {
          rig.saved(step, {graph});
        }
      }
      const std::vector<IndexRow> rows = rig.rows();
      REQUIRE(rows.size() == 7 * 3);
      std::map<std::pair<std::int64_t, std::uint32_t>, int> seen;
      for (const IndexRow& row : rows) {
        REQUIRE(row.step % 3 == 0 && row.mode_step == row.step && row.entry.call == 3);
        ++seen[{row.step, row.entry.name}];
        Tensor& tensor = row.entry.name == 1 ? first : second;
        tensor.fill(static_cast<std::uint64_t>((row.entry.name == 1 ? 100 : 200) + row.step));
        REQUIRE(is_of(row, tensor) && row.entry.ndim == tensor.shape.size() &&
                row.entry.shape[0] == tensor.shape[0] && row.entry.dtype == tensor.dtype);
      }
      REQUIRE(seen.size() == 21 && rig.main.counters().tensors == 21 && rig.device->violations() == 0);
    });
  it("of several replays in a step the last one counts, and a graph that was not replayed has no row", [] {
    GraphRig rig({}, roomy());
    Tensor& tensor = rig.buffer(Dtype::kF32, {50});
    Tensor& other = rig.buffer(Dtype::kF32, {50});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
    const std::uint64_t idle = rig.graph_of({{other.request(kStats, 2)}});
    (void)rig.captures->arm_graphs(kTraining);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      rig.fill(tensor, seed);
      REQUIRE(rig.device->replay(graph, kTraining));
    }
    (void)rig.collect(1);
    rig.saved(2, {});
    std::vector<IndexRow> rows = rig.rows();
    tensor.fill(3);
    REQUIRE(rows.size() == 1 && rows[0].step == 1 && is_of(rows[0], tensor));
    REQUIRE(rig.main.counters().tensors == 1);
    REQUIRE(rig.device->replay(idle, kTraining));  // before the epoch, and not in it
    rig.saved(3, {});
    REQUIRE(rig.rows().empty());
  });
  it("a tensor has one row per step: from outside of graphs, or of the graph that was recorded last", [] {
    GraphRig rig({}, roomy());
    Tensor& old = rig.buffer(Dtype::kF32, {50});
    Tensor& last = rig.buffer(Dtype::kF32, {60});
    Tensor& eager = rig.buffer(Dtype::kF32, {70});
    last.fill(7);
    const auto list = [](const Tensor& tensor) {
      return std::vector<TensorRequest>{tensor.request(kStats, 1), tensor.request(kStats, 2)};
    };
    const std::uint64_t first = rig.graph_of({list(old)});
    const std::uint64_t second = rig.graph_of({list(last)});
    rig.saved(1, {second, first});
    std::vector<IndexRow> rows = rig.rows();
    REQUIRE(rows.size() == 2 && is_of(rows[0], last) && is_of(rows[1], last));
    rig.saved(2, {first});
    rows = rig.rows();
    REQUIRE(rows.size() == 2 && is_of(rows[0], old) && is_of(rows[1], old));
    (void)rig.captures->arm_graphs(kTraining);
    (void)rig.capture({eager.request(kStats, 2)}, kTraining, 3);
    REQUIRE(rig.device->replay(second, kTraining));
    (void)rig.collect(3);
    rows = rig.rows();
    REQUIRE(rows.size() == 2 && rows[0].entry.name == 2 && is_of(rows[0], eager));
    REQUIRE(rows[1].entry.name == 1 && is_of(rows[1], last));
    rig.saved(4, {second});  // a later step has no capture outside of graphs
    REQUIRE(rig.rows().size() == 2);
  });
}

void tensors() {
  it("values are not captured in graphs: statistics are kept, and each row says why it has no values", [] {
    GraphRig rig({}, roomy());
    Tensor& tensor = rig.buffer(Dtype::kF32, {50});
    Tensor& empty = rig.buffer(Dtype::kF32, {0, 3});
    Tensor& number = rig.buffer(Dtype::kF64, {});
    Tensor& strided = rig.buffer(Dtype::kF32, {5, 4}, {8, 1}, 40);
    Tensor& complex = rig.buffer(Dtype::kC64, {4});
    TensorRequest bare = tensor.request(0, 6);
    const std::uint64_t graph = rig.graph_of(
        {{tensor.request(kAll, 1), tensor.request(kWantPayload, 2), empty.request(kAll, 3),
          number.request(kStats, 4), strided.request(kStats, 5), bare, complex.request(kAll, 7),
          tensor.request(kStats, kNoName), without_value(EntryStatus::kSkipped, DropReason::kSparse, 8),
          without_value(EntryStatus::kAbsent, DropReason::kNone, 9)}});
    REQUIRE(rig.refused == 3 && rig.dropped(DropReason::kGraphCapture) == 1 &&
            rig.dropped(DropReason::kNamesFull) == 1 && rig.dropped(DropReason::kSparse) == 1);
    for (std::int64_t step = 0; step < 2; ++step) {
      rig.saved(step, {graph});
      const std::vector<IndexRow> rows = rig.rows();
      REQUIRE(rows.size() == 6);
      for (const IndexRow& row : rows) {
        const bool wanted = row.entry.name <= 3;
        REQUIRE(row.entry.reason == (wanted ? DropReason::kGraphCapture : DropReason::kNone));
        REQUIRE(row.entry.status == EntryStatus::kOk && row.entry.payload_offset == kNoPayload);
        REQUIRE(row.entry.has_stats == (row.entry.name == 6 ? 0 : 1));
        if (row.entry.name <= 2) REQUIRE(is_of(row, tensor));
        if (row.entry.name == 3) REQUIRE(row.entry.stats.count == 0);
        if (row.entry.name == 4) REQUIRE(is_of(row, number));
        if (row.entry.name == 5) REQUIRE(is_of(row, strided));
      }
      REQUIRE(rig.dropped(DropReason::kGraphCapture) == 1 + 3 * static_cast<std::uint64_t>(step + 1));
      REQUIRE(rig.dropped_bytes(DropReason::kGraphCapture) ==
              32 + 400 * static_cast<std::uint64_t>(step + 1));
    }
  });
  it("without room in the pool tensors are counted, and the memory of graphs that ended is used again", [] {
    DeviceCaptureConfig memory = small_memory();
    memory.graph_bytes = kMiB;
    GraphRig rig({.delay_us = 30}, roomy(), memory);
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    std::vector<std::uint64_t> graphs;
    for (int i = 0; i < 6; ++i) graphs.push_back(rig.graph_of({{tensor.request(kStats, 1)}}));
    REQUIRE(rig.refused == 2 && rig.dropped(DropReason::kGraphCapture) == 2);  // blocks of 256 KiB
    for (int round = 0; round < 8; ++round) {
      for (const std::uint64_t graph : graphs) REQUIRE(rig.device->replay(graph, kTraining));
      rig.saved(round, {graphs[0]});
      for (const std::uint64_t graph : graphs) rig.device->destroy_graph(graph);
      graphs.clear();
      REQUIRE(rig.rows().size() == 1);
      REQUIRE(rig.device->synchronize(kTraining));
      for (int i = 0; i < 4; ++i) graphs.push_back(rig.graph_of({{tensor.request(kStats, 1)}}));
      REQUIRE(rig.refused == 2);
    }
    Tensor& huge = rig.buffer(Dtype::kU8, {40'000'000});
    (void)rig.graph_of({{huge.request(kStats, 1)}});
    REQUIRE(rig.refused == 3);
  });
  it("a capture of a library that does not provide its graph is counted", [] {
    GraphRig rig;
    Tensor& tensor = rig.buffer(Dtype::kF32, {10});
    rig.device->set_capturing(kTraining, true);
    REQUIRE(rig.capture({tensor.request(kStats)}).not_kept == 1 && !rig.captures->has_graphs());
    REQUIRE(!rig.captures->arm_graphs(kTraining) && rig.dropped(DropReason::kGraphCapture) == 1);
  });
}

void many_calls() {
  it("a graph of 20,000 capture calls has all rows of each saved step, while the host is ahead", [] {
    constexpr std::uint32_t kCalls = kSanitized ? 3'000 : 20'000;
    constexpr std::int64_t kSteps = 3;
    GraphRig rig({.delay_us = 0}, config(64 * kMiB, 1024, FullPolicy::kDrop));
    Tensor& tensor = rig.buffer(Dtype::kF32, {3});
    std::vector<std::vector<TensorRequest>> calls;
    for (std::uint32_t name = 0; name < kCalls; ++name) calls.push_back({tensor.request(kStats, name)});
    const std::uint64_t graph = rig.graph_of(calls);
    REQUIRE(rig.refused == 0);
    rig.device->pause();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      rig.fill(tensor, static_cast<std::uint64_t>(step + 5));
      const std::uint64_t before = rig.device->operations();
      rig.saved(step, {graph});
      // The armed word twice, and for each launch of 32 records one event. Replays are not counted.
      const std::uint64_t records = (kCalls + device::kCollectedEntries - 1) / device::kCollectedEntries;
      const std::uint64_t launches = (records + device::kCollectedRecords - 1) / device::kCollectedRecords;
      REQUIRE(rig.device->operations() - before <= 2 + 2 * launches);
    }
    rig.device->resume();
    const std::vector<IndexRow> rows = rig.rows();
    REQUIRE(rows.size() == kCalls * kSteps && rig.main.counters().tensors == kCalls * kSteps);
    std::vector<std::uint32_t> next(kSteps, 0);
    for (const IndexRow& row : rows) {
      REQUIRE(row.entry.name == next[static_cast<std::size_t>(row.step)]++ && row.entry.call == 3);
      if (row.entry.name % 500 != 0) continue;
      tensor.fill(static_cast<std::uint64_t>(row.step + 5));
      REQUIRE(is_of(row, tensor));
    }
    rig.saved(9, {});
    REQUIRE(rig.rows().empty() && rig.device->violations() == 0);
  });
  it("a collection that waits for room in the ring hands over its records first", [] {
    constexpr std::uint32_t kCalls = 2'000;
    RingConfig small = config(256 * 1024, 16, FullPolicy::kBlock);
    small.block_timeout = std::chrono::seconds(30);
    GraphRig rig({.delay_us = 10}, small);
    Tensor& tensor = rig.buffer(Dtype::kF32, {3});
    std::vector<std::vector<TensorRequest>> calls;
    for (std::uint32_t name = 0; name < kCalls; ++name) calls.push_back({tensor.request(kStats, name)});
    const std::uint64_t graph = rig.graph_of(calls);
    std::thread training([&] { rig.saved(1, {graph}); });
    std::uint64_t rows = 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (rows < kCalls && std::chrono::steady_clock::now() < deadline) {
      const DrainedBatches drained = drain(*rig.consumer, ~std::uint64_t{0}, 1, false);
      for (const IndexRow& row : drained.rows) REQUIRE(row.entry.name == rows++ && is_of(row, tensor));
      release(*rig.consumer, drained);
    }
    training.join();
    REQUIRE(rows == kCalls && rig.dropped(DropReason::kRingFull) == 0);
    REQUIRE(rig.rows().empty() && rig.main.counters().tensors == kCalls);
  });
  it("a capture call that is repeated in a graph has one row, and graphs of equal calls one row per step",
     [] {
       GraphRig rig({.delay_us = 20}, roomy());
       Tensor& first = rig.buffer(Dtype::kF32, {30});
       Tensor& again = rig.buffer(Dtype::kF32, {40});
       again.fill(9);
       std::vector<std::vector<TensorRequest>> calls;
       for (std::uint32_t name = 0; name < 500; ++name) {
         calls.push_back({first.request(kStats, name)});
         calls.push_back({again.request(kStats, name)});
       }
       std::vector<std::uint64_t> graphs;
       for (int i = 0; i < 4; ++i) graphs.push_back(rig.graph_of(calls));
       rig.saved(1, graphs);
       const std::vector<IndexRow> rows = rig.rows();
       REQUIRE(rows.size() == 500 && rig.main.counters().tensors == 500);
       for (const IndexRow& row : rows) REQUIRE(is_of(row, first));
     });
}

}  // namespace

int main() {
  replays();
  tensors();
  many_calls();
  return result();
}
