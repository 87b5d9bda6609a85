// stats/sums.hpp: sums, extremes and exponent bytes of one block: the passes over the values.
// Part of stats/kernels.hpp, which describes the kernels and is the only file that includes this header.
// Everything is in an unnamed namespace, so that each instruction set has its own code.
// Threads: pure functions on the caller's state.
#pragma once

#include "stats/elements.hpp"

namespace tdcore {
namespace {

/// Sums over the finite values of a block.
struct BlockSums {
  double d = 0, d2 = 0;  // sums of x - pivot, and of its square
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

/// The least of the lanes, float or double.
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

// Memory is also prefetched while the histogram is counted, otherwise the two times would add up: the passes
// over the values prefetch half of the next part, and the pass over the exponent bytes prefetches the other
// half.
constexpr u64 kAheadBytes = 16384;

template <class V, class E>
constexpr u64 kAheadStep = V::kGroup * sizeof(typename E::Raw) / 2;

/// Prefetches the next part and advances. Called once per group of values, and once per group of exponent
/// bytes.
template <class V>
TDCORE_INLINE void look_ahead(const u8*& ahead, u64 step) noexcept {
  for (u64 offset = 0; offset < step; offset += 64) {
    V::prefetch(ahead + offset);
  }
  ahead += step;
}

// Narrow lanes are float32, wide ones float64.
template <class V, bool kWide>
struct LaneTypes {
  using Lanes = typename V::F;
  using Counter = typename V::I;
  using Lane = float;
};
template <class V>
struct LaneTypes<V, true> {
  using Lanes = typename V::D;
  using Counter = typename V::L;
  using Lane = double;
};
template <class V, class E>
using Lanes = typename LaneTypes<V, E::kWide>::Lanes;
template <class V, class E>
using Counter = typename LaneTypes<V, E::kWide>::Counter;
template <class V, class E>
using Lane = typename LaneTypes<V, E::kWide>::Lane;
template <class E>
constexpr int kVectors = E::kWide ? 8 : 4;  // vectors of a group

template <class V, class E>
TDCORE_INLINE Lanes<V, E> all_lanes(double value) noexcept {
  return V::set1(static_cast<Lane<V, E>>(value));
}

template <class V, class E>
TDCORE_INLINE void load_group(const u8* data, Lanes<V, E> (&x)[kVectors<E>]) noexcept {
  if constexpr (E::kWide) {
    V::load8(E{}, data, x);
  } else {
    V::load4(E{}, data, x);
  }
}

template <class V, class E>
TDCORE_INLINE typename V::B group_exponents(const u8* data, const Lanes<V, E> (&x)[kVectors<E>]) noexcept {
  if constexpr (E::kWide) {
    return V::exponents_wide(x);
  } else {
    return V::exponents(E{}, data, x);
  }
}

template <class V, class E>
TDCORE_INLINE Counter<V, E> no_count() noexcept {
  if constexpr (E::kWide) {
    return V::zero64();
  } else {
    return V::zero32();
  }
}

template <class V, class E>
TDCORE_INLINE u64 total_count(Counter<V, E> count) noexcept {
  if constexpr (E::kWide) {
    return V::sum64(count);
  } else {
    return V::sum32(count);
  }
}

/// Sums around a pivot, two of each kind, so that additions do not wait for each other.
template <class V, bool kWide>
struct LaneSums {
  using S = typename LaneTypes<V, kWide>::Lanes;
  S d[2], d2[2], abs[2];

  TDCORE_INLINE LaneSums() noexcept {
    d[0] = d[1] = d2[0] = d2[1] = abs[0] = abs[1] = V::set1(typename LaneTypes<V, kWide>::Lane{0});
  }
  template <bool kShifted>
  TDCORE_INLINE void add(int set, S x, S pivot) noexcept {
    const S delta = kShifted ? V::sub(x, pivot) : x;
    d[set] = V::accumulate(d[set], delta);
    d2[set] = V::fma(delta, delta, d2[set]);
    abs[set] = V::accumulate(abs[set], V::abs(x));
  }
};

template <class V>
TDCORE_INLINE typename V::D widen_sum(typename V::F lanes) noexcept {
  return V::add(V::widen_low(lanes), V::widen_high(lanes));
}

/// Adds float32 sums to float64 ones.
template <class V>
TDCORE_INLINE void flush(LaneSums<V, true>& into, const LaneSums<V, false>& sums) noexcept {
  for (int set = 0; set < 2; ++set) {
    into.d[set] = V::add(into.d[set], widen_sum<V>(sums.d[set]));
    into.d2[set] = V::add(into.d2[set], widen_sum<V>(sums.d2[set]));
    into.abs[set] = V::add(into.abs[set], widen_sum<V>(sums.abs[set]));
  }
}

/// Counts of NaN and Inf in a masked pass.
template <class V, class E>
struct NonFinite {
  Counter<V, E> pos_inf = no_count<V, E>(), neg_inf = pos_inf, finite = pos_inf;

  /// Counts NaN and Inf, and returns the finite lanes.
  TDCORE_INLINE auto find(Lanes<V, E> x) noexcept {
    const auto is_finite = V::is_finite(x);
    finite = V::tally(finite, is_finite);
    pos_inf = V::tally(pos_inf, V::same_bits(x, all_lanes<V, E>(kInfinity)));
    neg_inf = V::tally(neg_inf, V::same_bits(x, all_lanes<V, E>(-kInfinity)));
    return is_finite;
  }
};

/// Options of a pass. kWidened: sums of float32 lanes in float64. kShifted: the pivot is not 0. kMasked: NaN
/// and Inf are left out and counted; they may occur in the values.
struct FastPass {
  static constexpr bool kWidened = false, kMasked = false;
};
struct MaskedPass {
  static constexpr bool kWidened = false, kMasked = true;
};
struct WidenedPass {
  static constexpr bool kWidened = true, kMasked = true;
};

/// The i-th vector of a group as two float64 vectors. `kept` may be a masked copy of the vector.
template <class V, class E, bool kMasked>
TDCORE_INLINE void widen_pair(const u8* data, int i, typename V::F kept, typename V::D (&wide)[2]) noexcept {
  if constexpr (kMasked) {
    wide[0] = V::widen_low(kept);
    wide[1] = V::widen_high(kept);
  } else {
    V::widen(E{}, data, i, kept, wide);
  }
}

/// The largest exponent byte without those of NaN and Inf, so that the histogram is not counted up to them.
TDCORE_INLINE int finite_high(const BlockSums& sums) noexcept {
  const double largest = -sums.min > sums.max ? -sums.min : sums.max;
  return largest > 0 && is_finite(largest) ? exponent_byte(largest) : 0;
}

/// Sums `groups` groups from `data`, and writes one exponent byte per element to `exponents`. `pivot` is a
/// value of the lanes' type. If the element type is summed in float32, the sums are flushed to float64 every
/// kFlushGroups groups. Not inlined, because it needs all registers.
template <class V, class E, class Pass, bool kShifted>
TDCORE_NOINLINE void sum_pass(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                              BlockSums& sums) noexcept {
  constexpr bool kFloatSums = E::kFloatSums && !Pass::kWidened;
  const auto k = all_lanes<V, E>(pivot);
  const auto sum_pivot = V::set1(static_cast<typename LaneTypes<V, !kFloatSums>::Lane>(pivot));
  const auto hidden = all_lanes<V, E>(__builtin_nan(""));  // ignored by min and max
  [[maybe_unused]] NonFinite<V, E> special;
  Lanes<V, E> low = all_lanes<V, E>(kInfinity), high = all_lanes<V, E>(-kInfinity);
  typename V::B low_byte = V::set8(255), high_byte = V::zero8();
  const auto add_group = [&](auto& part) __attribute__((always_inline)) {
    look_ahead<V>(ahead, kAheadStep<V, E>);
    Lanes<V, E> x[kVectors<E>];
    load_group<V, E>(data, x);
    for (int i = 0; i < kVectors<E>; ++i) {
      auto kept = x[i], seen = x[i];
      if constexpr (Pass::kMasked) {
        const auto finite = special.find(x[i]);
        seen = V::select(finite, x[i], hidden);
        kept = V::select(finite, x[i], k);
      }
      low = V::min(seen, low);
      high = V::max(seen, high);
      if constexpr (E::kWide || kFloatSums) {
        part.template add<kShifted>(i & 1, kept, sum_pivot);
      } else {
        typename V::D wide[2];
        widen_pair<V, E, Pass::kMasked>(data, i, kept, wide);
        part.template add<kShifted>(0, wide[0], sum_pivot);
        part.template add<kShifted>(1, wide[1], sum_pivot);
      }
    }
    const typename V::B exponent = group_exponents<V, E>(data, x);
    V::store8(exponents, exponent);
    low_byte = V::min8(low_byte, exponent);
    if constexpr (!Pass::kMasked) high_byte = V::max8(high_byte, exponent);
    data += V::kGroup * sizeof(typename E::Raw);
    exponents += V::kGroup;
  };
  LaneSums<V, true> totals;
  for (u64 left = groups; left != 0;) {
    if constexpr (kFloatSums) {
      LaneSums<V, false> part;
      const u64 here = left < kFlushGroups ? left : kFlushGroups;
      for (u64 group = 0; group < here; ++group) add_group(part);
      flush<V>(totals, part);
      left -= here;
    } else {
      add_group(totals);
      --left;
    }
  }
  sums.d = total<V>(V::add(totals.d[0], totals.d[1]));
  sums.d2 = total<V>(V::add(totals.d2[0], totals.d2[1]));
  sums.abs = total<V>(V::add(totals.abs[0], totals.abs[1]));
  sums.min = least<V, Lane<V, E>>(low);
  sums.max = greatest<V, Lane<V, E>>(high);
  sums.low = V::lowest8(low_byte);
  sums.high = V::highest8(high_byte);
  if constexpr (Pass::kMasked) {
    sums.pos_inf = total_count<V, E>(special.pos_inf);
    sums.neg_inf = total_count<V, E>(special.neg_inf);
    sums.non_finite = groups * V::kGroup - total_count<V, E>(special.finite);
    sums.abs -= static_cast<double>(sums.non_finite) *
                (pivot < 0 ? -pivot : pivot);  // the pivot has replaced these values
    sums.high = finite_high(sums);
  } else {
    sums.pos_inf = sums.neg_inf = sums.non_finite = 0;
  }
}

template <class V, class E, class Function>
TDCORE_INLINE void each_vector(const u8* data, u64 groups, Function function) noexcept {
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    Lanes<V, E> x[kVectors<E>];
    load_group<V, E>(data, x);
    for (int i = 0; i < kVectors<E>; ++i) function(x[i]);
  }
}

/// Smallest |x| of a block, without NaN. Only for blocks that may lower the minimum of the chunk.
template <class V, class E>
TDCORE_NOINLINE double smallest_magnitude(const u8* data, u64 groups) noexcept {
  Lanes<V, E> low = all_lanes<V, E>(kInfinity);
  each_vector<V, E>(data, groups, [&](auto x) { low = V::min(V::abs(x), low); });  // NaN: `low` stays
  return least<V, Lane<V, E>>(low);
}

/// Number of zeros, +0 and -0. Needs a DefaultFloatMode, in which subnormals are not zeros. Only for blocks
/// that may contain zeros.
template <class V, class E>
TDCORE_NOINLINE u64 count_zeros(const u8* data, u64 groups) noexcept {
  Counter<V, E> count = no_count<V, E>();
  const auto zero = all_lanes<V, E>(0);
  each_vector<V, E>(data, groups, [&](auto x) { count = V::tally(count, V::equal(x, zero)); });
  return total_count<V, E>(count);
}

/// Number of values with |x| below the smallest normal float64.
template <class V, class E>
TDCORE_NOINLINE u64 count_below_normal(const u8* data, u64 groups) noexcept {
  Counter<V, E> count = no_count<V, E>();
  const auto normal = all_lanes<V, E>(0x1p-1022);
  each_vector<V, E>(data, groups, [&](auto x) { count = V::tally(count, V::less(V::abs(x), normal)); });
  return total_count<V, E>(count);
}

}  // namespace
}  // namespace tdcore
