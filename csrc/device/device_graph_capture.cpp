#include "device/device_graph_capture.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <memory>
#include <new>
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

/// A request of a record, and the place of its result.
struct Origin {
  std::uint32_t batch;   // number in the record
  std::uint32_t result;  // number of the result in the batch
};

/// Launches the collection of records, several at a time.
class CollectionLauncher {
 public:
  CollectionLauncher(DeviceEngine& engine, Ring& main, StreamHandle stream) noexcept
      : engine_(engine), main_(main), stream_(stream) {}
  ~CollectionLauncher() { launch(); }  // also if a waiter unwinds the thread
  CollectionLauncher(const CollectionLauncher&) = delete;
  CollectionLauncher& operator=(const CollectionLauncher&) = delete;

  void add(const GraphRecord& record) noexcept {
    records_[count_++] = record;
    if (count_ == records_.size()) launch();
  }
  void launch() noexcept;
  std::uint64_t not_kept() const noexcept { return not_kept_; }
  std::uint64_t launches() const noexcept { return launches_; }

 private:
  DeviceEngine& engine_;
  Ring& main_;
  const StreamHandle stream_;
  std::array<GraphRecord, device::kCollectedRecords> records_{};
  std::size_t count_ = 0;
  std::uint64_t launches_ = 0;
  std::uint64_t not_kept_ = 0;
};

void CollectionLauncher::launch() noexcept {
  if (count_ == 0) return;
  const std::span<const GraphRecord> records(records_.data(), count_);
  count_ = 0;
  ++launches_;
  const std::scoped_lock lock(engine_.mutex());
  const auto fit = engine_.find_collection_room(records.size());
  const bool fits = fit == DeviceEngine::Fit::kFits;
  if (fits && engine_.collect(records, stream_)) return;
  for (const GraphRecord& record : records) {
    if (!fits) engine_.lane().abort(record.room);
    const bool full = fit == DeviceEngine::Fit::kTablesFull;
    main_.count_drop(full ? DropReason::kArenaFull : DropReason::kDeviceError, record.count, 0);
    not_kept_ += record.count;
  }
}

/// Plan for one record: the requests of some batches of graphs.
class CollectionPlan final : public CapturePlan {
 public:
  /// origins: by request of run(); of the batches `members`.
  CollectionPlan(DeviceEngine& engine, Ring& main, const StepContext& step_context, RoomWaiter waiter,
                 CollectionLauncher& launcher, std::span<const GraphBatch* const> members,
                 std::span<const Origin> origins, std::vector<PlannedTensor>& items) noexcept
      : CapturePlan(engine.lane(), main, step_context, waiter,
                    {.record_bytes = engine.limits().record_bytes,
                     .guard_bytes = kGuardBytes,
                     // The graph reads the tensors, so this plan splits none, and needs only one record.
                     .tiles = std::numeric_limits<std::uint64_t>::max() - 1,
                     .tail_bytes = DeviceGraphs::kTailBytes},
                    items),
        engine_(engine),
        launcher_(launcher),
        members_(members),
        origins_(origins) {}

 private:
  void prepare() noexcept override;
  void before_wait() noexcept override { launcher_.launch(); }
  void make(const Reservation& room, const BatchSize& size) noexcept override;
  void write_tail(GraphRecord& record) noexcept;

  DeviceEngine& engine_;
  CollectionLauncher& launcher_;
  const std::span<const GraphBatch* const> members_;
  const std::span<const Origin> origins_;
};

/// Gives rows whose values were requested the reason why they have none.
void CollectionPlan::prepare() noexcept {
  for (PlannedTensor& item : items()) {
    const Origin& origin = origins_[item.index];
    if ((members_[origin.batch]->requests[origin.result].flags & kWantPayload) != 0)
      item.reason = DropReason::kGraphCapture;
  }
}

/// Writes what the device reads, and the parts of the entries that differ between batches.
void CollectionPlan::write_tail(GraphRecord& record) noexcept {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    device::CollectedBatch& batch = *new (record.batches + i) device::CollectedBatch{};
    batch.ran = members_[i]->ran;
    batch.claim = members_[i]->claim;
  }
  for (std::size_t i = 0; i < items().size(); ++i) {
    const PlannedTensor& item = items()[i];
    const Origin& origin = origins_[item.index];
    const GraphBatch& batch = *members_[origin.batch];
    const bool reduced = item.stats && item.elements > 0;
    Entry& entry = record.entries[i];
    entry.call = batch.call;
    if (item.stats && !reduced) entry.stats = empty_stats();
    const std::byte* const result = batch.results + origin.result * sizeof(Entry);
    device::CollectedEntry& source = *new (record.sources + i) device::CollectedEntry{};
    source.batch = origin.batch;
    if (reduced) source.result = reinterpret_cast<const TensorStats*>(result);
    device::CollectedBatch& sums = record.batches[origin.batch];
    ++sums.tensors;
    if (item.reason != DropReason::kGraphCapture) continue;
    ++sums.without_values;
    sums.without_value_bytes += view_bytes(item.request->tensor);
  }
}

void CollectionPlan::make(const Reservation& room, const BatchSize& size) noexcept {
  const std::uint64_t guard = [this] {
    const std::scoped_lock lock(engine_.mutex());
    return engine_.next_guard();
  }();
  GraphRecord record{.room = room,
                     .entries = write_rows(room.data, size, guard),
                     .count = static_cast<std::uint32_t>(items().size()),
                     .batch_count = static_cast<std::uint32_t>(members_.size())};
  auto* const tail = reinterpret_cast<std::byte*>(record.entries + record.count);
  record.batches = reinterpret_cast<device::CollectedBatch*>(tail);
  record.sources = reinterpret_cast<device::CollectedEntry*>(record.batches + record.batch_count);
  write_tail(record);
  uncount();  // the engine counts the tensors when the device has collected them
  launcher_.add(record);
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

/// Collects the batches of all graphs, in records of as many whole batches as fit. A batch whose tensors are
/// claimed by an earlier batch of the launch begins a new launch.
class GraphCollector {
 public:
  GraphCollector(DeviceEngine& engine, Ring& main, const StepContext& step_context, StreamHandle stream,
                 RoomWaiter waiter) noexcept
      : engine_(engine),
        main_(main),
        step_context_(step_context),
        waiter_(waiter),
        most_(engine.graphs().most_items()),
        launcher_(engine, main, stream) {
    lists_.clear();
  }

  void add(const GraphBatch& batch);
  /// Writes the last record, and launches.
  void finish();
  std::uint64_t not_kept() const noexcept { return not_kept_ + launcher_.not_kept(); }

 private:
  /// Memory that keeps its capacity between collections of a thread.
  struct Lists {
    std::vector<PlannedTensor> items;
    std::vector<TensorRequest> requests;
    std::vector<Origin> origins;
    std::vector<const GraphBatch*> members;
    std::vector<std::uint64_t> claimed;  // by claim: number of the last launch with it
    std::uint64_t next_launch = 1;

    void clear() noexcept {
      requests.clear();
      origins.clear();
      members.clear();
    }
  };
  static Lists& lists() {
    thread_local Lists lists;
    return lists;
  }

  void write();
  /// Number of the next launch, unique in the thread.
  std::uint64_t now() const noexcept { return lists_.next_launch + launcher_.launches(); }

  DeviceEngine& engine_;
  Ring& main_;
  const StepContext& step_context_;
  const RoomWaiter waiter_;
  const std::size_t most_;
  CollectionLauncher launcher_;
  Lists& lists_ = lists();
  std::uint64_t not_kept_ = 0;
};

/// Adds the tensors of a batch that were not captured outside of graphs.
void GraphCollector::add(const GraphBatch& batch) {
  if (lists_.requests.size() + batch.requests.size() > most_) write();
  if (batch.claim_number >= lists_.claimed.size()) lists_.claimed.resize(batch.claim_number + std::size_t{1});
  if (lists_.claimed[batch.claim_number] == now()) {
    write();
    launcher_.launch();
  }
  const std::size_t first = lists_.requests.size();
  lists_.requests.reserve(first + batch.requests.size());  // all or nothing is added
  lists_.origins.reserve(first + batch.requests.size());
  lists_.members.reserve(lists_.members.size() + 1);
  // Without memory the plan would skip requests, and the tail has only room for one batch per entry.
  lists_.items.reserve(most_);
  {
    const std::scoped_lock lock(engine_.mutex());
    for (std::uint32_t i = 0; i < batch.requests.size(); ++i) {
      if (engine_.graphs().was_captured(batch.requests[i].name)) continue;
      lists_.origins.push_back({.batch = static_cast<std::uint32_t>(lists_.members.size()), .result = i});
      lists_.requests.push_back(batch.requests[i]);
      if (lists_.requests.back().flags != 0) lists_.requests.back().flags = kWantStats;
    }
  }
  if (lists_.requests.size() == first) return;
  lists_.members.push_back(&batch);
  lists_.claimed[batch.claim_number] = now();
}

void GraphCollector::write() {
  const std::uint64_t before = now();
  CollectionPlan plan(engine_, main_, step_context_, waiter_, launcher_, lists_.members, lists_.origins,
                      lists_.items);
  not_kept_ += plan.run(lists_.requests).not_kept;
  // A launch in the meantime: the record belongs to the next launch, or was the last one of its launch.
  for (const GraphBatch* const batch : lists_.members) {
    if (now() != before) lists_.claimed[batch->claim_number] = now();
  }
  lists_.clear();
}

void GraphCollector::finish() {
  write();
  launcher_.launch();
  lists_.next_launch = now() + 1;
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
  const GraphCollection collection(engine, stream);
  GraphCollector collector(engine, main, step_context, stream, waiter);
  CaptureResult total;
  for (const std::shared_ptr<const GraphBatch>& batch : collection.batches()) {
    try {
      collector.add(*batch);
    } catch (const std::exception&) {  // no host memory
      main.count_drop(DropReason::kTooLarge, batch->requests.size(), 0);
      total.not_kept += batch->requests.size();
    }
  }
  collector.finish();
  total.not_kept += collector.not_kept();
  return total;
}

}  // namespace tdcore
