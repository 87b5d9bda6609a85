// stats.hpp: TensorStats, the result of one pass over a tensor, and the merge of two results.
//
// merge(stats(a), stats(b)) describes a and b together, so the statistics of chunks, parts, shards, ranks and
// steps can be merged. All members after the counts are over finite values only; NaN and Inf are counted
// separately, so the caller can propagate NaN like NumPy (nan_count > 0) or not. Results do not depend on the
// number of threads, because the input is split into fixed chunks that are merged in order.
//
// Ranges: square_sum and m2 become +Inf if squares exceed the range of float64 (|x| > 1e154), and lose digits
// if squares become subnormal (|x| < 1e-146).
//
// Threads: pure functions; reduce() (stats/cpu.hpp) may start helper threads and joins them. Plain code
// without host-only headers, so that it also compiles for a device.
#pragma once

#include "base/fixed_types.hpp"

namespace tdcore {

inline constexpr int kLog2Bins = 64;
inline constexpr int kLog2Min =
    -40;  // bin 0: 0 < |x| < 2^-39; bin 63: |x| >= 2^23; bin i: 2^(i-40) <= |x| < 2^(i-39)

struct TensorStats {
  std::uint64_t count;  // all elements
  std::uint64_t nan_count;
  std::uint64_t pos_inf_count;
  std::uint64_t neg_inf_count;
  std::uint64_t zero_count;       // +0 and -0
  std::uint64_t subnormal_count;  // in the tensor's own dtype, counted on bits (works under FTZ/DAZ)
  double min;                     // over finite values; NaN if there are none
  double max;
  double mean;
  double m2;  // sum of (x - mean)^2
  double abs_sum;
  double square_sum;
  double abs_min;
  double abs_max;
  std::uint64_t log2_counts[kLog2Bins];  // finite non-zero values by floor(log2 |x|), clamped to the bins
};
static_assert(__is_trivially_copyable(TensorStats) && sizeof(TensorStats) == 14 * 8 + kLog2Bins * 8);

/// Statistics of no elements: counts and sums 0; min, max, mean, abs_min, abs_max NaN.
TDCORE_HD constexpr TensorStats empty_stats() noexcept {
  constexpr double kNan = __builtin_nan("");
  TensorStats stats{};
  stats.min = kNan;
  stats.max = kNan;
  stats.mean = kNan;
  stats.abs_min = kNan;
  stats.abs_max = kNan;
  return stats;
}

/// Number of elements that are neither NaN nor Inf, over which min, max, mean, m2 and the sums are computed.
TDCORE_HD constexpr std::uint64_t finite_count(const TensorStats& stats) noexcept {
  return stats.count - stats.nan_count - stats.pos_inf_count - stats.neg_inf_count;
}

/// Mean and m2 of the union of two sets of na > 0 and nb > 0 values (Chan, Golub, LeVeque 1979).
/// The mean stays finite even if the difference of the means overflows.
TDCORE_HD constexpr TDCORE_ALWAYS_INLINE void merge_moments(double& mean, double& m2, double na,
                                                            double other_mean, double other_m2,
                                                            double nb) noexcept {
  constexpr double kHuge = 8.9e307;  // half of the largest double: beyond it a difference may overflow
  const double total = na + nb;
  const bool safe = mean < kHuge && mean > -kHuge && other_mean < kHuge && other_mean > -kHuge;
  const double delta = other_mean - mean;
  m2 = m2 + other_m2 + delta * delta * (na / total) * nb;
  mean = safe ? mean + delta * (nb / total) : mean * (na / total) + other_mean * (nb / total);
}

/// Adds the statistics of `other` to `into`. The order of merges changes only the last bits of mean, m2 and
/// the sums; counts, min, max and the histogram are exact.
TDCORE_HD constexpr void merge(TensorStats& into, const TensorStats& other) noexcept {
  const std::uint64_t mine = finite_count(into);
  const std::uint64_t theirs = finite_count(other);
  into.count += other.count;
  into.nan_count += other.nan_count;
  into.pos_inf_count += other.pos_inf_count;
  into.neg_inf_count += other.neg_inf_count;
  into.zero_count += other.zero_count;
  into.subnormal_count += other.subnormal_count;
  for (int bin = 0; bin < kLog2Bins; ++bin) {
    into.log2_counts[bin] += other.log2_counts[bin];
  }
  if (theirs == 0) {
    return;
  }
  if (mine == 0) {
    into.min = other.min;
    into.max = other.max;
    into.mean = other.mean;
    into.m2 = other.m2;
    into.abs_sum = other.abs_sum;
    into.square_sum = other.square_sum;
    into.abs_min = other.abs_min;
    into.abs_max = other.abs_max;
    return;
  }
  into.min = other.min < into.min ? other.min : into.min;
  into.max = other.max > into.max ? other.max : into.max;
  into.abs_min = other.abs_min < into.abs_min ? other.abs_min : into.abs_min;
  into.abs_max = other.abs_max > into.abs_max ? other.abs_max : into.abs_max;
  merge_moments(into.mean, into.m2, static_cast<double>(mine), other.mean, other.m2,
                static_cast<double>(theirs));
  into.abs_sum += other.abs_sum;
  into.square_sum += other.square_sum;
}

}  // namespace tdcore
