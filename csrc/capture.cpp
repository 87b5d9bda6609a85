#include "capture.hpp"

#include <ctime>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "capture_values.hpp"
#include "stats_cpu.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kNoRequest = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

/// Size and shape of a batch of `entries` with that much payload (each tensor's padded to kTensorAlignBytes).
struct BatchSize {
  std::uint64_t align;
  std::uint64_t payload_offset;
  std::uint64_t payload_bytes;
  std::uint64_t bytes;
};

BatchSize batch_size(std::uint64_t entries, std::uint64_t payload) noexcept {
  const std::uint64_t head = sizeof(BatchHeader) + entries * sizeof(Entry);
  if (payload == 0) return {kTensorAlignBytes, head, 0, head};
  const std::uint64_t align = payload >= kDirectPayloadBytes ? kPageBytes : kTensorAlignBytes;
  const std::uint64_t offset = round_up(head, align);
  const std::uint64_t padded = round_up(payload, align);
  return {align, offset, padded, offset + padded};
}

/// Most payload bytes that one record with one entry can take.
std::uint64_t part_capacity(std::uint64_t limit) noexcept {
  const std::uint64_t page_head = round_up(sizeof(BatchHeader) + sizeof(Entry), kPageBytes);
  if (limit >= page_head + kDirectPayloadBytes) return (limit - page_head) / kPageBytes * kPageBytes;
  const std::uint64_t head = round_up(sizeof(BatchHeader) + sizeof(Entry), kTensorAlignBytes);
  const std::uint64_t room = limit > head ? (limit - head) / kTensorAlignBytes * kTensorAlignBytes : 0;
  return std::min<std::uint64_t>(room, kDirectPayloadBytes - kTensorAlignBytes);
}

std::int64_t realtime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// One capture call.
class Call {
 public:
  Call(Ring& ring, const Moment& moment, Waiter waiter, std::vector<Item>& items) noexcept
      : ring_(ring),
        moment_(moment),
        waiter_(waiter),
        items_(items),
        limit_(ring.max_record_bytes()),
        time_ns_(realtime_ns()) {
    items_.clear();
  }

  void add_request(const Request& request, std::uint64_t index);
  void flush();
  CaptureResult result() const noexcept { return result_; }

 private:
  void add_tensor(const Request& request, std::uint64_t index);
  void add_parts(Item item, std::uint64_t item_bytes);
  void add(const Item& item);
  void skip(Item item, DropReason reason);
  void give_up(std::uint64_t index, DropReason reason, std::uint64_t bytes) noexcept;
  void drop(DropReason reason) noexcept;
  void degrade() noexcept;
  Reservation reserve(const BatchSize& size);
  void write(std::byte* record, const BatchSize& size) noexcept;
  void write_entry(const Item& item, std::uint32_t seq, Entry& entry) const noexcept;

  Ring& ring_;
  const Moment& moment_;
  const Waiter waiter_;
  std::vector<Item>& items_;   // of the batch that is being planned
  const std::uint64_t limit_;  // bytes of a record
  const std::int64_t time_ns_;
  std::uint64_t payload_ = 0;           // of items_, each padded
  std::uint64_t counted_ = kNoRequest;  // last request that was counted as not kept
  std::uint64_t lost_ = kNoRequest;     // last request that lost a part
  CaptureResult result_;
};

/// Counts bytes of a request that is not kept as asked; its tensor only the first time.
void Call::give_up(std::uint64_t index, DropReason reason, std::uint64_t bytes) noexcept {
  const bool first = counted_ != index;
  counted_ = index;
  ring_.count_drop(reason, first ? 1 : 0, bytes);
  if (first) ++result_.not_kept;
}

void Call::add_request(const Request& request, std::uint64_t index) {
  if (request.name == kNoName) {
    const bool has_bytes = request.status == EntryStatus::kOk && (request.flags & kWantPayload) != 0;
    give_up(index, DropReason::kNamesFull, has_bytes ? view_bytes(request.tensor) : 0);
    return;
  }
  if (request.status == EntryStatus::kOk) {
    add_tensor(request, index);
    return;
  }
  const Item item{.request = &request, .index = index, .status = request.status};
  if (request.status == EntryStatus::kSkipped) {
    skip(item, request.reason);
  } else {
    add(item);
  }
}

void Call::add_tensor(const Request& request, std::uint64_t index) {
  const TensorView& view = request.tensor;
  const std::uint64_t item_bytes = dtype_bytes(view.dtype);
  const bool payload = (request.flags & kWantPayload) != 0;
  const bool stats = (request.flags & kWantStats) != 0;
  Item item{.request = &request,
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
  if (batch_size(1, round_up(item.payload_bytes, kTensorAlignBytes)).bytes <= limit_) {
    add(item);
  } else {
    add_parts(item, item_bytes);
  }
}

/// Cuts a tensor that no record can hold into parts, all of the same size except for the last.
void Call::add_parts(Item item, std::uint64_t item_bytes) {
  const std::uint64_t elements = item.elements;
  const std::uint64_t per_part = part_capacity(limit_) / item_bytes;
  const std::uint64_t parts = per_part == 0 ? 0 : (elements - 1) / per_part + 1;
  if (parts == 0 || parts > std::numeric_limits<std::uint32_t>::max()) {
    skip(item, DropReason::kTooLarge);
    return;
  }
  item.parts = static_cast<std::uint32_t>(parts);
  for (item.part = 0; item.part < item.parts; ++item.part) {
    item.first_element = item.part * per_part;
    item.elements = std::min(per_part, elements - item.first_element);
    item.payload_bytes = item.elements * item_bytes;
    add(item);
    if (lost_ == item.index) {  // without that part the others are of no use
      give_up(item.index, DropReason::kRingFull, (elements - item.first_element) * item_bytes);
      items_.clear();  // held this part alone
      payload_ = 0;
      return;
    }
  }
}

void Call::skip(Item item, DropReason reason) {
  give_up(item.index, reason, item.payload_bytes);
  item.status = EntryStatus::kSkipped;
  item.reason = reason;
  item.stats = false;
  item.payload_offset = kNoPayload;
  item.payload_bytes = 0;
  add(item);
}

/// Puts an entry into the batch; writes the batch first where it would grow beyond a record.
void Call::add(const Item& item) {
  const std::uint64_t padded = round_up(item.payload_bytes, kTensorAlignBytes);
  if (!items_.empty() && batch_size(items_.size() + 1, payload_ + padded).bytes > limit_) flush();
  items_.push_back(item);
  if (item.payload_offset != kNoPayload) items_.back().payload_offset = payload_;
  payload_ += padded;
}

/// Room for a batch, waiting for it where the policy says so.
Reservation Call::reserve(const BatchSize& size) {
  for (;;) {
    const Reservation room = ring_.try_reserve(RecordKind::kBatch, size.bytes, size.align);
    if (room || size.bytes > limit_ || ring_.policy() != FullPolicy::kBlock) return room;
    if (!waiter_.wait(ring_, size.bytes, waiter_.context)) return {};
  }
}

/// Writes the planned batch, or counts its tensors as dropped.
void Call::flush() {
  if (items_.empty()) return;
  BatchSize size = batch_size(items_.size(), payload_);
  Reservation room = reserve(size);
  if (!room && ring_.policy() == FullPolicy::kDegrade && payload_ > 0) {
    size = batch_size(items_.size(), 0);
    room = reserve(size);
    if (room) degrade();
  }
  if (room) {
    write(room.data, size);
    ring_.commit(room);
  } else {
    drop(size.bytes > limit_ ? DropReason::kTooLarge : DropReason::kRingFull);
  }
  items_.clear();
  payload_ = 0;
}

void Call::drop(DropReason reason) noexcept {
  for (const Item& item : items_) {
    if (item.status == EntryStatus::kSkipped) continue;  // counted already
    give_up(item.index, reason, item.payload_bytes);
    if (item.part > 0 && lost_ != item.index) --result_.kept;  // counted with its first part
    lost_ = item.index;
  }
}

void Call::degrade() noexcept {
  for (Item& item : items_) {
    if (item.payload_bytes == 0) {  // none, or an empty tensor: kept as asked
      if (item.payload_offset != kNoPayload) item.payload_offset = 0;
      continue;
    }
    give_up(item.index, DropReason::kDegraded, item.payload_bytes);
    item.payload_offset = kNoPayload;
    item.payload_bytes = 0;
    item.stats = has_stats(item.request->tensor.dtype);
    item.reason = DropReason::kDegraded;
  }
}

void Call::write(std::byte* record, const BatchSize& size) noexcept {
  const auto entries = static_cast<std::uint32_t>(items_.size());
  const BatchHeader header{.magic = kBatchMagic,
                           .entries = entries,
                           .entry_bytes = sizeof(Entry),
                           .mode = moment_.mode,
                           .step = moment_.step,
                           .mode_step = moment_.mode_step,
                           .time_ns = time_ns_,
                           .payload_offset = size.payload_offset,
                           .payload_bytes = size.payload_bytes,
                           .guard = 0};
  std::memcpy(record, &header, sizeof(header));
  const std::uint32_t seq = ring_.next_seq(moment_.step, entries);
  std::byte* const payload = record + size.payload_offset;
  auto* const first = reinterpret_cast<Entry*>(record + sizeof(BatchHeader));
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < entries; ++i) {
    const Item& item = items_[i];
    write_entry(item, seq + i, *new (first + i) Entry);
    if (item.status == EntryStatus::kOk && item.part == 0) ++result_.kept;
    result_.payload_bytes += item.payload_bytes;
    if (item.payload_bytes == 0) continue;
    const std::uint64_t last = item.payload_offset + item.payload_bytes;
    end = round_up(last, kTensorAlignBytes);
    std::memset(payload + last, 0, end - last);  // no stale bytes between tensors
  }
  if (size.payload_bytes > end) std::memset(payload + end, 0, size.payload_bytes - end);
  write_values(ring_, items_, first, payload);
}

/// All but the values.
void Call::write_entry(const Item& item, std::uint32_t seq, Entry& entry) const noexcept {
  const TensorView& view = item.request->tensor;
  std::memset(&entry, 0, sizeof(entry));
  entry.payload_offset = item.payload_offset;
  entry.payload_bytes = item.payload_bytes;
  entry.element_offset = item.first_element;
  entry.elements = item.elements;
  for (int i = 0; i < view.ndim; ++i) entry.shape[i] = view.shape[i];
  entry.name = item.request->name;
  entry.call = moment_.call;
  entry.seq = seq;
  entry.part = item.part;
  entry.parts = item.parts;
  entry.dtype = view.dtype;
  entry.ndim = static_cast<std::uint8_t>(view.ndim);
  entry.status = item.status;
  entry.reason = item.reason;
  entry.has_stats = item.stats ? 1 : 0;
}

/// |stride| * (extent - 1) summed over all dimensions, in elements, does not overflow `limit`.
bool span_fits(const TensorView& view, std::uint64_t limit) noexcept {
  std::uint64_t span = 1;
  for (int i = 0; i < view.ndim; ++i) {
    const auto steps = static_cast<std::uint64_t>(view.shape[i] - 1);
    const std::int64_t stride = view.strides[i];
    const std::uint64_t size = stride < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
                                          : static_cast<std::uint64_t>(stride);
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(steps, size, &reach) || __builtin_add_overflow(span, reach, &span) ||
        span > limit)
      return false;
  }
  return true;
}

}  // namespace

bool wait_plainly(Ring& ring, std::uint64_t bytes, void*) { return ring.wait_for_room(bytes); }

std::uint64_t view_bytes(const TensorView& view) noexcept {
  return element_count(view) * dtype_bytes(view.dtype);
}

DropReason check_view(const TensorView& view) noexcept {
  const std::uint64_t item_bytes = view.dtype < Dtype::kCount ? dtype_bytes(view.dtype) : 0;
  if (item_bytes == 0) return DropReason::kUnsupportedDtype;
  if (view.ndim < 0 || view.ndim > static_cast<int>(kMaxDims)) return DropReason::kTooLarge;
  const std::uint64_t limit = kMaxBytes / item_bytes;
  std::uint64_t elements = 1;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] < 0) return DropReason::kUnreadable;
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(view.shape[i]), &elements))
      return DropReason::kTooLarge;
  }
  if (elements == 0) return DropReason::kNone;
  if (elements > limit || (view.strides != nullptr && !span_fits(view, limit))) return DropReason::kTooLarge;
  return view.data == nullptr ? DropReason::kNoStorage : DropReason::kNone;
}

CaptureResult capture(Ring& ring, std::span<const Request> requests, const Moment& moment, Waiter waiter) {
  if (!ring.usable()) return {};
  thread_local std::vector<Item> items;  // keeps its room from call to call
  Call call(ring, moment, waiter, items);
  std::uint64_t index = 0;
  try {
    for (; index < requests.size(); ++index) call.add_request(requests[index], index);
  } catch (const std::bad_alloc&) {  // no memory for the plan
    std::uint64_t lost = requests.size() - index;
    ring.count_drop(DropReason::kTooLarge, lost, 0);
    call.flush();
    CaptureResult result = call.result();
    result.not_kept += lost;
    return result;
  }
  call.flush();
  return call.result();
}

}  // namespace tdcore
