#include "device/device_graph_capture.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "capture/capture_plan.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

/// Counts a tensor that cannot become a part of a graph.
void count_one(Ring& main, const TensorRequest& request, DropReason reason, CaptureResult& result) noexcept {
  if (request.status == EntryStatus::kAbsent) return;
  const bool ok = request.status == EntryStatus::kOk;
  const bool bytes = ok && (request.flags & kWantPayload) != 0;
  main.count_drop(ok ? reason : request.reason, 1, bytes ? view_bytes(request.tensor) : 0);
  ++result.not_kept;
}

/// Why a request cannot become a part of a graph; kNone if it can.
DropReason unfit_for_graphs(const TensorRequest& request) noexcept {
  if (request.status != EntryStatus::kOk) return request.reason;
  if (!has_name(request.name))
    return request.name == kUnfitName ? DropReason::kUnfitName : DropReason::kNamesFull;
  if (request.flags == 0 || has_stats(request.tensor.dtype)) return DropReason::kNone;
  // Values of a dtype without statistics could be captured outside of a graph.
  return (request.flags & kWantPayload) != 0 ? DropReason::kGraphCapture : DropReason::kUnsupportedDtype;
}

/// Plan for the record of one batch of a graph.
class CollectionPlan final : public CapturePlan {
 public:
  /// sources: by request of run(), the number of its result.
  CollectionPlan(DeviceEngine& engine, Ring& main, const StepContext& step_context, RoomWaiter waiter,
                 StreamHandle stream, const GraphBatch& batch, std::span<const std::uint32_t> sources,
                 std::vector<PlannedTensor>& items) noexcept
      : CapturePlan(engine.lane(), main, step_context, waiter,
                    {.record_bytes = engine.limits().record_bytes,
                     .guard_bytes = kGuardBytes,
                     // The graph reads the tensors, so this plan splits none, and needs only one record.
                     .tiles = std::numeric_limits<std::uint64_t>::max() - 1},
                    items),
        engine_(engine),
        stream_(stream),
        batch_(batch),
        sources_(sources) {}

 private:
  void prepare() noexcept override;
  void make(const Reservation& room, const BatchSize& size) noexcept override;

  DeviceEngine& engine_;
  const StreamHandle stream_;
  const GraphBatch& batch_;
  const std::span<const std::uint32_t> sources_;
};

/// Gives rows whose values were requested the reason why they have none.
void CollectionPlan::prepare() noexcept {
  for (PlannedTensor& item : items()) {
    if ((batch_.requests[sources_[item.index]].flags & kWantPayload) != 0)
      item.reason = DropReason::kGraphCapture;
  }
}

void CollectionPlan::make(const Reservation& room, const BatchSize& size) noexcept {
  const std::scoped_lock lock(engine_.mutex());
  const auto fit = engine_.find_room(DeviceEngine::collection_table(items().size()), 0, stream_);
  if (fit != DeviceEngine::Fit::kFits) {
    records().abort(room);
    return drop(fit == DeviceEngine::Fit::kOff ? DropReason::kDeviceError : DropReason::kArenaFull);
  }
  const std::uint64_t guard = engine_.next_guard();
  Entry* const entries = write_rows(room.data, size, guard);
  std::array<std::uint32_t, DeviceGraphs::kMostItems> sources{};
  for (std::size_t i = 0; i < items().size(); ++i) {
    const PlannedTensor& item = items()[i];
    const bool reduced = item.stats && item.elements > 0;
    if (item.stats && !reduced) entries[i].stats = empty_stats();
    sources[i] = reduced ? sources_[item.index] : device::kNoResult;
  }
  uncount();  // the engine counts the tensors when the device has collected them
  if (engine_.collect({.room = room,
                       .size = size,
                       .items = items(),
                       .sources = {sources.data(), items().size()},
                       .batch = batch_,
                       .guard = guard,
                       .stream = stream_}))
    return;
  drop(DropReason::kDeviceError);
}

/// The batches of all graphs. Ends the collection, also if a waiter unwinds the thread.
class GraphCollection {
 public:
  GraphCollection(DeviceEngine& engine, StreamHandle stream) noexcept
      : engine_(engine), stream_(stream), begun_(engine.begin_collection(batches_, stream)) {}
  ~GraphCollection() {
    if (begun_) engine_.end_collection(stream_);
  }
  GraphCollection(const GraphCollection&) = delete;
  GraphCollection& operator=(const GraphCollection&) = delete;
  std::span<const std::shared_ptr<const GraphBatch>> batches() const noexcept { return batches_; }

 private:
  DeviceEngine& engine_;
  const StreamHandle stream_;
  std::vector<std::shared_ptr<const GraphBatch>> batches_;
  const bool begun_;
};

/// The requests of a batch that were not captured outside of graphs, and the numbers of their results.
void choose(DeviceEngine& engine, const GraphBatch& batch, std::vector<TensorRequest>& requests,
            std::vector<std::uint32_t>& sources) {
  const std::scoped_lock lock(engine.mutex());
  requests.clear();
  sources.clear();
  for (std::uint32_t i = 0; i < batch.requests.size(); ++i) {
    if (engine.graphs().was_captured(batch.requests[i].name)) continue;
    requests.push_back(batch.requests[i]);
    if (requests.back().flags != 0) requests.back().flags = kWantStats;
    sources.push_back(i);
  }
}

}  // namespace

CaptureResult capture_into_graph(DeviceEngine& engine, Ring& main, std::span<const TensorRequest> requests,
                                 std::uint32_t call, StreamHandle stream) {
  CaptureResult result;
  thread_local std::vector<TensorRequest> fit;
  fit.clear();
  for (const TensorRequest& request : requests) {
    const DropReason reason = unfit_for_graphs(request);
    if (reason == DropReason::kNone && request.status == EntryStatus::kOk) {
      fit.push_back(request);
    } else {
      count_one(main, request, reason, result);
    }
  }
  const std::scoped_lock lock(engine.mutex());
  if (!engine.on()) {  // the device has failed meanwhile
    for (const TensorRequest& request : fit) count_one(main, request, DropReason::kDeviceError, result);
    return result;
  }
  engine.sweep_graphs();
  const std::size_t most = engine.graphs().most_items();
  for (std::size_t from = 0; from < fit.size(); from += most) {
    const std::span<const TensorRequest> some(fit.data() + from, std::min(most, fit.size() - from));
    if (engine.graphs().add(engine.device(), some, call, stream)) continue;
    for (const TensorRequest& request : some) count_one(main, request, DropReason::kGraphCapture, result);
  }
  engine.sweep_graphs();
  return result;
}

void note_captured(DeviceEngine& engine, std::span<const TensorRequest> requests) noexcept {
  if (!engine.has_graphs()) return;
  const std::scoped_lock lock(engine.mutex());
  if (engine.graphs().armed()) engine.graphs().note_captured(requests);
}

CaptureResult collect_graphs(DeviceEngine& engine, Ring& main, const StepContext& step_context,
                             StreamHandle stream, RoomWaiter waiter) {
  CaptureResult total;
  thread_local std::vector<PlannedTensor> items;
  thread_local std::vector<TensorRequest> requests;
  thread_local std::vector<std::uint32_t> sources;
  const GraphCollection collection(engine, stream);
  for (const std::shared_ptr<const GraphBatch>& batch : collection.batches()) {
    choose(engine, *batch, requests, sources);
    StepContext context = step_context;
    context.call = batch->call;
    const CaptureResult one =
        CollectionPlan(engine, main, context, waiter, stream, *batch, sources, items).run(requests);
    total.not_kept += one.not_kept;
  }
  return total;
}

}  // namespace tdcore
