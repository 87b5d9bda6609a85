// graph_rig.hpp: buffers of a training on a simulated device, and graphs that read them, for the C++ tests of
// DeviceCapture. Threads: as for Rig.
#pragma once

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/leak.hpp"
#include "device_rig.hpp"

namespace tdcore::testing {

inline constexpr std::uint8_t kStats = kWantStats;

inline RingConfig roomy() { return config(8 * kMiB, 1024, FullPolicy::kDrop); }

/// Buffers of a training, which change on its stream, and graphs that read them.
struct GraphRig : Rig {
  using Rig::Rig;
  ~GraphRig() { end(); }
  GraphRig(const GraphRig&) = delete;
  GraphRig& operator=(const GraphRig&) = delete;

  /// Ends the training, whose buffers do not live as long as the device. Further calls do nothing.
  void end() {
    if (device == nullptr) return;
    const bool synchronized = device->synchronize(kTraining);
    for (const std::uint64_t graph : recorded) device->destroy_graph(graph);
    captures->close();
    device = nullptr;
    if (!synchronized)
      leak_on_purpose(std::move(buffers_));  // a lost device may be in the middle of its work
  }
  /// Records a graph of one capture call per list of requests.
  std::uint64_t graph_of(const std::vector<std::vector<TensorRequest>>& calls) {
    const std::uint64_t graph = device->begin_capture(kTraining);
    for (const std::vector<TensorRequest>& requests : calls) refused += capture(requests).not_kept;
    device->end_capture(kTraining);
    recorded.push_back(graph);
    return graph;
  }
  void fill(Tensor& tensor, std::uint64_t seed) {
    device->enqueue(kTraining, [&tensor, seed] { tensor.fill(seed); });
  }
  CaptureResult collect(std::int64_t step) {
    return captures->collect_graphs({.step = step, .mode_step = step, .mode = 1, .call = 9}, kTraining);
  }
  /// A saved step: the graphs are replayed in this order.
  void saved(std::int64_t step, const std::vector<std::uint64_t>& graphs) {
    (void)captures->arm_graphs(kTraining);
    for (const std::uint64_t graph : graphs) REQUIRE(device->replay(graph, kTraining));
    (void)collect(step);
  }
  std::vector<IndexRow> rows() {
    REQUIRE(device->synchronize(kTraining));  // the test writes to the buffers
    const DrainedBatches drained = drain_all();
    REQUIRE(drained.torn == 0);
    release(*consumer, drained);
    return drained.rows;
  }

  /// A buffer that lives as long as the work of the device.
  Tensor& buffer(Dtype dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {},
                 std::uint64_t behind = 0) {
    return buffers_.emplace_back(dtype, std::move(shape), std::move(strides), behind);
  }

  std::uint64_t refused = 0;
  std::vector<std::uint64_t> recorded;

 private:
  std::list<Tensor> buffers_;
};

inline bool is_of(const IndexRow& row, const Tensor& tensor) {
  const TensorStats want = reduce_strided(tensor.view(), 0, element_count(tensor.view()));
  return row.entry.has_stats == 1 && std::memcmp(&row.entry.stats, &want, sizeof want) == 0;
}

}  // namespace tdcore::testing
