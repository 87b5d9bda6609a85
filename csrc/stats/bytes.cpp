#include "stats/bytes.hpp"

#include <array>
#include <cmath>
#include <cstring>

namespace tdcore {
namespace {

/// Value of one byte of a float8 type.
struct Decoded {
  double value = 0;
  bool subnormal = false;
};
using Decoding = std::array<Decoded, 256>;

/// e4m3fn has no Inf and one NaN per sign; e5m2 is a short float16.
constexpr Decoding decode_float8(int mantissa_bits, bool has_inf) noexcept {
  const int exponent_bits = 7 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  Decoding decoding{};
  for (int byte = 0; byte < 256; ++byte) {
    const int magnitude = byte & 0x7f;
    const int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    const int exponent = magnitude >> mantissa_bits;
    double value = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
    for (int up = bias + mantissa_bits; up < exponent; ++up) value *= 2;
    for (int down = exponent == 0 ? 1 : exponent; down < bias + mantissa_bits; ++down) value /= 2;
    if (has_inf && exponent == (1 << exponent_bits) - 1) value = mantissa == 0 ? HUGE_VAL : __builtin_nan("");
    if (!has_inf && magnitude == 0x7f) value = __builtin_nan("");
    decoding[static_cast<std::size_t>(byte)] = {(byte & 0x80) != 0 ? -value : value,
                                                exponent == 0 && mantissa != 0};
  }
  return decoding;
}

constexpr Decoding kFloat8E4M3 = decode_float8(3, false);
constexpr Decoding kFloat8E5M2 = decode_float8(2, true);

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
  std::uint32_t lanes[4][256] = {};  // so that equal neighbors do not wait for each other's increment
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

TensorStats stats_of_sums(const ByteSums& sums) noexcept {
  TensorStats stats = empty_stats();
  stats.count = sums.count;
  if (sums.count == 0) return stats;
  const auto n = static_cast<std::int64_t>(sums.count);
  const std::int64_t largest = sums.max > -sums.min ? sums.max : -sums.min;
  // For a chunk, n * square_sum stays below 2^56.
  const std::int64_t spread = n * static_cast<std::int64_t>(sums.square_sum) - sums.sum * sums.sum;
  stats.zero_count = sums.count - sums.at_least[0];
  stats.min = static_cast<double>(sums.min);
  stats.max = static_cast<double>(sums.max);
  stats.mean = static_cast<double>(sums.sum) / static_cast<double>(n);
  stats.m2 = static_cast<double>(spread) / static_cast<double>(n);
  stats.abs_sum = static_cast<double>(sums.abs_sum);
  stats.square_sum = static_cast<double>(sums.square_sum);
  stats.abs_min = static_cast<double>(sums.abs_min);
  stats.abs_max = static_cast<double>(largest);
  for (int i = 0; i < 8; ++i) {
    stats.log2_counts[i - kLog2Min] = sums.at_least[i] - (i < 7 ? sums.at_least[i + 1] : 0);
  }
  return stats;
}

TensorStats stats_of_table(const ByteTable& table, Dtype dtype) noexcept {
  const Decoding& decoding = dtype == Dtype::kF8E4M3 ? kFloat8E4M3 : kFloat8E5M2;
  TensorStats stats = empty_stats();
  double sum = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::uint64_t times = table.counts[byte];
    if (times == 0) {
      continue;
    }
    const auto [value, subnormal] = decoding[byte];
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
      const double delta = decoding[byte].value - stats.mean;
      if (std::isfinite(delta)) {
        stats.m2 += static_cast<double>(table.counts[byte]) * delta * delta;
      }
    }
  }
  return stats;
}

}  // namespace tdcore
