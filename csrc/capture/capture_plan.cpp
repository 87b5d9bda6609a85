#include "capture/capture_plan.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "stats/cpu.hpp"

namespace tdcore {
namespace {

/// Maximum payload bytes of a record with one entry.
std::uint64_t part_capacity(const BatchLimits& limits) noexcept {
  const std::uint64_t guard = limits.guard_bytes;
  const std::uint64_t limit =
      limits.record_bytes > guard ? limits.record_bytes - guard : 0;  // for the guard behind the payload
  const std::uint64_t page_head = round_up(sizeof(BatchHeader) + sizeof(Entry) + guard, kPageBytes);
  if (limit >= page_head + kDirectPayloadBytes) return (limit - page_head) / kPageBytes * kPageBytes;
  const std::uint64_t head = round_up(sizeof(BatchHeader) + sizeof(Entry) + guard, kTensorAlignBytes);
  const std::uint64_t room = limit > head ? (limit - head) / kTensorAlignBytes * kTensorAlignBytes : 0;
  return std::min<std::uint64_t>(room, kDirectPayloadBytes - kTensorAlignBytes);
}

/// Tiles that are read. A row without values, with a reason, has none.
std::uint64_t tiles_of(const PlannedTensor& item) noexcept {
  return item.status == EntryStatus::kOk ? device::tiles_of(item.elements) : 0;
}

}  // namespace

CaptureResult CapturePlan::run(std::span<const TensorRequest> requests) {
  std::uint64_t index = 0;
  try {
    for (; index < requests.size(); ++index) add_request(requests[index], index);
  } catch (const std::bad_alloc&) {  // no memory for the plan
    const std::uint64_t lost = requests.size() - index;
    counts_.count_drop(DropReason::kTooLarge, lost, 0);
    result_.not_kept += lost;
  }
  flush();
  return result_;
}

CaptureResult CapturePlan::skip_all(std::span<const TensorRequest> requests, DropReason reason) {
  std::uint64_t index = 0;
  try {
    for (; index < requests.size(); ++index) {
      const TensorRequest& request = requests[index];
      if (!has_name(request.name) || request.status != EntryStatus::kOk) {
        add_request(request, index);
        continue;
      }
      const bool payload = (request.flags & kWantPayload) != 0;
      skip({.request = &request,
            .index = index,
            .elements = element_count(request.tensor),
            .payload_bytes = payload ? view_bytes(request.tensor) : 0},
           reason);
    }
  } catch (const std::bad_alloc&) {
    const std::uint64_t lost = requests.size() - index;
    counts_.count_drop(reason, lost, 0);
    result_.not_kept += lost;
  }
  flush();
  return result_;
}

/// Counts bytes of a request that is not kept as requested; its tensor is counted only the first time.
void CapturePlan::give_up(std::uint64_t index, DropReason reason, std::uint64_t bytes) noexcept {
  const bool first = counted_ != index;
  counted_ = index;
  counts_.count_drop(reason, first ? 1 : 0, bytes);
  if (first) ++result_.not_kept;
}

void CapturePlan::add_request(const TensorRequest& request, std::uint64_t index) {
  if (!has_name(request.name)) {
    const DropReason reason = request.name == kUnfitName ? DropReason::kUnfitName : DropReason::kNamesFull;
    const bool has_bytes = request.status == EntryStatus::kOk && (request.flags & kWantPayload) != 0;
    give_up(index, reason, has_bytes ? view_bytes(request.tensor) : 0);
    return;
  }
  if (request.status == EntryStatus::kOk) {
    add_tensor(request, index);
    return;
  }
  const PlannedTensor item{.request = &request, .index = index, .status = request.status};
  if (request.status == EntryStatus::kSkipped) {
    skip(item, request.reason);
  } else {
    add(item);
  }
}

void CapturePlan::add_tensor(const TensorRequest& request, std::uint64_t index) {
  const TensorView& view = request.tensor;
  const std::uint64_t item_bytes = dtype_bytes(view.dtype);
  const bool payload = (request.flags & kWantPayload) != 0;
  const bool stats = (request.flags & kWantStats) != 0;
  PlannedTensor item{.request = &request,
                     .index = index,
                     .elements = element_count(view),
                     .stats = stats && has_stats(view.dtype)};
  if (stats && !item.stats && !payload) {
    skip(item, DropReason::kUnsupportedDtype);
    return;
  }
  if (payload) {
    item.payload_offset = 0;
    item.payload_bytes = item.elements * item_bytes;
  }
  if (!fits(1, round_up(item.payload_bytes, kTensorAlignBytes))) {
    const std::uint64_t most = limited_ ? limits_.tiles * device::kTileElements : limits_.tiles;  // elements
    add_parts(item, item_bytes, std::min(part_capacity(limits_) / item_bytes, most));
  } else if (limited_ && device::tiles_of(item.elements) > limits_.tiles) {
    add_parts(item, item_bytes, limits_.tiles * device::kTileElements);
  } else {
    add(item);
  }
}

/// Cuts a tensor that no record can hold into parts, all of the same size except for the last.
void CapturePlan::add_parts(PlannedTensor item, std::uint64_t item_bytes, std::uint64_t per_part) {
  const std::uint64_t elements = item.elements;
  const std::uint64_t parts = per_part == 0 ? 0 : (elements - 1) / per_part + 1;
  if (parts == 0 || parts > std::numeric_limits<std::uint32_t>::max()) {
    skip(item, DropReason::kTooLarge);
    return;
  }
  const std::uint64_t saved_bytes = item.payload_offset == kNoPayload ? 0 : item_bytes;  // of an element
  item.parts = static_cast<std::uint32_t>(parts);
  for (item.part = 0; item.part < item.parts; ++item.part) {
    item.first_element = item.part * per_part;
    item.elements = std::min(per_part, elements - item.first_element);
    item.payload_bytes = item.elements * saved_bytes;
    add(item);
    if (lost_ == item.index) {  // the other parts are of no use without the lost part
      give_up(item.index, lost_reason_, (elements - item.first_element) * saved_bytes);
      items_.clear();  // contained only this part
      add_up();
      return;
    }
  }
}

void CapturePlan::skip(PlannedTensor item, DropReason reason) {
  skip_in_place(item, reason);
  add(item);
}

void CapturePlan::skip_in_place(PlannedTensor& item, DropReason reason) noexcept {
  if (item.reason != DropReason::kDegraded) give_up(item.index, reason, item.payload_bytes);  // else counted
  item.status = EntryStatus::kSkipped;
  item.reason = reason;
  item.stats = false;
  item.payload_offset = kNoPayload;
  item.payload_bytes = 0;
}

/// Handles a part without a row, or any item of a batch that gets no room.
void CapturePlan::lose(const PlannedTensor& item, DropReason reason) noexcept {
  if (item.reason != DropReason::kDegraded) give_up(item.index, reason, item.payload_bytes);  // else counted
  if (item.part > 0 && lost_ != item.index) --result_.kept;  // counted with its first part
  lost_ = item.index;
  lost_reason_ = reason;
}

/// Whether a batch of this size fits into a record. The entries of a plan with a tail fit, see BatchLimits.
bool CapturePlan::fits(std::uint64_t entries, std::uint64_t payload) const noexcept {
  return entries * sizeof(Entry) + payload <= sure_bytes_ ||
         batch_size(entries, payload, limits_.guard_bytes).bytes <= limits_.record_bytes;
}

/// Whether the item would exceed the batch's limits of entries or tiles.
bool CapturePlan::is_over_limits(const PlannedTensor& item) const noexcept {
  return limited_ && (items_.size() >= limits_.entries || tiles_of(item) > limits_.tiles - tiles_);
}

/// Adds an item to the batch. If the batch would exceed a record, it is written first.
void CapturePlan::add(const PlannedTensor& item) {
  const std::uint64_t padded = round_up(item.payload_bytes, kTensorAlignBytes);
  if (!items_.empty() && (!fits(items_.size() + 1, payload_ + padded) || is_over_limits(item))) flush();
  items_.push_back(item);
  if (item.payload_offset != kNoPayload) items_.back().payload_offset = payload_;
  payload_ += padded;
  if (limited_) tiles_ += tiles_of(item);
}

/// Computes the places of the payloads again, after items were removed from the batch.
void CapturePlan::add_up() noexcept {
  payload_ = 0;
  tiles_ = 0;
  for (PlannedTensor& item : items_) {
    if (item.payload_offset != kNoPayload) item.payload_offset = payload_;
    payload_ += round_up(item.payload_bytes, kTensorAlignBytes);
    tiles_ += tiles_of(item);
  }
}

/// Reserves room for a batch that got none at once. Waits for room if the policy is to block.
Reservation CapturePlan::reserve_later(const BatchSize& size) {
  while (size.bytes <= limits_.record_bytes && records_.policy() == FullPolicy::kBlock) {
    before_wait();
    if (!waiter_.wait(records_, size.bytes, waiter_.context)) break;
    const Reservation room = records_.try_reserve(RecordKind::kBatch, size.bytes, size.align);
    if (room) return room;
  }
  return {};
}

/// Reserves room for a batch, at most after waiting.
Reservation CapturePlan::reserve(const BatchSize& size) {
  const Reservation room = records_.try_reserve(RecordKind::kBatch, size.bytes, size.align);
  return room ? room : reserve_later(size);
}

/// Writes the planned batch, or counts its tensors as dropped.
void CapturePlan::flush() {
  if (limited_ && !items_.empty()) prepare();
  if (!items_.empty()) {
    BatchSize size = batch_size(items_.size(), payload_, limits_.guard_bytes);
    if (limited_) size.bytes += items_.size() * limits_.tail_bytes;
    Reservation room = reserve(size);
    if (!room && records_.policy() == FullPolicy::kDegrade && payload_ > 0) {
      size = batch_size(items_.size(), 0, limits_.guard_bytes);
      room = reserve(size);
      if (room) degrade();
    }
    if (room) {
      make(room, size);
    } else {
      drop(size.bytes > limits_.record_bytes ? DropReason::kTooLarge : DropReason::kRingFull);
    }
  }
  items_.clear();
  payload_ = 0;
  tiles_ = 0;
}

void CapturePlan::drop(DropReason reason) noexcept {
  for (const PlannedTensor& item : items_) {
    if (item.status != EntryStatus::kSkipped) lose(item, reason);  // otherwise already counted
  }
}

void CapturePlan::degrade() noexcept {
  for (PlannedTensor& item : items_) {
    if (item.payload_bytes == 0) {  // no payload, or an empty tensor: kept as requested
      if (item.payload_offset != kNoPayload) item.payload_offset = 0;
      continue;
    }
    give_up(item.index, DropReason::kDegraded, item.payload_bytes);
    item.payload_offset = kNoPayload;
    item.payload_bytes = 0;
    item.stats = has_stats(item.request->tensor.dtype);
    item.reason = DropReason::kDegraded;
  }
  payload_ = 0;
}

Entry* CapturePlan::write_rows(std::byte* record, const BatchSize& size, std::uint64_t guard) noexcept {
  const auto entries = static_cast<std::uint32_t>(items_.size());
  const BatchHeader header{.magic = kBatchMagic,
                           .entries = entries,
                           .entry_bytes = sizeof(Entry),
                           .mode = step_context_.mode,
                           .step = step_context_.step,
                           .mode_step = step_context_.mode_step,
                           .time_ns = time_ns_,
                           .payload_offset = size.payload_offset,
                           .payload_bytes = size.payload_bytes,
                           .guard = guard};
  std::memcpy(record, &header, sizeof(header));
  const std::uint32_t seq = counts_.next_seq(step_context_.step, entries);
  auto* const first = reinterpret_cast<Entry*>(record + sizeof(BatchHeader));
  for (std::uint32_t i = 0; i < entries; ++i) {
    const PlannedTensor& item = items_[i];
    write_entry(item, seq + i, item.stats && guard == 0, *new (first + i) Entry);
    if (item.status == EntryStatus::kOk && item.part == 0) ++result_.kept;
    result_.payload_bytes += item.payload_bytes;
  }
  return first;
}

void CapturePlan::uncount() noexcept {
  for (const PlannedTensor& item : items_) {
    if (item.status == EntryStatus::kOk && item.part == 0) --result_.kept;
    result_.payload_bytes -= item.payload_bytes;
  }
}

/// Writes an entry without its values. `stats_follow`: complete statistics are written before the commit.
/// Otherwise statistics that are not written yet must read as zero.
void CapturePlan::write_entry(const PlannedTensor& item, std::uint32_t seq, bool stats_follow,
                              Entry& entry) const noexcept {
  constexpr std::size_t kStatsEnd = offsetof(Entry, stats) + sizeof(Entry::stats);
  const TensorView& view = item.request->tensor;
  if (!stats_follow) std::memset(&entry.stats, 0, sizeof(entry.stats));
  std::memset(reinterpret_cast<std::byte*>(&entry) + kStatsEnd, 0, sizeof(entry) - kStatsEnd);
  entry.payload_offset = item.payload_offset;
  entry.payload_bytes = item.payload_bytes;
  entry.element_offset = item.first_element;
  entry.elements = item.elements;
  for (int i = 0; i < view.ndim; ++i) entry.shape[i] = view.shape[i];
  entry.name = item.request->name;
  entry.call = step_context_.call;
  entry.seq = seq;
  entry.part = item.part;
  entry.parts = item.parts;
  entry.dtype = view.dtype;
  entry.ndim = static_cast<std::uint8_t>(view.ndim);
  entry.status = item.status;
  if (item.status == EntryStatus::kAbsent) {
    entry.absent = item.request->absent;
  } else {
    entry.reason = item.reason;
  }
  entry.has_stats = item.stats ? 1 : 0;
}

}  // namespace tdcore
