// stats/kernels.hpp: the kernels of reduce(), written once over a small vector wrapper V.
// stats/elements.hpp has the element types, stats/sums.hpp the passes over a block, stats/histogram.hpp the
// histogram; this file adds blocks to chunks. stats/byte_sums.hpp has separate code for integers of one byte.
//
// Included by exactly one .cpp per instruction set, after it has defined its wrapper. Everything is in an
// unnamed namespace, so that code compiled for one instruction set is never used by another.
//
// A block (kBlockElements) needs one pass: sums of x - K, (x - K)^2 and |x|, min, max, and one byte per
// element with its binary exponent (as in float32: 0 for zero and below 2^-126, 255 for NaN and Inf), from
// which the histogram is counted. The pivot K is 0 while the mean is small compared with the spread,
// otherwise the mean of the previous block. A block whose mean is too large for its K is summed again around
// its own mean. Kinds of passes: - fast: assumes finite values; if the sum of squares shows a NaN or Inf, the
// block is summed again, masked - masked: leaves NaN and Inf out and counts them - widened: masked, and all
// sums in float64
//
// Two kinds of lanes: narrow (float32 lanes; float32, float16, bfloat16, 16-bit integers) and wide (float64
// lanes; float64, 32- and 64-bit integers). float16 and bfloat16 are summed in float32 for at most
// kFlushGroups groups, then added to float64; if squares may exceed float32's range, the widened pass is
// used.
//
// V provides, with G = V::kGroup elements per group (one byte vector):
//   F, D, I, L, B   float32 lanes (G/4), float64 lanes (G/8), 32- and 64-bit counters, bytes (G)
//   MF, MD          lane masks
//   see stats/avx2.cpp for the functions
// Threads: pure functions on the caller's state.
#pragma once

#include "stats/byte_sums.hpp"
#include "stats/histogram.hpp"

namespace tdcore {
namespace {

// ---- the elements after the last whole group ------------------------------------------------------------

/// The finite values of these elements, as doubles. Everything except the moments is already counted.
template <class V>
struct Tail {
  double values[V::kGroup];
  u64 finite = 0;
};

template <class V, class E>
TDCORE_NOINLINE void read_tail(const u8* data, u64 from, u64 to, Tail<V>& tail, TensorStats& stats) noexcept {
  for (u64 i = from; i < to; ++i) {
    const typename E::Raw raw = load_raw<E>(data, i);
    const double value = E::value(raw);
    if (E::kFloat && !is_finite(value)) {
      stats.pos_inf_count += value == kInfinity ? 1 : 0;
      stats.neg_inf_count += value == -kInfinity ? 1 : 0;
      stats.nan_count += value != value ? 1 : 0;
      continue;
    }
    tail.values[tail.finite++] = value;
    if (value == 0) {
      ++stats.zero_count;
      continue;
    }
    if constexpr (E::kFloat) {
      stats.subnormal_count += (raw & static_cast<typename E::Raw>(~E::kSign)) < E::kFirstNormal ? 1 : 0;
    }
    const int bin = static_cast<int>(exponent_byte(value)) - kFirstExponent;
    ++stats.log2_counts[bin < 0 ? 0 : bin >= kLog2Bins ? kLog2Bins - 1 : bin];
  }
}

template <class V>
TDCORE_INLINE void add_tail(const Tail<V>& tail, double pivot, BlockSums& sums, double& abs_min) noexcept {
  for (u64 i = 0; i < tail.finite; ++i) {
    const double value = tail.values[i];
    const double magnitude = value < 0 ? -value : value;
    const double delta = value - pivot;
    sums.d += delta;
    sums.d2 += delta * delta;
    sums.abs += magnitude;
    sums.min = value < sums.min ? value : sums.min;
    sums.max = value > sums.max ? value : sums.max;
    abs_min = magnitude < abs_min ? magnitude : abs_min;
  }
}

// ---- a block in a chunk ---------------------------------------------------------------------------------

/// Mean of a block whose sum exceeds float64's range (values around 1e308).
template <class E>
TDCORE_NOINLINE double scaled_mean(const u8* data, u64 elements, double finite) noexcept {
  double mean = 0;
  for (u64 i = 0; i < elements; ++i) {
    const double value = E::value(load_raw<E>(data, i));
    mean += is_finite(value) ? value / finite : 0.0;
  }
  return mean;
}

template <class V, class E, class Pass>
TDCORE_INLINE void run_pass(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                            BlockSums& sums) noexcept {
  pivot == 0 ? sum_pass<V, E, Pass, false>(data, groups, pivot, exponents, ahead, sums)
             : sum_pass<V, E, Pass, true>(data, groups, pivot, exponents, ahead, sums);
}

/// The cheapest pass that is sufficient for a block. `sums` are the result of a pass with care `tried`.
template <class E>
TDCORE_INLINE Care care_for(const BlockSums& sums, Care tried) noexcept {
  if (tried == Care::kNone && !is_finite(sums.d2)) {
    return Care::kMasked;
  }
  const bool zeros_or_nothing = !(sums.min < 0 || sums.max > 0);
  if (E::kFloatSums && !zeros_or_nothing && (sums.high < kNarrowFirst || sums.high > kNarrowLast)) {
    return Care::kWidened;
  }
  return sums.non_finite != 0 || !is_finite(sums.d2) ? Care::kMasked : Care::kNone;
}

/// Sums of a block's groups around `pivot`, first with the care that the previous block needed, then with
/// more care if necessary.
template <class V, class E>
TDCORE_INLINE void sum_groups(ChunkState& state, const u8* data, u64 groups, double pivot, u8* exponents,
                              const u8* ahead, BlockSums& sums) noexcept {
  if constexpr (!E::kFloat) {
    run_pass<V, E, FastPass>(data, groups, pivot, exponents, ahead, sums);
    return;
  }
  Care care = state.care;
  if (care == Care::kNone) {
    run_pass<V, E, FastPass>(data, groups, pivot, exponents, ahead, sums);
    care = care_for<E>(sums, Care::kNone);
    if (care == Care::kNone) {
      return;
    }
  }
  if (care == Care::kMasked) {
    run_pass<V, E, MaskedPass>(data, groups, pivot, exponents, ahead, sums);
    care = care_for<E>(sums, Care::kMasked);
  }
  if constexpr (E::kFloatSums) {
    if (care == Care::kWidened) {
      run_pass<V, E, WidenedPass>(data, groups, pivot, exponents, ahead, sums);
      care = care_for<E>(sums, Care::kWidened);
    }
  }
  state.care = care;
}

struct Moments {
  double mean, m2;
};

template <class E>
TDCORE_INLINE Moments moments_of(const BlockSums& sums, double pivot, double finite, const u8* data,
                                 u64 elements) noexcept {
  const double offset = sums.d / finite;
  double mean = pivot + offset;
  if (E::kFloat && E::kWide && !is_finite(mean)) {
    mean = scaled_mean<E>(data, elements, finite);
  }
  const double m2 = sums.d2 - offset * sums.d;
  return {mean, m2 > 0 ? m2 : m2 <= 0 ? 0.0 : kInfinity};  // NaN: Inf - Inf
}

/// True if the spread is too small compared with the mean to be summed around 0.
template <class E>
TDCORE_INLINE bool needs_pivot(const Moments& moments, double finite) noexcept {
  return finite * moments.mean * moments.mean > (E::kFloatSums ? kMaxShiftFloat : kMaxShift) * moments.m2;
}

/// A pivot that the kernels can represent.
template <class E>
TDCORE_INLINE double as_pivot(double mean) noexcept {
  return E::kWide ? mean : static_cast<double>(static_cast<float>(mean));
}

/// Adds a block's moments and extremes to the chunk's (merge_moments of stats.hpp, inlined).
TDCORE_INLINE void add_finite(ChunkState& state, const BlockSums& sums, double abs_min, const Moments& m,
                              double finite) noexcept {
  TensorStats& stats = state.stats;
  const double low = sums.min + 0.0, high = sums.max + 0.0;  // + 0.0 turns -0 into 0
  const double abs_max = -low > high ? -low : high;
  if (state.finite > 0) {
    merge_moments(stats.mean, stats.m2, state.finite, m.mean, m.m2, finite);
    stats.min = low < stats.min ? low : stats.min;
    stats.max = high > stats.max ? high : stats.max;
    stats.abs_min = abs_min < stats.abs_min ? abs_min : stats.abs_min;
    stats.abs_max = abs_max > stats.abs_max ? abs_max : stats.abs_max;
  } else {
    stats.mean = m.mean;
    stats.m2 = m.m2;
    stats.min = low;
    stats.max = high;
    stats.abs_min = abs_min;
    stats.abs_max = abs_max;
  }
  stats.abs_sum += sums.abs;
  stats.square_sum += m.m2 + finite * m.mean * m.mean;
  state.finite += finite;
}

/// Counts zeros and subnormals of a block's groups, and adds its exponent bytes to the pending ones. Returns
/// the smallest |x|, or Inf if it cannot change the result.
template <class V, class E>
TDCORE_INLINE double count_groups(ChunkState& state, const u8* data, u64 groups, const BlockSums& sums,
                                  PendingExponents& pending) noexcept {
  TensorStats& stats = state.stats;
  const u8* bytes = pending.bytes + pending.elements;
  const u8* end = bytes + groups * V::kGroup;
  constexpr bool kHalfFloat = E::kFirstNormalExponent == F16Element::kFirstNormalExponent;
  u64 zero_bytes = 0, zeros = 0, subnormals = 0;
  if (sums.low == 0) {
    count_equal<V, 1>(bytes, end, 0, &zero_bytes);
    zeros = E::kFloat && !kHalfFloat ? count_zeros<V, E>(data, groups) : zero_bytes;
  }
  if constexpr (E::kFloat) {
    if constexpr (kHalfFloat) {  // normal as float32
      if (sums.low < E::kFirstNormalExponent) {
        subnormals = groups * V::kGroup - count_from<V>(bytes, end, E::kFirstNormalExponent) - zeros;
      }
    } else if constexpr (E::kWide) {
      subnormals = zero_bytes != zeros ? count_below_normal<V, E>(data, groups) - zeros : 0;
    } else {
      subnormals = zero_bytes - zeros;
    }
  }
  stats.zero_count += zeros;
  stats.subnormal_count += subnormals;
  stats.log2_counts[0] += zero_bytes - zeros;  // below 2^-126, not zero
  pending.elements += groups * V::kGroup;
  pending.ahead += groups * kAheadStep<V, E>;
  pending.zero_bytes += zero_bytes;
  pending.non_finite += sums.non_finite;
  pending.low = sums.low < pending.low ? sums.low : pending.low;
  pending.high = sums.high > pending.high ? sums.high : pending.high;
  if (zeros != 0) {
    return 0;
  }
  const bool matters = !(state.finite > 0) || sums.low <= exponent_byte(stats.abs_min);
  return matters ? smallest_magnitude<V, E>(data, groups) : kInfinity;
}

template <class V, class E>
TDCORE_INLINE void feed_block(ChunkState& state, const u8* data, u64 elements,
                              PendingExponents& pending) noexcept {
  u8* exponents = pending.bytes + pending.elements;
  TensorStats& stats = state.stats;
  const u64 groups = elements / V::kGroup;
  stats.count += elements;
  Tail<V> tail;
  if (groups * V::kGroup != elements) {
    read_tail<V, E>(data, groups * V::kGroup, elements, tail, stats);
  }
  BlockSums sums;
  double pivot = state.pivot, abs_min = kInfinity;
  if (groups != 0) {
    sum_groups<V, E>(state, data, groups, pivot, exponents, pending.ahead, sums);
  }
  add_tail<V>(tail, pivot, sums, abs_min);
  const double finite = static_cast<double>(groups * V::kGroup - sums.non_finite + tail.finite);
  if (finite > 0) {
    Moments moments = moments_of<E>(sums, pivot, finite, data, elements);
    const bool far = needs_pivot<E>(moments, finite);
    if (far && pivot == 0) {
      pivot = as_pivot<E>(moments.mean);
      if (groups == 0) {
        sums = BlockSums{};
      } else {
        sum_groups<V, E>(state, data, groups, pivot, exponents, pending.ahead, sums);
      }
      add_tail<V>(tail, pivot, sums, abs_min);
      moments = moments_of<E>(sums, pivot, finite, data, elements);
    }
    state.pivot = far ? as_pivot<E>(moments.mean) : 0.0;
    if (groups != 0) {
      const double in_groups = count_groups<V, E>(state, data, groups, sums, pending);
      abs_min = in_groups < abs_min ? in_groups : abs_min;
    }
    add_finite(state, sums, abs_min, moments, finite);
  }
  stats.pos_inf_count += sums.pos_inf;
  stats.neg_inf_count += sums.neg_inf;
  stats.nan_count += sums.non_finite - sums.pos_inf - sums.neg_inf;
}

template <class V, class E>
void feed(ChunkState& state, const void* source, void* destination, u64 elements, bool stream) noexcept {
  constexpr u64 kElementBytes = sizeof(typename E::Raw);
  PendingExponents pending;
  const u8* from = static_cast<const u8*>(source);
  u8* to = static_cast<u8*>(destination);
  for (u64 done = 0; done < elements; done += kBlockElements) {
    const u64 here = elements - done < kBlockElements ? elements - done : kBlockElements;
    if (pending.elements == 0) {
      pending.ahead = from + done * kElementBytes + kAheadBytes;
    }
    feed_block<V, E>(state, from + done * kElementBytes, here, pending);
    if (pending.elements > kPendingElements - kBlockElements) {
      count_pending<V>(pending, kAheadStep<V, E>, state.stats.log2_counts);
    }
    if (to != nullptr) {
      if (stream) {
        V::copy(to + done * kElementBytes, from + done * kElementBytes, here * kElementBytes);
      } else {
        __builtin_memcpy(to + done * kElementBytes, from + done * kElementBytes, here * kElementBytes);
      }
    }
  }
  if (pending.elements != 0) {
    count_pending<V>(pending, kAheadStep<V, E>, state.stats.log2_counts);
  }
}

template <class V>
constexpr KernelTable make_table(const char* level) noexcept {
  KernelTable table{};
  table.level = level;
  table.feed[static_cast<int>(Dtype::kU16)] = feed<V, U16Element>;
  table.feed[static_cast<int>(Dtype::kI16)] = feed<V, I16Element>;
  table.feed[static_cast<int>(Dtype::kU32)] = feed<V, U32Element>;
  table.feed[static_cast<int>(Dtype::kI32)] = feed<V, I32Element>;
  table.feed[static_cast<int>(Dtype::kU64)] = feed<V, U64Element>;
  table.feed[static_cast<int>(Dtype::kI64)] = feed<V, I64Element>;
  table.feed[static_cast<int>(Dtype::kF16)] = feed<V, F16Element>;
  table.feed[static_cast<int>(Dtype::kBF16)] = feed<V, BF16Element>;
  table.feed[static_cast<int>(Dtype::kF32)] = feed<V, F32Element>;
  table.feed[static_cast<int>(Dtype::kF64)] = feed<V, F64Element>;
  table.feed_bytes[static_cast<int>(Dtype::kBool)] = feed_bytes<V, BoolByte>;
  table.feed_bytes[static_cast<int>(Dtype::kU8)] = feed_bytes<V, U8Byte>;
  table.feed_bytes[static_cast<int>(Dtype::kI8)] = feed_bytes<V, I8Byte>;
  table.copy = V::copy;
  table.fence = V::fence;
  return table;
}

}  // namespace
}  // namespace tdcore
