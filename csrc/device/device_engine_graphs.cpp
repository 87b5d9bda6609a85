// DeviceEngine, fourth part: epochs of graphs, and records with the results of their batches.
#include <cstddef>

#include "device/device_engine.hpp"

namespace tdcore {
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
  DropReason reason = DropReason::kDeviceError;
  if (on_.load(std::memory_order_relaxed) || resume()) {
    const bool captures = device_->is_capturing(stream);
    if (!captures && graphs_.arm(*device_, stream)) return true;
    if (captures) reason = DropReason::kGraphCapture;
    if (!captures) (void)pause("the device rejected work");
  }
  // It is not known which of the graphs the step replays.
  main_.count_drop(reason, graphs_.tensors(), 0);
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

/// Counts the tensors of a record whose work has ended.
void DeviceEngine::count_collected(const InFlightRecord& record) noexcept {
  const device::CollectionOutcome& outcome = *record.outcome;
  main_.count_capture(outcome.tensors, 0, 0);
  if (outcome.without_values > 0)
    main_.count_drop(DropReason::kGraphCapture, outcome.without_values, outcome.without_value_bytes);
}

DeviceEngine::Fit DeviceEngine::find_collection_room(std::size_t records) noexcept {
  TableSize outcomes;
  outcomes.stats = 1;  // not empty
  outcomes.upload_bytes = records * sizeof(device::CollectionOutcome);
  const Fit fit = find_room(outcomes, 0, 0);
  return fit == Fit::kFits && table_allocations_.free() < records ? Fit::kTablesFull : fit;
}

bool DeviceEngine::collect(std::span<const GraphRecord> made, StreamHandle stream) noexcept {
  const auto on_device = [this](auto* pinned) {
    return static_cast<decltype(pinned)>(device_->device_address(pinned));
  };
  Allocation& last = table_allocations_.next(made.size() - 1);
  device::CollectionOutcome* outcomes = nullptr;
  device::Collection collection{};
  collection.epoch = graphs_.epoch();
  collection.count = static_cast<std::uint32_t>(made.size());
  collection.entry_bytes = sizeof(Entry);
  collection.status_offset = offsetof(Entry, status) - offsetof(Entry, stats);
  collection.no_row = static_cast<std::uint32_t>(EntryStatus::kNoRow);
  collection.aborted = static_cast<std::uint32_t>(RecordKind::kAborted);
  for (std::size_t i = made.size(); i-- > 0;) {  // the last one first, which has the event and the outcomes
    Allocation& allocation = table_allocations_.next(i);
    allocation.start(stream);
    allocation.awaited = last.event;
    allocation.memory = scratch_space_.place(0);
    if (&allocation == &last) {
      last.pinned =
          table_space_.place(round_up(made.size() * sizeof(device::CollectionOutcome), kDeviceAlignBytes));
      table_space_.take(last.pinned);
      outcomes = reinterpret_cast<device::CollectionOutcome*>(tables_ + table_space_.at(last.pinned));
    }
    const GraphRecord& one = made[i];
    const DeviceCommit commit = lane_->hand_over(one.room);
    if (commit.word == nullptr) return fail("the ring was closed");
    outcomes[i] = {};
    InFlightRecord& record = allocation.record;
    start_record(record, one.room, commit);
    record.tensors = one.count;
    record.outcome = outcomes + i;
    Slot& slot = lane_memory_->slots()[one.room.ticket & (lane_memory_->slot_count() - 1)];
    collection.records[i] = {.entries = on_device(&one.entries->stats),
                             .batches = on_device(one.batches),
                             .sources = on_device(one.sources),
                             .outcome = on_device(outcomes + i),
                             .kind = on_device(&slot.kind),
                             .commit_word = commits_by_host() ? nullptr : on_device(commit.word),
                             .commit_value = commit.value,
                             .count = one.count,
                             .batch_count = one.batch_count};
  }
  if (!device_->collect(stream, collection)) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      InFlightRecord& record = table_allocations_.next(i).record;
      record.tensors = 0;  // the caller counts them
      record.outcome = nullptr;
      (void)lose(record);
    }
    return pause("the device rejected work");
  }
  launched_ += made.size();
  if (!device_->record_event(last.event, stream)) {
    for (std::size_t i = 0; i < made.size(); ++i) table_allocations_.next(i).record.incomplete = true;
    unfenced_ = {.tables = made.size(), .payload = false};
    (void)pause("the device rejected work");
    (void)fence();
    return true;  // lose() counts the tensors, unless the device commits the record
  }
  table_allocations_.push(made.size());
  retry_pause_ = first_retry_;
  return true;
}

}  // namespace tdcore
