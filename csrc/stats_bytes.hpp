// stats_bytes.hpp: statistics of the 1-byte types (bool, int8, uint8, float8) from a table of how often each
// of the 256 byte values occurs: exact counts, then at most 256 values in float64. Threads: a table belongs
// to one thread.
#pragma once

#include <cstdint>

#include "record.hpp"
#include "stats.hpp"

namespace tdcore {

struct ByteTable {
  std::uint64_t counts[256] = {};

  /// At most 2^32 - 1 bytes a call.
  void add(const void* data, std::uint64_t bytes) noexcept;
};

/// `dtype` is one of kBool (any byte but 0 is 1), kU8, kI8, kF8E4M3, kF8E5M2.
TensorStats stats_of_bytes(const ByteTable& table, Dtype dtype) noexcept;

}  // namespace tdcore
