// Also the part of DeviceEngine that sends small captures.
#include "device/device_small.hpp"

#include <algorithm>
#include <cstring>

#include "device/device_engine.hpp"

namespace tdcore {
namespace {

/// Counters of one launch, on memory lines of their own.
constexpr std::uint64_t kSlotBytes =
    round_up((device::counters_of(kInlineTiles, device::kInlineItems) + 1) * sizeof(std::uint32_t),
             std::uint64_t{128});

}  // namespace

bool measure_inline(std::span<const PlannedTensor> items, std::uint64_t payload_bytes,
                    const InlineLimits& limits, TableSize& size) noexcept {
  size = {};
  std::uint64_t pack_tiles = 0;
  bool partials = false;
  for (const PlannedTensor& item : items) {
    if (!is_packed(item) && !is_reduced(item)) continue;
    const std::uint64_t tiles = device::tiles_of(item.elements);
    size.layouts += needs_layout(item) ? 1 : 0;
    if (is_packed(item)) {
      ++size.packs;
      pack_tiles += tiles;
    }
    if (is_reduced(item)) {
      ++size.stats;
      size.stats_tiles += tiles;
      partials = partials || tiles > 1;
    }
    if (size.packs + size.stats > device::kInlineItems || size.layouts > device::kInlineLayouts ||
        size.stats_tiles + pack_tiles > limits.tiles)
      return false;
  }
  size.direct = size.packs > 0 && payload_bytes <= limits.direct_bytes;
  // Only the pack kernel transposes in shared memory.
  if (size.copies() && std::any_of(items.begin(), items.end(), is_transposed)) return false;
  if (partials) size.device_bytes = round_up(size.stats_tiles * sizeof(TensorStats), kDeviceAlignBytes);
  size.inlined = true;
  return true;
}

void fill_inline(std::span<const PlannedTensor> items, const TableSize& size, const InlinePlace& place,
                 device::InlineLaunch& launch) noexcept {
  ItemWriter stats(launch.items);
  ItemWriter packs(launch.items + size.stats, size.stats_tiles);
  write_items(items, packs, stats, launch.layouts, place.payload, place.first_stats);
  launch.launch.tiles = packs.tiles();
  launch.launch.count = size.stats;
  launch.launch.partials = place.partials;
  launch.launch.finished_items = place.counters;
  launch.launch.finished_tiles = place.counters + 1;
  launch.stats_tiles = size.stats_tiles;
  launch.pack_tiles = packs.tiles() - size.stats_tiles;
  launch.packs = size.packs;
  if (size.packs == 0) return;
  launch.guards[0] = place.payload - kGuardBytes;
  launch.guards[1] = place.payload + place.payload_bytes;
  launch.guard = place.guard;
}
static_assert(device::kGuardWords * sizeof(std::uint64_t) == kGuardBytes);

void zero_gaps(std::span<const PlannedTensor> items, std::byte* payload, std::uint64_t bytes) noexcept {
  std::uint64_t position = 0;
  for (const PlannedTensor& item : items) {
    if (!is_packed(item)) continue;
    std::memset(payload + position, 0, item.payload_offset - position);
    position = item.payload_offset + item.payload_bytes;
  }
  std::memset(payload + position, 0, bytes - position);
}

// ---- counters

void CounterPool::make(Device& device, StreamHandle stream, std::size_t slots) noexcept {
  memory_ = static_cast<std::byte*>(device.allocate(slots * kSlotBytes));
  event_ = memory_ == nullptr ? 0 : device.make_event();
  if (event_ == 0) return;
  slots_ = slots;
  stream_ = stream;
  start(device);
}

void CounterPool::start(Device& device) noexcept {
  const bool sent =
      device.fill_zero(stream_, memory_, slots_ * kSlotBytes) && device.record_event(event_, stream_);
  state_ = sent ? State::kPending : State::kRejected;
}

bool CounterPool::ready(Device& device) noexcept {
  if (state_ == State::kRejected) start(device);
  if (state_ == State::kPending && device.query_event(event_) == EventState::kDone) state_ = State::kReady;
  return state_ == State::kReady;
}

std::uint32_t* CounterPool::at(std::size_t slot) const noexcept {
  return reinterpret_cast<std::uint32_t*>(memory_ + slot * kSlotBytes);
}

// ---- DeviceEngine

TableSize DeviceEngine::measure(std::span<const PlannedTensor> items, std::uint64_t payload_bytes) noexcept {
  TableSize size;
  const bool fits = device_ != nullptr && inline_limits_.tiles > 0 && counters_.ready(*device_) &&
                    measure_inline(items, payload_bytes, inline_limits_, size);
  return fits ? size : measure_table(items);
}

/// Enqueues a batch whose table is in the parameters, until the device rejects a part of the work.
DeviceEngine::Sent DeviceEngine::send_inline(const DeviceBatch& batch, Allocation& table, Allocation& payload,
                                             const DeviceCommit& commit) noexcept {
  std::byte* const record = batch.room.data;
  std::byte* const values = record + batch.size.payload_offset;
  const bool copies = batch.table.copies();
  InlinePlace place{
      .counters = counters_.at(table_allocations_.next_index()),
      .partials = reinterpret_cast<TensorStats*>(scratch_ + scratch_space_.at(table.memory)),
      .payload = nullptr,
      .payload_bytes = batch.size.payload_bytes,
      .first_stats = static_cast<TensorStats*>(device_->device_address(record + sizeof(BatchHeader))),
      .guard = batch.guard};
  if (copies) place.payload = arena_ + arena_space_.at(payload.memory) + kGuardBytes;
  if (batch.table.direct) {
    place.payload = static_cast<std::byte*>(device_->device_address(values));
    zero_gaps(batch.items, values, batch.size.payload_bytes);
  }
  device::InlineLaunch launch{};
  fill_inline(batch.items, batch.table, place, launch);
  if (!copies && !commits_by_host()) {
    launch.launch.commit_word = static_cast<std::uint64_t*>(device_->device_address(commit.word));
    launch.launch.commit_value = commit.value;
  }
  if (copies && !fill_gaps(batch, place.payload)) return Sent::kPart;
  if (!device_->launch_inline(batch.stream, launch)) return copies ? Sent::kPart : Sent::kNothing;
  if (!device_->record_event(table.event, batch.stream)) return Sent::kPart;
  return !copies || send_values(batch, table, payload, commit) ? Sent::kAll : Sent::kPart;
}

}  // namespace tdcore
