// stats/bytes.hpp: statistics of the 1-byte types: bool, uint8 and int8 from exact integer sums (ByteSums),
// float8 from the counts of the 256 byte values (ByteTable), which give at most 256 values in float64.
// Threads: a ByteSums or a ByteTable belongs to one thread.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "stats/stats.hpp"

namespace tdcore {

/// Sums of at most kChunkElements values from -128 to 255.
struct ByteSums {
  std::uint64_t count = 0;
  std::uint64_t abs_sum = 0;
  std::uint64_t square_sum = 0;
  std::int64_t sum = 0;
  std::int64_t min = 255, max = -128;
  std::int64_t abs_min = 255;
  std::uint64_t at_least[8] = {};  // number of values with |x| >= 2^i
};

/// Adds values to the sums, in any pieces. `source` needs no alignment.
using ByteFeedFunction = void (*)(ByteSums& sums, const void* source, std::uint64_t elements) noexcept;

TensorStats stats_of_sums(const ByteSums& sums) noexcept;

struct ByteTable {
  std::uint64_t counts[256] = {};

  /// Adds at most 2^32 - 1 bytes per call.
  void add(const void* data, std::uint64_t bytes) noexcept;
};

/// `dtype` is kF8E4M3 or kF8E5M2.
TensorStats stats_of_table(const ByteTable& table, Dtype dtype) noexcept;

}  // namespace tdcore
