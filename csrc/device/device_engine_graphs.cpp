// DeviceEngine, fourth part: epochs of graphs, and records with the results of their batches.
#include <cstring>

#include "device/device_engine.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kCollected = 1;  // Collection::outcome

}  // namespace

void DeviceEngine::sweep_graphs() noexcept {
  reclaim();
  graphs_.sweep(read_batches());
  has_graphs_.store(graphs_.any(), std::memory_order_relaxed);
}

bool DeviceEngine::arm_graphs(StreamHandle stream) noexcept {
  if (!here()) return false;
  const std::scoped_lock lock(mutex_);
  if (closed_ || device_ == nullptr) return false;
  graphs_.end_epoch();
  sweep_graphs();
  if (!graphs_.any()) return false;
  if (on_.load(std::memory_order_relaxed) || resume()) {
    if (device_->is_capturing(stream)) return false;
    if (graphs_.arm(*device_, stream)) return true;
    (void)pause("the device rejected work");
  }
  // It is not known which of the graphs the step replays.
  main_.count_drop(DropReason::kDeviceError, graphs_.tensors(), 0);
  return false;
}

bool DeviceEngine::begin_collection(std::vector<std::shared_ptr<const GraphBatch>>& batches,
                                    StreamHandle stream) noexcept {
  if (!here()) return false;
  const std::scoped_lock lock(mutex_);
  if (closed_ || !graphs_.armed()) return false;
  if (device_->is_capturing(stream)) {
    // The collection would become a part of the graph. The armed word stays until the next epoch, so replays
    // still compute results, which no collection takes.
    graphs_.end_epoch();
    main_.count_drop(DropReason::kGraphCapture, graphs_.tensors(), 0);
    return false;
  }
  try {
    batches = graphs_.begin_collection();
    return true;
  } catch (const std::exception&) {  // no host memory
    main_.count_drop(DropReason::kTooLarge, graphs_.tensors(), 0);
    return false;
  }
}

void DeviceEngine::end_collection(StreamHandle stream) noexcept {
  const std::scoped_lock lock(mutex_);
  graphs_.end_collection(launched_);
  graphs_.end_epoch();
  if (on_.load(std::memory_order_relaxed) && !graphs_.disarm(*device_, stream))
    (void)pause("the device rejected work");
}

TableSize DeviceEngine::collection_table(std::uint64_t entries) noexcept {
  TableSize size;
  size.stats = 1;  // not empty
  size.upload_bytes = sizeof(std::uint64_t) + entries * sizeof(std::uint32_t);
  return size;
}

/// Counts the tensors of a record whose work has ended.
void DeviceEngine::count_collected(const InFlightRecord& record) noexcept {
  if (*record.outcome != kCollected) return;
  main_.count_capture(record.tensors, 0, 0);
  if (record.without_values > 0)
    main_.count_drop(DropReason::kGraphCapture, record.without_values, record.without_value_bytes);
}

bool DeviceEngine::collect(const GraphRecord& made) noexcept {
  Allocation& table = table_allocations_.next();
  table.start(made.stream);
  table.memory = scratch_space_.place(0);
  table.pinned =
      table_space_.place(round_up(collection_table(made.items.size()).upload_bytes, kDeviceAlignBytes));
  table_space_.take(table.pinned);
  const DeviceCommit commit = lane_->hand_over(made.room);
  if (commit.word == nullptr) return fail("the ring was closed");
  keep_record(table,
              {.room = made.room,
               .size = made.size,
               .table = {},
               .items = made.items,
               .guard = made.guard,
               .stream = made.stream},
              commit);
  // Pinned: the outcome, then the sources.
  std::byte* const pinned = tables_ + table_space_.at(table.pinned);
  std::memset(pinned, 0, sizeof(std::uint64_t));
  std::memcpy(pinned + sizeof(std::uint64_t), made.sources.data(), made.sources.size_bytes());
  InFlightRecord& record = table.record;
  record.outcome = reinterpret_cast<const std::uint64_t*>(pinned);
  for (const PlannedTensor& item : made.items) {
    if (item.reason != DropReason::kGraphCapture) continue;
    ++record.without_values;
    record.without_value_bytes += view_bytes(item.request->tensor);
  }
  Slot& slot = lane_memory_->slots()[made.room.ticket & (lane_memory_->slot_count() - 1)];
  device::Collection collection{
      .results = reinterpret_cast<const TensorStats*>(made.batch.results),
      .entries = static_cast<TensorStats*>(device_->device_address(made.room.data + sizeof(BatchHeader))),
      .stride = sizeof(Entry),
      .sources = static_cast<const std::uint32_t*>(device_->device_address(pinned + sizeof(std::uint64_t))),
      .epoch = graphs_.epoch(),
      .ran = made.batch.ran,
      .claim = made.batch.claim,
      .outcome = static_cast<std::uint64_t*>(device_->device_address(pinned)),
      .kind = static_cast<std::uint32_t*>(device_->device_address(&slot.kind)),
      .commit_word = nullptr,
      .commit_value = commit.value,
      .count = static_cast<std::uint32_t>(made.items.size()),
      .aborted = static_cast<std::uint32_t>(RecordKind::kAborted)};
  if (!commits_by_host())
    collection.commit_word = static_cast<std::uint64_t*>(device_->device_address(commit.word));
  const bool sent = device_->collect(made.stream, collection);
  if (!sent) {
    record.tensors = 0;  // the plan counts them
    record.outcome = nullptr;
    (void)lose(record);
    return pause("the device rejected work");
  }
  ++launched_;
  if (!device_->record_event(table.event, made.stream)) {
    record.incomplete = true;
    unfenced_ = {.table = true, .payload = false};
    (void)pause("the device rejected work");
    (void)fence();
    return true;  // lose() counts the tensors, unless the device commits the record
  }
  table_allocations_.push();
  retry_pause_ = first_retry_;
  return true;
}

}  // namespace tdcore
