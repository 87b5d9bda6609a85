// Statistics inside CUDA graphs under failures, from several threads, and in random programs: every tensor
// without the row of its last replay is counted or was not replayed.
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "graph_rig.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

void faults() {
  it("a device that fails at any piece of work loses no tensor in silence, and no row is stale", [] {
    for (const bool loses : {true, false}) {
      for (std::uint64_t n = 0; n < 40; ++n) {
        GraphRig rig({.seed = n, .fails_after = n, .failure_loses_work = loses}, roomy());
        Tensor& tensor = rig.buffer(Dtype::kF32, {100});
        const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
        const std::uint64_t in_graph = 1 - rig.refused;
        for (std::int64_t step = 0; step < 5; ++step) {
          rig.fill(tensor, static_cast<std::uint64_t>(step + 1));
          (void)rig.captures->arm_graphs(kTraining);
          (void)rig.device->replay(graph, kTraining);
          (void)rig.collect(step);
        }
        rig.end();
        const DrainedBatches drained = drain(*rig.consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
        std::uint64_t kept = 0;
        for (const IndexRow& row : drained.rows) {
          if (row.entry.status != EntryStatus::kOk) continue;
          ++kept;
          Tensor want(Dtype::kF32, {100});
          want.fill(static_cast<std::uint64_t>(row.step + 1));
          REQUIRE(is_of(row, want));
        }
        release(*rig.consumer, drained);
        REQUIRE(drained.torn == 0 && rig.consumer->pending_records() == 0);
        // A failed device does not replay, so a step after the failure may have no row and no count of a
        // tensor: its graph was not replayed.
        REQUIRE(kept + rig.dropped(DropReason::kDeviceError) <= 5 * in_graph + rig.refused);
        REQUIRE(in_graph == 0 || kept + rig.dropped(DropReason::kDeviceError) >= 4);
        REQUIRE(kept == rig.main.counters().tensors);
      }
    }
  });
  it("work that the device rejects for a while is counted, and later steps have their rows again", [] {
    for (std::uint64_t n = 6; n < 24; ++n) {
      GraphRig rig({.seed = n, .rejects_from = n, .rejects = 1}, roomy());
      Tensor& tensor = rig.buffer(Dtype::kF32, {100});
      const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
      for (std::int64_t step = 0; step < 6; ++step) {
        rig.fill(tensor, static_cast<std::uint64_t>(step + 1));
        rig.saved(step, {graph});
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      const std::vector<IndexRow> rows = rig.rows();
      std::uint64_t kept = 0;
      for (const IndexRow& row : rows) {
        if (row.entry.status != EntryStatus::kOk) continue;
        ++kept;
        tensor.fill(static_cast<std::uint64_t>(row.step + 1));
        REQUIRE(is_of(row, tensor));
      }
      REQUIRE(rig.refused == 1 || (kept >= 4 && kept + rig.dropped(DropReason::kDeviceError) >= 6));
    }
  });
  it("a full ring counts the tensors, and later steps are not stale", [] {
    GraphRig rig({}, config(64 * 1024, 16, FullPolicy::kDrop));
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
    for (std::int64_t step = 0; step < 100; ++step) {
      rig.fill(tensor, static_cast<std::uint64_t>(step + 1));
      rig.saved(step, {graph});
    }
    std::uint64_t kept = 0;
    for (const IndexRow& row : rig.rows()) {
      tensor.fill(static_cast<std::uint64_t>(row.step + 1));
      REQUIRE(is_of(row, tensor));
      ++kept;
    }
    REQUIRE(kept > 0 && kept + rig.dropped(DropReason::kRingFull) == 100);
    rig.saved(100, {});  // the results of step 99 are not those of step 100
    REQUIRE(rig.rows().empty());
  });
  it("a collection on a stream that is being captured adds nothing to the graph, and is counted", [] {
    GraphRig rig({.delay_us = 30}, roomy());
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1), tensor.request(kStats, 2)}});
    REQUIRE(rig.captures->arm_graphs(kTraining) && rig.device->replay(graph, kTraining));
    rig.recorded.push_back(rig.device->begin_capture(kTraining));
    (void)rig.collect(1);
    REQUIRE(!rig.captures->arm_graphs(kTraining));
    rig.device->end_capture(kTraining);
    REQUIRE(rig.rows().empty());
    REQUIRE(rig.dropped(DropReason::kGraphCapture) == 2 + 2);  // the collected step, and the one not armed
    REQUIRE(rig.device->replay(graph, kTraining));             // computes results that belong to no step
    (void)rig.collect(2);
    rig.saved(3, {graph});
    REQUIRE(rig.rows().size() == 2 && rig.device->violations() == 0);
    REQUIRE(rig.captures->report().error.empty());
  });
  it("a graph that ends in a saved step, while another one is recorded, has its rows", [] {
    GraphRig rig({.delay_us = 30}, roomy());
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
    REQUIRE(rig.captures->arm_graphs(kTraining) && rig.device->replay(graph, kTraining));
    rig.device->destroy_graph(graph);
    REQUIRE(rig.device->synchronize(kTraining));
    (void)rig.graph_of({{tensor.request(kStats, 2)}});
    (void)rig.collect(1);
    const std::vector<IndexRow> rows = rig.rows();
    REQUIRE(rows.size() == 1 && rows[0].entry.name == 1 && is_of(rows[0], tensor));
  });
  it("commits that are visible too early are detected", [] {
    GraphRig rig({.seed = 3, .delay_us = 200, .early_words = true}, roomy());
    Tensor& tensor = rig.buffer(Dtype::kF32, {1000});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1), tensor.request(kStats, 2)}});
    std::uint64_t rows = 0;
    for (std::int64_t step = 0; step < 30; ++step) {
      rig.saved(step, {graph});
      while (rows < 2 * static_cast<std::uint64_t>(step + 1)) {
        const DrainedBatches drained = drain(*rig.consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
        for (const IndexRow& row : drained.rows) REQUIRE(is_of(row, tensor));
        rows += drained.rows.size();
        release(*rig.consumer, drained);
      }
    }
    REQUIRE(rig.main.early_commits() > 0);
  });
  it("graphs may be replayed after close(), and then change nothing", [] {
    GraphRig rig({.delay_us = 30}, roomy());
    SimDevice* const device = rig.device;
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    const std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
    (void)rig.captures->arm_graphs(kTraining);
    for (int i = 0; i < 5; ++i) REQUIRE(device->replay(graph, kTraining));
    rig.captures->close();
    for (int i = 0; i < 5; ++i) REQUIRE(device->replay(graph, kTraining));
    REQUIRE(device->synchronize(kTraining) && device->violations() == 0);
    REQUIRE(!rig.captures->arm_graphs(kTraining) && rig.collect(1).not_kept == 0);
    device->destroy_graph(graph);
    rig.device = nullptr;
  });
}

/// Random programs: several graphs that are recorded, replayed and destroyed, buffers that change, saved
/// steps, captures outside of graphs. The rows must be those of a model.
void program(std::uint64_t seed, std::uint64_t steps) {
  std::mt19937_64 random{seed};
  const auto draw = [&random](std::uint64_t below) { return random() % below; };
  const CommitMode commit_mode = static_cast<CommitMode>(draw(3));
  GraphRig rig(
      {.seed = seed, .delay_us = static_cast<std::uint32_t>(draw(60)), .best_commit_mode = commit_mode},
      config(64 * kMiB, 4096, FullPolicy::kDrop));
  std::vector<Tensor*> buffers;
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t elements = static_cast<std::int64_t>(1 + draw(draw(4) == 0 ? 40'000 : 300));
    buffers.push_back(&rig.buffer(Dtype::kF32, {elements}));
  }
  std::vector<std::uint64_t> values(buffers.size(), 1);  // seeds, as the stream has set them
  struct Call {
    std::size_t buffer;
    std::uint32_t name;
  };
  struct Recorded {
    std::uint64_t number;
    std::vector<Call> calls;  // one tensor each
    std::vector<std::uint64_t> computed{};
  };
  std::vector<Recorded> graphs;
  std::map<std::pair<std::int64_t, std::uint32_t>, std::pair<std::size_t, std::uint64_t>> wanted;
  for (std::int64_t step = 0; step < static_cast<std::int64_t>(steps); ++step) {
    if (graphs.size() < 4 && draw(3) == 0) {
      Recorded made{.number = 0, .calls = {}};
      std::vector<std::vector<TensorRequest>> calls;
      for (std::uint64_t i = 1 + draw(3); i > 0; --i) {
        const Call call{draw(buffers.size()), static_cast<std::uint32_t>(10 * graphs.size() + i)};
        made.calls.push_back(draw(3) == 0 ? Call{call.buffer, static_cast<std::uint32_t>(i)} : call);
        calls.push_back({buffers[made.calls.back().buffer]->request(kStats, made.calls.back().name)});
      }
      const std::uint64_t wide = draw(16) == 0 ? 1 + draw(700) : 0;  // several records, shared between graphs
      const std::uint64_t first = 1000 * (1 + draw(2));
      for (std::uint64_t i = 0; i < wide; ++i) {
        made.calls.push_back({draw(buffers.size()), static_cast<std::uint32_t>(first + i)});
        calls.push_back({buffers[made.calls.back().buffer]->request(kStats, made.calls.back().name)});
      }
      made.number = rig.graph_of(calls);
      graphs.push_back(made);
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (draw(2) == 0) rig.fill(*buffers[i], values[i] = draw(1000) + 2);
    }
    const bool saved = draw(2) == 0;
    if (saved) REQUIRE(rig.captures->arm_graphs(kTraining) == !graphs.empty());
    for (Recorded& graph : graphs) graph.computed.clear();
    std::map<std::uint32_t, std::pair<std::size_t, std::uint64_t>> eager;
    for (std::uint64_t turn = draw(5); turn > 0; --turn) {
      if (!graphs.empty() && draw(4) != 0) {
        Recorded& graph = graphs[draw(graphs.size())];
        REQUIRE(rig.device->replay(graph.number, kTraining));
        graph.computed.clear();
        for (const Call& call : graph.calls) graph.computed.push_back(values[call.buffer]);
      } else if (saved && eager.empty()) {
        const std::size_t buffer = draw(buffers.size());
        const auto name = static_cast<std::uint32_t>(1 + draw(3));
        (void)rig.capture({buffers[buffer]->request(kStats, name)}, kTraining, step);
        eager[name] = {buffer, values[buffer]};
      }
      const std::size_t changed = draw(buffers.size());
      rig.fill(*buffers[changed], values[changed] = draw(1000) + 2);
    }
    if (saved) {
      (void)rig.collect(step);
      if (graphs.empty()) REQUIRE(!rig.captures->has_graphs());
      for (const Recorded& graph : graphs) {  // a later graph replaces the rows of an earlier one
        for (std::size_t i = 0; i < graph.computed.size(); ++i)
          wanted[{step, graph.calls[i].name}] = {graph.calls[i].buffer, graph.computed[i]};
      }
      for (const auto& [name, value] : eager) wanted[{step, name}] = value;
    }
    if (!graphs.empty() && draw(6) == 0) {
      rig.device->destroy_graph(graphs.back().number);
      graphs.pop_back();
      REQUIRE(rig.device->synchronize(kTraining));
    }
  }
  const std::vector<IndexRow> rows = rig.rows();
  REQUIRE(rig.device->synchronize(kTraining));
  REQUIRE(rows.size() == wanted.size() && rig.refused == 0 && rig.device->violations() == 0);
  for (const IndexRow& row : rows) {
    const auto found = wanted.find({row.step, row.entry.name});
    REQUIRE(found != wanted.end());
    if (found == wanted.end()) continue;
    Tensor& tensor = *buffers[found->second.first];
    tensor.fill(found->second.second);
    REQUIRE(is_of(row, tensor));
    wanted.erase(found);
  }
}

void threads() {
  it("a thread captures on another stream while graphs are recorded, replayed, collected and destroyed", [] {
    GraphRig rig({.delay_us = 20}, config(8 * kMiB, 4096, FullPolicy::kDrop));
    Tensor& tensor = rig.buffer(Dtype::kF32, {100});
    Tensor& other = rig.buffer(Dtype::kF32, {200});
    constexpr std::uint64_t kCaptures = 200;
    std::thread beside([&] {
      for (std::uint64_t i = 0; i < kCaptures; ++i) {
        const TensorRequest request = other.request(kStats, 50);
        (void)rig.captures->capture({&request, 1}, {.step = 0, .mode_step = 0, .mode = 1, .call = 0}, 9);
      }
    });
    std::uint64_t graph = rig.graph_of({{tensor.request(kStats, 1)}});
    for (std::int64_t step = 1; step <= 60; ++step) {
      rig.saved(step, {graph});
      if (step % 7 != 0) continue;
      rig.device->destroy_graph(graph);
      graph = rig.graph_of({{tensor.request(kStats, 1)}});
    }
    beside.join();
    REQUIRE(rig.device->synchronize(9));
    std::uint64_t replayed = 0, plain = 0;
    for (const IndexRow& row : rig.rows()) {
      if (row.entry.status != EntryStatus::kOk) continue;  // too much work in progress: counted
      REQUIRE(is_of(row, row.entry.name == 1 ? tensor : other));
      ++(row.entry.name == 1 ? replayed : plain);
    }
    // More than one tensor is counted for a step without room if a destroyed graph has not ended yet.
    const std::uint64_t dropped = rig.dropped(DropReason::kArenaFull) + rig.dropped(DropReason::kRingFull);
    REQUIRE(rig.refused == 0 && replayed + plain + dropped >= 60 + kCaptures && plain > 0 && replayed > 0);
    REQUIRE(rig.device->violations() == 0);
  });
}

void random_programs() {
  it("random programs of graphs have exactly the rows of their model", [] {
    for (std::uint64_t seed = 1; seed <= (kSanitized ? 15 : 60); ++seed) {
      const int before = failures.load(std::memory_order_relaxed);
      program(seed, 25);
      if (failures.load(std::memory_order_relaxed) == before) continue;
      std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
      return;
    }
  });
}

}  // namespace

int main() {
  faults();
  threads();
  random_programs();
  return result();
}
