// stats_sums.hpp: sums, extremes and exponent bytes of one block: the passes over the values.
// Part of stats_kernels.hpp, which says what all of it does; included by it only. Everything is in an unnamed
// namespace: each instruction set has its own.
// Threads: pure functions on the caller's state.
#pragma once

#include "stats_elements.hpp"

namespace tdcore {
namespace {

/// Over the finite values of a block.
struct BlockSums {
  double d = 0, d2 = 0;  // of x - pivot, and of its square
  double abs = 0;
  double min = kInfinity, max = -kInfinity;
  u64 non_finite = 0, pos_inf = 0, neg_inf = 0;
  int low = 255, high = 0;  // smallest and largest exponent byte; NaN and Inf do not count
};

template <class V>
TDCORE_INLINE double total(typename V::D lanes) noexcept {
  double values[V::kGroup / 8];
  V::store(values, lanes);
  double sum = 0;
  for (double value : values) {
    sum += value;
  }
  return sum;
}

/// Least of lanes of float or double.
template <class V, class T, class Lanes>
TDCORE_INLINE double least(Lanes lanes) noexcept {
  T values[sizeof(Lanes) / sizeof(T)];
  V::store(values, lanes);
  T result = values[0];
  for (T value : values) {
    result = value < result ? value : result;
  }
  return static_cast<double>(result);
}

template <class V, class T, class Lanes>
TDCORE_INLINE double greatest(Lanes lanes) noexcept {
  T values[sizeof(Lanes) / sizeof(T)];
  V::store(values, lanes);
  T result = values[0];
  for (T value : values) {
    result = value > result ? value : result;
  }
  return static_cast<double>(result);
}

// Memory must be kept busy while the histogram is counted as well, or the two times add up: the passes over
// the values ask for half of what comes next, the pass over the exponent bytes for the other half.
constexpr u64 kAheadBytes = 16384;

template <class V, class E>
constexpr u64 kAheadStep = V::kGroup * sizeof(typename E::Raw) / 2;

/// Asks for the next part of what lies ahead and moves on: once per group of values, once per group of
/// exponent bytes.
template <class V>
TDCORE_INLINE void look_ahead(const u8*& ahead, u64 step) noexcept {
  for (u64 offset = 0; offset < step; offset += 64) {
    V::prefetch(ahead + offset);
  }
  ahead += step;
}

/// Narrow, fast, float64 sums. `groups` groups from `data`; one exponent byte per element to `exponents`.
template <class V, class E, bool kShifted>
TDCORE_NOINLINE void narrow_double(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                                   BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const D k = V::set1(pivot);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  F low = V::set1(kInfinityF), high = V::set1(-kInfinityF);
  typename V::B low_byte = V::set8(255), high_byte = V::zero8();
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    look_ahead<V>(ahead, kAheadStep<V, E>);
    F x[4];
    V::load4(E{}, data, x);
    for (int i = 0; i < 4; ++i) {
      low = V::min(x[i], low);
      high = V::max(x[i], high);
      D wide[2];
      V::widen(E{}, data, i, x[i], wide);
      for (int half = 0; half < 2; ++half) {
        const D delta = kShifted ? V::sub(wide[half], k) : wide[half];
        d[half] = V::accumulate(d[half], delta);
        d2[half] = V::fma(delta, delta, d2[half]);
        abs[half] = V::accumulate(abs[half], V::abs(wide[half]));
      }
    }
    const typename V::B exponent = V::exponents(E{}, data, x);
    V::store8(exponents + group * V::kGroup, exponent);
    low_byte = V::min8(low_byte, exponent);
    high_byte = V::max8(high_byte, exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.min = least<V, float>(low);
  sums.max = greatest<V, float>(high);
  sums.low = V::lowest8(low_byte);
  sums.high = V::highest8(high_byte);
}

template <class V>
TDCORE_INLINE typename V::D widen_sum(typename V::F lanes) noexcept {
  return V::add(V::widen_low(lanes), V::widen_high(lanes));
}

/// Narrow, fast, float32 sums flushed to float64 every kFlushGroups groups. `pivot` is a float32 value.
template <class V, class E, bool kShifted>
TDCORE_NOINLINE void narrow_float(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                                  BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const F k = V::set1(static_cast<float>(pivot));
  const F nothing = V::set1(0.0f);
  D d_total = V::set1(0.0), d2_total = d_total, abs_total = d_total;
  F low = V::set1(kInfinityF), high = V::set1(-kInfinityF);
  typename V::B low_byte = V::set8(255), high_byte = V::zero8();
  for (u64 group = 0; group < groups;) {
    F d[2] = {nothing, nothing}, d2[2] = {nothing, nothing}, abs[2] = {nothing, nothing};
    const u64 end = group + kFlushGroups < groups ? group + kFlushGroups : groups;
    for (; group < end; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      look_ahead<V>(ahead, kAheadStep<V, E>);
      F x[4];
      V::load4(E{}, data, x);
      for (int i = 0; i < 4; ++i) {
        low = V::min(x[i], low);
        high = V::max(x[i], high);
        const F delta = kShifted ? V::sub(x[i], k) : x[i];
        d[i & 1] = V::accumulate(d[i & 1], delta);
        d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
        abs[i & 1] = V::accumulate(abs[i & 1], V::abs(x[i]));
      }
      const typename V::B exponent = V::exponents(E{}, data, x);
      V::store8(exponents + group * V::kGroup, exponent);
      low_byte = V::min8(low_byte, exponent);
      high_byte = V::max8(high_byte, exponent);
    }
    d_total = V::add(d_total, V::add(widen_sum<V>(d[0]), widen_sum<V>(d[1])));
    d2_total = V::add(d2_total, V::add(widen_sum<V>(d2[0]), widen_sum<V>(d2[1])));
    abs_total = V::add(abs_total, V::add(widen_sum<V>(abs[0]), widen_sum<V>(abs[1])));
  }
  sums.d = total<V>(d_total);
  sums.d2 = total<V>(d2_total);
  sums.abs = total<V>(abs_total);
  sums.min = least<V, float>(low);
  sums.max = greatest<V, float>(high);
  sums.low = V::lowest8(low_byte);
  sums.high = V::highest8(high_byte);
}

/// Wide, fast.
template <class V, class E, bool kShifted>
TDCORE_NOINLINE void wide_double(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                                 BlockSums& sums) noexcept {
  using D = typename V::D;
  const D k = V::set1(pivot);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  D low = V::set1(kInfinity), high = V::set1(-kInfinity);
  typename V::B low_byte = V::set8(255), high_byte = V::zero8();
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    look_ahead<V>(ahead, kAheadStep<V, E>);
    D x[8];
    V::load8(E{}, data, x);
    for (int i = 0; i < 8; ++i) {
      low = V::min(x[i], low);
      high = V::max(x[i], high);
      const D delta = kShifted ? V::sub(x[i], k) : x[i];
      d[i & 1] = V::accumulate(d[i & 1], delta);
      d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
      abs[i & 1] = V::accumulate(abs[i & 1], V::abs(x[i]));
    }
    const typename V::B exponent = V::exponents_wide(x);
    V::store8(exponents + group * V::kGroup, exponent);
    low_byte = V::min8(low_byte, exponent);
    high_byte = V::max8(high_byte, exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.min = least<V, double>(low);
  sums.max = greatest<V, double>(high);
  sums.low = V::lowest8(low_byte);
  sums.high = V::highest8(high_byte);
}

/// The largest exponent byte without those of NaN and Inf, so that the histogram is not counted up to them.
TDCORE_INLINE void finite_high(BlockSums& sums) noexcept {
  const double largest = -sums.min > sums.max ? -sums.min : sums.max;
  sums.high = largest > 0 && is_finite(largest) ? exponent_byte(largest) : 0;
}

/// Takes out what the pivot, standing in for NaN and Inf, added to the sum of magnitudes.
TDCORE_INLINE void finish_careful(BlockSums& sums, double pivot) noexcept {
  sums.abs -= static_cast<double>(sums.non_finite) * (pivot < 0 ? -pivot : pivot);
}

/// Narrow, careful: NaN and Inf masked out and counted. `pivot` is a float32 value.
template <class V, class E>
TDCORE_NOINLINE void narrow_careful(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                                    BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const D k = V::set1(pivot);
  const F kf = V::set1(static_cast<float>(pivot)), inf = V::set1(kInfinityF), neg = V::set1(-kInfinityF);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  F low = inf, high = neg;
  typename V::I pos_inf = V::zero32(), neg_inf = V::zero32(), finite_count = V::zero32();
  typename V::B low_byte = V::set8(255);
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    look_ahead<V>(ahead, kAheadStep<V, E>);
    F x[4];
    V::load4(E{}, data, x);
    for (int i = 0; i < 4; ++i) {
      const typename V::MF finite = V::is_finite(x[i]);
      finite_count = V::tally(finite_count, finite);
      pos_inf = V::tally(pos_inf, V::same_bits(x[i], inf));
      neg_inf = V::tally(neg_inf, V::same_bits(x[i], neg));
      low = V::min(V::select(finite, x[i], inf), low);
      high = V::max(V::select(finite, x[i], neg), high);
      const F kept = V::select(finite, x[i], kf);
      const D wide[2] = {V::widen_low(kept), V::widen_high(kept)};
      for (int half = 0; half < 2; ++half) {
        const D delta = V::sub(wide[half], k);
        d[half] = V::accumulate(d[half], delta);
        d2[half] = V::fma(delta, delta, d2[half]);
        abs[half] = V::accumulate(abs[half], V::abs(wide[half]));
      }
    }
    const typename V::B exponent = V::exponents(E{}, data, x);
    V::store8(exponents + group * V::kGroup, exponent);
    low_byte = V::min8(low_byte, exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.pos_inf = V::sum32(pos_inf);
  sums.neg_inf = V::sum32(neg_inf);
  sums.non_finite = groups * V::kGroup - V::sum32(finite_count);
  finish_careful(sums, pivot);
  sums.min = least<V, float>(low);
  sums.max = greatest<V, float>(high);
  sums.low = V::lowest8(low_byte);
  finite_high(sums);
}

/// Wide, careful.
template <class V, class E>
TDCORE_NOINLINE void wide_careful(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                                  BlockSums& sums) noexcept {
  using D = typename V::D;
  const D k = V::set1(pivot), inf = V::set1(kInfinity), neg = V::set1(-kInfinity);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  D low = inf, high = neg;
  typename V::L pos_inf = V::zero64(), neg_inf = V::zero64(), finite_count = V::zero64();
  typename V::B low_byte = V::set8(255);
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    look_ahead<V>(ahead, kAheadStep<V, E>);
    D x[8];
    V::load8(E{}, data, x);
    for (int i = 0; i < 8; ++i) {
      const typename V::MD finite = V::less(V::abs(x[i]), inf);
      finite_count = V::tally(finite_count, finite);
      pos_inf = V::tally(pos_inf, V::equal(x[i], inf));
      neg_inf = V::tally(neg_inf, V::equal(x[i], neg));
      low = V::min(V::select(finite, x[i], inf), low);
      high = V::max(V::select(finite, x[i], neg), high);
      const D kept = V::select(finite, x[i], k);
      const D delta = V::sub(kept, k);
      d[i & 1] = V::accumulate(d[i & 1], delta);
      d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
      abs[i & 1] = V::accumulate(abs[i & 1], V::abs(kept));
    }
    const typename V::B exponent = V::exponents_wide(x);
    V::store8(exponents + group * V::kGroup, exponent);
    low_byte = V::min8(low_byte, exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.pos_inf = V::sum64(pos_inf);
  sums.neg_inf = V::sum64(neg_inf);
  sums.non_finite = groups * V::kGroup - V::sum64(finite_count);
  finish_careful(sums, pivot);
  sums.min = least<V, double>(low);
  sums.max = greatest<V, double>(high);
  sums.low = V::lowest8(low_byte);
  finite_high(sums);
}

/// Smallest |x| of a block, NaN aside. Only for blocks that may lower the chunk's.
template <class V, class E>
TDCORE_NOINLINE double smallest_magnitude(const u8* data, u64 groups) noexcept {
  if constexpr (E::kWide) {
    typename V::D low = V::set1(kInfinity);
    for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      typename V::D x[8];
      V::load8(E{}, data, x);
      for (int i = 0; i < 8; ++i) {
        low = V::min(V::abs(x[i]), low);  // NaN compares false: `low` stays
      }
    }
    return least<V, double>(low);
  } else {
    typename V::F low = V::set1(kInfinityF);
    for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      typename V::F x[4];
      V::load4(E{}, data, x);
      for (int i = 0; i < 4; ++i) {
        low = V::min(V::abs(x[i]), low);  // NaN compares false: `low` stays
      }
    }
    return least<V, float>(low);
  }
}

/// Zeros, +0 and -0. Needs subnormals not to be taken for zeros (DefaultFloatMode). Only for blocks that may
/// have some.
template <class V, class E>
TDCORE_NOINLINE u64 count_zeros(const u8* data, u64 groups) noexcept {
  if constexpr (E::kWide) {
    typename V::L count = V::zero64();
    for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      typename V::D x[8];
      V::load8(E{}, data, x);
      for (int i = 0; i < 8; ++i) {
        count = V::tally(count, V::equal(x[i], V::set1(0.0)));
      }
    }
    return V::sum64(count);
  } else {
    typename V::I count = V::zero32();
    for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      typename V::F x[4];
      V::load4(E{}, data, x);
      for (int i = 0; i < 4; ++i) {
        count = V::tally(count, V::equal(x[i], V::set1(0.0f)));
      }
    }
    return V::sum32(count);
  }
}

/// Values of |x| below the smallest normal float64.
template <class V, class E>
TDCORE_NOINLINE u64 count_below_normal(const u8* data, u64 groups) noexcept {
  typename V::L count = V::zero64();
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    typename V::D x[8];
    V::load8(E{}, data, x);
    for (int i = 0; i < 8; ++i) {
      count = V::tally(count, V::less(V::abs(x[i]), V::set1(0x1p-1022)));
    }
  }
  return V::sum64(count);
}

}  // namespace
}  // namespace tdcore
