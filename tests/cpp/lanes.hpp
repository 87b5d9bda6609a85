// lanes.hpp: rings with lanes, and records that a "device" commits, for the C++ tests.
// Threads: as Ring; a DeviceRecord belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "rings.hpp"

namespace tdcore::testing {

inline RingConfig laned(std::uint32_t lanes, std::uint64_t slots = 16,
                        std::uint64_t data_bytes = kSmallData) {
  RingConfig result = config(data_bytes, slots);
  result.device_lanes = lanes;
  result.device_lane_bytes = data_bytes;
  result.device_lane_slots = slots;
  return result;
}

inline void take_all(Ring& ring) {
  for (const std::shared_ptr<Ring>& lane : ring.lanes()) (void)lane->take_memory();
}

/// A batch of one tensor of bytes, like a batch of DeviceCapture. The host has written everything except the
/// part of the device.
class DeviceRecord {
 public:
  /// payload_bytes: a multiple of 64; 0 for statistics only. Every byte will be `value`.
  DeviceRecord(Ring& lane, std::uint64_t payload_bytes, unsigned value, std::uint64_t guard,
               std::uint32_t name = 0)
      : value_(static_cast<unsigned char>(value & 0xff)) {
    BatchHeader header{};
    header.magic = kBatchMagic;
    header.entries = 1;
    header.entry_bytes = sizeof(Entry);
    header.mode = 1;
    header.step = value;
    header.guard = guard;
    header.payload_bytes = payload_bytes;
    const std::uint64_t align = payload_bytes >= kDirectPayloadBytes ? kPageBytes : kTensorAlignBytes;
    header.payload_offset =
        payload_bytes == 0 ? 0 : round_up(sizeof(BatchHeader) + sizeof(Entry) + kGuardBytes, align);
    const std::uint64_t total = payload_bytes == 0 ? sizeof(BatchHeader) + sizeof(Entry)
                                                   : header.payload_offset + payload_bytes + kGuardBytes;
    const Reservation room = lane.try_reserve(RecordKind::kBatch, total, align);
    if (!room) return;
    Entry entry{};
    entry.payload_offset = payload_bytes == 0 ? kNoPayload : 0;
    entry.payload_bytes = payload_bytes;
    entry.elements = payload_bytes == 0 ? 12 : payload_bytes;
    entry.shape[0] = static_cast<std::int64_t>(entry.elements);
    entry.ndim = 1;
    entry.name = name;
    entry.parts = 1;
    entry.dtype = Dtype::kU8;
    entry.has_stats = payload_bytes == 0 ? 1 : 0;
    std::memset(room.data, 0, room.bytes);
    std::memcpy(room.data, &header, sizeof(header));
    std::memcpy(room.data + sizeof(header), &entry, sizeof(entry));
    header_ = header;
    data_ = room.data;
    commit_ = lane.hand_over(room);
  }

  explicit operator bool() const noexcept { return commit_.word != nullptr; }

  /// Writes the part of the device: the payload and the guards around it, or the statistics.
  void write_values() const noexcept {
    if (header_.payload_bytes == 0) {
      store(data_ + sizeof(BatchHeader) + offsetof(Entry, stats) + offsetof(TensorStats, count), 12);
      return;
    }
    std::byte* const payload = data_ + header_.payload_offset;
    std::memset(payload, value_, header_.payload_bytes);
    store(payload - kGuardBytes, header_.guard);
    store(payload + header_.payload_bytes, header_.guard);
  }
  void write_word() const noexcept { store(reinterpret_cast<std::byte*>(commit_.word), commit_.value); }
  void finish() const noexcept {
    write_values();
    write_word();
  }
  std::byte* data() const noexcept { return data_; }
  BatchHeader& header() noexcept { return header_; }
  void rewrite_header() noexcept { std::memcpy(data_, &header_, sizeof(header_)); }

 private:
  static void store(std::byte* at, std::uint64_t value) noexcept {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), value, __ATOMIC_RELEASE);
  }

  BatchHeader header_{};
  std::byte* data_ = nullptr;
  DeviceCommit commit_{};
  unsigned char value_ = 0;
};

}  // namespace tdcore::testing
