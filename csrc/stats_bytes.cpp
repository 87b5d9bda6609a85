#include "stats_bytes.hpp"

#include <cmath>
#include <cstring>

namespace tdcore {
namespace {

/// float8 with `mantissa_bits`, as float64. e4m3fn has no Inf and one NaN per sign; e5m2 is a short float16.
double decode_float8(unsigned byte, int mantissa_bits, bool has_inf) noexcept {
  const int exponent_bits = 7 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned magnitude = byte & 0x7f;
  const unsigned mantissa = magnitude & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  double value = 0;
  if (!has_inf && magnitude == 0x7f) {
    value = NAN;
  } else if (has_inf && exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? HUGE_VAL : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value =
        std::ldexp(static_cast<double>(mantissa | (1U << mantissa_bits)), exponent - bias - mantissa_bits);
  }
  return (byte & 0x80) != 0 ? -value : value;
}

struct Decoded {
  double value;
  bool subnormal;
};

Decoded decode(unsigned byte, Dtype dtype) noexcept {
  const auto is_tiny = [byte](int mantissa_bits) {
    const unsigned magnitude = byte & 0x7f;
    return magnitude != 0 && magnitude < (1U << mantissa_bits);
  };
  switch (dtype) {
    case Dtype::kBool:
      return {byte != 0 ? 1.0 : 0.0, false};
    case Dtype::kI8:
      return {static_cast<double>(byte) - (byte >= 128 ? 256.0 : 0.0), false};
    case Dtype::kF8E4M3:
      return {decode_float8(byte, 3, false), is_tiny(3)};
    case Dtype::kF8E5M2:
      return {decode_float8(byte, 2, true), is_tiny(2)};
    default:
      return {static_cast<double>(byte), false};
  }
}

int log2_bin(double magnitude) noexcept {
  const int bin = std::ilogb(magnitude) - kLog2Min;
  return bin < 0 ? 0 : bin >= kLog2Bins ? kLog2Bins - 1 : bin;
}

}  // namespace

void ByteTable::add(const void* data, std::uint64_t bytes) noexcept {
  const auto* at = static_cast<const unsigned char*>(data);
  if (bytes < 256) {
    for (std::uint64_t i = 0; i < bytes; ++i) {
      ++counts[at[i]];
    }
    return;
  }
  std::uint32_t lanes[4][256] = {};  // neighbours that are equal must not wait for each other's increment
  std::uint64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, at + i, sizeof word);
    for (unsigned byte = 0; byte < 8; ++byte) {
      ++lanes[byte & 3][(word >> (8 * byte)) & 0xff];
    }
  }
  for (; i < bytes; ++i) {
    ++lanes[0][at[i]];
  }
  for (unsigned value = 0; value < 256; ++value) {
    counts[value] += std::uint64_t{lanes[0][value]} + lanes[1][value] + lanes[2][value] + lanes[3][value];
  }
}

TensorStats stats_of_bytes(const ByteTable& table, Dtype dtype) noexcept {
  TensorStats stats = empty_stats();
  double sum = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::uint64_t times = table.counts[byte];
    if (times == 0) {
      continue;
    }
    const auto [value, subnormal] = decode(byte, dtype);
    stats.count += times;
    if (std::isnan(value)) {
      stats.nan_count += times;
      continue;
    }
    if (std::isinf(value)) {
      (value > 0 ? stats.pos_inf_count : stats.neg_inf_count) += times;
      continue;
    }
    const double magnitude = std::fabs(value);
    const double n = static_cast<double>(times);
    sum += n * value;
    stats.abs_sum += n * magnitude;
    stats.square_sum += n * value * value;
    stats.min = stats.min <= value ? stats.min : value;
    stats.max = stats.max >= value ? stats.max : value;
    stats.abs_min = stats.abs_min <= magnitude ? stats.abs_min : magnitude;
    stats.abs_max = stats.abs_max >= magnitude ? stats.abs_max : magnitude;
    stats.subnormal_count += subnormal ? times : 0;
    if (magnitude == 0) {
      stats.zero_count += times;
    } else {
      stats.log2_counts[log2_bin(magnitude)] += times;
    }
  }
  if (const std::uint64_t finite = finite_count(stats); finite != 0) {
    stats.min += 0.0;  // -0 becomes 0
    stats.max += 0.0;
    stats.mean = sum / static_cast<double>(finite);
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (table.counts[byte] == 0) {
        continue;
      }
      const double delta = decode(byte, dtype).value - stats.mean;
      if (std::isfinite(delta)) {
        stats.m2 += static_cast<double>(table.counts[byte]) * delta * delta;
      }
    }
  }
  return stats;
}

}  // namespace tdcore
