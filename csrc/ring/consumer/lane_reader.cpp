#include "ring/consumer/lane_reader.hpp"

#include <cstring>

namespace tdcore {
namespace {

/// Acquire: pairs with a device's stores; see the header.
std::uint64_t load_device_word(const std::byte* at) noexcept {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_ACQUIRE);
}

bool read_header(const RecordView& record, BatchHeader& header) noexcept {
  if (record.kind != RecordKind::kBatch || record.bytes < sizeof(header)) return false;
  std::memcpy(&header, record.data, sizeof(header));
  return header.magic == kBatchMagic && header.entry_bytes == sizeof(Entry);
}

bool statistics_are_there(const RecordView& record, const BatchHeader& header) noexcept {
  for (std::uint64_t i = 0; i < header.entries; ++i) {
    const std::byte* const entry = record.data + sizeof(header) + i * sizeof(Entry);
    std::uint64_t elements = 0;
    std::memcpy(&elements, entry + offsetof(Entry, elements), sizeof(elements));
    const auto status = static_cast<EntryStatus>(entry[offsetof(Entry, status)]);
    if (entry[offsetof(Entry, has_stats)] != std::byte{0} && status != EntryStatus::kNoRow &&
        load_device_word(entry + offsetof(Entry, stats) + offsetof(TensorStats, count)) != elements) {
      return false;
    }
  }
  return true;
}

/// True also for an invalid record, because waiting would not help; the reader of the record detects it.
bool is_whole(const RecordView& record) noexcept {
  BatchHeader header{};
  if (!read_header(record, header) || header.guard == 0 || !header_is_sound(header, record.bytes))
    return true;
  if (header.payload_bytes == 0) return statistics_are_there(record, header);
  const std::byte* const payload = record.data + header.payload_offset;
  return load_device_word(payload - kGuardBytes) == header.guard &&
         load_device_word(payload + header.payload_bytes) == header.guard;
}

bool place_is_sound(const RingMemory& lane, const Slot& slot, Cursor at) noexcept {
  const std::uint64_t cap = lane.data_bytes() / kUnitBytes;
  const std::uint64_t bytes = slot.bytes;
  if (bytes == 0 || bytes > lane.data_bytes() / 8) return false;
  const std::uint64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  const std::uint64_t gap = (slot.position - at.position) & kPositionMask;
  return slot.position <= kPositionMask && gap + units <= cap && slot.offset % kUnitBytes == 0 &&
         slot.offset <= lane.data_bytes() && units * kUnitBytes <= lane.data_bytes() - slot.offset;
}

const Slot& slot_at(const RingMemory& lane, Cursor at) noexcept {
  return lane.slots()[at.ticket & (lane.slot_count() - 1)];
}

Found torn_at(Cursor at) noexcept {
  Found found;
  found.what = Found::What::kTorn;
  found.view.torn = true;
  found.after = {(at.ticket + 1) & kTicketMask, at.position};
  return found;
}

/// The place of a record that was left behind is unknown, so the position stays until the next valid record
/// moves it; after the last record, everything is free.
Found left_behind_at(const RingMemory& lane, Cursor at) noexcept {
  Found found = torn_at(at);
  found.left_behind = true;
  const Cursor tail = Cursor::unpack(lane.control().reservation.load(std::memory_order_relaxed));
  if (tail.tickets_since(found.after) == 0) found.after.position = tail.position;
  return found;
}

Found committed_at(const RingMemory& lane, Cursor at, const Slot& slot) noexcept {
  Found found;
  found.what = Found::What::kRecord;
  found.view.data = lane.data() + slot.offset;
  found.view.bytes = slot.bytes;
  found.view.kind = static_cast<RecordKind>(slot.kind);
  found.after = {(at.ticket + 1) & kTicketMask,
                 (slot.position + (slot.bytes + kUnitBytes - 1) / kUnitBytes) & kPositionMask};
  return found;
}

}  // namespace

bool header_is_sound(const BatchHeader& header, std::uint64_t record_bytes) noexcept {
  if (header.magic != kBatchMagic || header.entry_bytes != sizeof(Entry)) return false;
  const std::uint64_t entries_end = sizeof(BatchHeader) + std::uint64_t{header.entries} * sizeof(Entry);
  if (entries_end > record_bytes) return false;
  if (header.payload_bytes == 0) return true;
  const std::uint64_t guard_bytes = header.guard == 0 ? 0 : kGuardBytes;
  if (guard_bytes != 0 && (header.payload_offset | header.payload_bytes) % sizeof(header.guard) != 0)
    return false;
  return header.payload_offset >= entries_end + guard_bytes && header.payload_offset <= record_bytes &&
         guard_bytes <= record_bytes - header.payload_offset &&
         header.payload_bytes <= record_bytes - header.payload_offset - guard_bytes;
}

bool is_marker(const RecordView& record, std::int64_t& time_ns) noexcept {
  BatchHeader header{};
  if (record.torn || !read_header(record, header) || header.entries != 0) return false;
  time_ns = header.time_ns;
  return true;
}

bool any_reserved(const RingMemory& lane, Cursor at) noexcept {
  return Cursor::unpack(lane.control().reservation.load(std::memory_order_relaxed)).tickets_since(at) != 0;
}

Found look(const RingMemory& lane, Cursor at, bool producer_dead) noexcept {
  const Slot& slot = slot_at(lane, at);
  // Acquire: pairs with the release in Ring::publish(), and with a device's store of the word.
  if (slot.commit.load(std::memory_order_acquire) == at.ticket + 1) {
    if (!place_is_sound(lane, slot, at)) return producer_dead ? left_behind_at(lane, at) : torn_at(at);
    Found found = committed_at(lane, at, slot);
    if (is_whole(found.view)) return found;
    if (!producer_dead) {
      found.what = Found::What::kEarly;
      return found;
    }
    Found torn = torn_at(at);
    torn.after = found.after;
    torn.left_behind = true;
    return torn;
  }
  if (!producer_dead) return {};
  const Cursor tail = Cursor::unpack(lane.control().reservation.load(std::memory_order_relaxed));
  const std::uint64_t reserved = tail.tickets_since(at);
  if (reserved == 0 || reserved > lane.slot_count()) return {};  // no record, or an impossible word
  return left_behind_at(lane, at);
}

Found look_at_torn(const RingMemory& lane, Cursor at) noexcept {
  const Slot& slot = slot_at(lane, at);
  // Acquire: as in look().
  const bool committed = slot.commit.load(std::memory_order_acquire) == at.ticket + 1;
  if (!committed || !place_is_sound(lane, slot, at)) return left_behind_at(lane, at);
  Found found = torn_at(at);
  found.after = committed_at(lane, at, slot).after;
  return found;
}

}  // namespace tdcore
