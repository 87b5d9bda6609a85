// rings.hpp: small rings and records for the C++ tests. Threads: as for Ring and Consumer.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>

#include "ring/consumer/consumer.hpp"
#include "ring/ring.hpp"

namespace tdcore::testing {

inline constexpr std::uint64_t kSmallData = 64 << 10;

inline RingConfig config(std::uint64_t data_bytes = kSmallData, std::uint64_t slots = 16,
                         FullPolicy policy = FullPolicy::kDrop) {
  RingConfig result;
  result.data_bytes = data_bytes;
  result.slots = slots;
  result.names_bytes = 4096;
  result.policy = policy;
  result.block_timeout = std::chrono::milliseconds(20);
  return result;
}

/// Commits a record in which every byte is `value`.
inline bool put(Ring& ring, std::uint64_t bytes, unsigned value, std::uint64_t align = 64) {
  const Reservation room = ring.try_reserve(RecordKind::kBatch, bytes, align);
  if (!room) return false;
  std::memset(room.data, static_cast<int>(value & 0xff), bytes);
  ring.commit(room);
  return true;
}

inline bool holds(const RecordView& record, std::uint64_t bytes, unsigned value) {
  if (record.torn || record.bytes != bytes) return false;
  for (std::uint64_t i = 0; i < bytes; ++i) {
    if (record.data[i] != static_cast<std::byte>(value & 0xff)) return false;
  }
  return true;
}

inline void release_all(Consumer& consumer) { consumer.release(consumer.released(), consumer.mark()); }

}  // namespace tdcore::testing
