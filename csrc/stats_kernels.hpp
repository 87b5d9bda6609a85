// stats_kernels.hpp: the block kernels of reduce(), written once over a small vector wrapper V.
//
// Included by exactly one .cpp per instruction set, after it has defined its wrapper. Everything is in an
// unnamed namespace, so that code compiled for one instruction set never serves another.
//
// A block (kBlockElements) takes one pass: sums of x - K, (x - K)^2 and |x|, min, max, and one byte per element
// with its binary exponent (as float32 has it: 0 for zero and below 2^-126, 255 for NaN and Inf), from which the
// histogram is counted. The pivot K is 0 as long as the mean is small beside the spread, else the mean of the block
// before; a block whose mean turns out too large for its K is summed again around its own mean.
// Two kinds of pass:
//   fast     assumes finite values; NaN or Inf in a block shows in its sum of squares, then the block is redone
//   careful  masks NaN and Inf out and counts them
// Two kinds of lanes: narrow (float32 lanes; float32, float16, bfloat16, 16-bit integers) and wide (float64
// lanes; float64, 32- and 64-bit integers). float16 and bfloat16 are summed in float32 for at most kFlushGroups
// groups, then added to float64; where squares could leave float32's range the careful pass, all float64, is taken.
//
// V provides, with G = V::kGroup elements per group (one byte vector):
//   F, D, I, L, B   float32 lanes (G/4), float64 lanes (G/8), 32- and 64-bit counters, bytes (G)
//   MF, MD          lane masks
//   see stats_avx2.cpp for the functions
// Threads: pure functions on the caller's state.
#pragma once

#include "stats_table.hpp"

#define TDCORE_NOINLINE __attribute__((noinline))
#define TDCORE_INLINE inline __attribute__((always_inline))

namespace tdcore {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr double kInfinity = __builtin_inf();
constexpr float kInfinityF = __builtin_inff();
constexpr int kFirstExponent = 127 + kLog2Min;                  // exponent byte of bin 0
constexpr int kLastExponent = kFirstExponent + kLog2Bins - 1;   // and of the last bin
constexpr u64 kFlushGroups = 16;

// Largest mean^2 / variance for which a block may be summed around another pivot: loses that factor of precision.
constexpr double kMaxShift = 4096;
constexpr double kMaxShiftFloat = 1;

// float32 sums of squares are taken only for blocks whose largest |x| is 0 or in [2^-40, 2^60).
constexpr int kNarrowFirst = 127 - 40;
constexpr int kNarrowLast = 127 + 59;

template <class To, class From>
TDCORE_INLINE To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// ---- element types: how one element reads -------------------------------------------------------------

struct F32Element {
  using Raw = u32;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = false;
  static constexpr Raw kSign = 0x80000000, kFirstNormal = 0x00800000;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  static double value(Raw raw) noexcept { return static_cast<double>(bits_as<float>(raw)); }
};
struct F64Element {
  using Raw = u64;
  static constexpr bool kFloat = true, kWide = true, kFloatSums = false;
  static constexpr Raw kSign = u64{1} << 63, kFirstNormal = u64{1} << 52;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  static double value(Raw raw) noexcept { return bits_as<double>(raw); }
};
struct BF16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0080;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  static double value(Raw raw) noexcept { return static_cast<double>(bits_as<float>(static_cast<u32>(raw) << 16)); }
};
struct F16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0400;
  static constexpr int kFirstNormalExponent = 127 - 14;  // exponent byte of the smallest normal value
  static double value(Raw raw) noexcept {
    const u32 magnitude = raw & 0x7fffu;
    const u32 sign = (raw & 0x8000u) << 16;
    if (magnitude < kFirstNormal) {
      const double tiny = static_cast<double>(magnitude) * 0x1p-24;
      return sign != 0 ? -tiny : tiny;
    }
    const u32 rebias = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
    return static_cast<double>(bits_as<float>(sign | ((magnitude << 13) + rebias)));
  }
};
template <class Integer, bool Wide>
struct IntegerElement {
  using Raw = Integer;
  static constexpr bool kFloat = false, kWide = Wide, kFloatSums = false;
  static constexpr int kFirstNormalExponent = 1;
  static double value(Raw raw) noexcept { return static_cast<double>(raw); }
};
using I16Element = IntegerElement<std::int16_t, false>;
using U16Element = IntegerElement<u16, false>;
using I32Element = IntegerElement<std::int32_t, true>;
using U32Element = IntegerElement<u32, true>;
using I64Element = IntegerElement<std::int64_t, true>;
using U64Element = IntegerElement<u64, true>;

template <class E>
TDCORE_INLINE typename E::Raw load_raw(const void* data, u64 index) noexcept {
  typename E::Raw raw;
  __builtin_memcpy(&raw, static_cast<const u8*>(data) + index * sizeof raw, sizeof raw);
  return raw;
}

/// Exponent byte of a finite or non-finite double, as the vector code makes it.
TDCORE_INLINE u8 exponent_byte(double value) noexcept {
  const int exponent = static_cast<int>((bits_as<u64>(value) >> 52) & 0x7ff) - 896;
  return static_cast<u8>(exponent < 0 ? 0 : exponent > 255 ? 255 : exponent);
}

TDCORE_INLINE bool is_finite(double value) noexcept { return ((bits_as<u64>(value) >> 52) & 0x7ff) != 0x7ff; }

// ---- sums of one block --------------------------------------------------------------------------------

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

// Memory must be kept busy while the histogram is counted as well, or the two times add up: the passes over the
// values ask for half of what comes next, the pass over the exponent bytes for the other half.
constexpr u64 kAheadBytes = 8192;

template <class V, class E>
constexpr u64 kAheadStep = V::kGroup * sizeof(typename E::Raw) / 2;

/// Asks for the next part of what lies ahead and moves on: once per group of values, once per group of exponent bytes.
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

/// Zeros, +0 and -0. Needs subnormals not to be taken for zeros (DefaultFloatMode). Only for blocks that may have some.
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

// ---- histogram ----------------------------------------------------------------------------------------

/// Exponent bytes of several blocks, counted together: what counting costs once is shared.
constexpr u64 kPendingElements = 8192;
static_assert(kPendingElements % kBlockElements == 0);
constexpr u64 kTallyGroups = 240;  // groups whose bytes are tallied in bytes; a multiple of kHalfGroups

struct Pending {
  alignas(64) u8 bytes[kPendingElements];
  u64 elements = 0;
  u64 zero_bytes = 0;  // how many are 0
  u64 non_finite = 0;  // and of NaN and Inf
  int low = 255, high = 0;
  const u8* ahead = nullptr;  // up to here memory was asked for
};

/// counts[i] += number of bytes equal to first + i, for i < N.
template <class V, int N>
TDCORE_NOINLINE void count_equal(const u8* bytes, const u8* end, int first, u64* counts) noexcept {
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    typename V::B tally[N], wanted[N];
    for (int i = 0; i < N; ++i) {
      tally[i] = V::zero8();
      wanted[i] = V::set8(first + i);
    }
    for (; bytes != stop; bytes += V::kGroup) {
      const typename V::B values = V::load8(bytes);
      for (int i = 0; i < N; ++i) {
        tally[i] = V::sub8(tally[i], V::eq8(values, wanted[i]));
      }
    }
    for (int i = 0; i < N; ++i) {
      counts[i] += V::sum8(tally[i]);
    }
  }
}

/// Number of bytes >= first.
template <class V>
TDCORE_NOINLINE u64 count_from(const u8* bytes, const u8* end, int first) noexcept {
  u64 count = 0;
  const typename V::B limit = V::set8(first);
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    typename V::B tally = V::zero8();
    for (; bytes != stop; bytes += V::kGroup) {
      const typename V::B values = V::load8(bytes);
      tally = V::sub8(tally, V::eq8(V::max8(values, limit), values));
    }
    count += V::sum8(tally);
  }
  return count;
}

constexpr int kWindow = 14;
constexpr int kTables = kWindow / 2;
constexpr int kFewBins = 6;
constexpr u64 kHalfGroups = 15;  // half a byte holds 15 at most
static_assert(kTallyGroups % kHalfGroups == 0 && kTallyGroups < 256);

/// halves[i] = how often each of the two bytes first + 2i, first + 2i + 1 occurs, in the halves of each byte. By table
/// look-up: table i turns one of its two values into 1 or 16 and any other into 0. Not inlined: needs all registers.
template <class V>
TDCORE_NOINLINE void count_halves(const u8* bytes, const u8* end, int first, const u8* ahead, u64 step,
                                  typename V::B* halves) noexcept {
  using B = typename V::B;
  // What GCC 12 needs to keep tables and sums in registers: no arrays of them, and the two constants in memory.
  const B constants[2] = {V::set8(first), V::set8(0x70)};  // 16 and more get the top bit: looked up as 0
  __asm__ volatile("" : : "r"(constants) : "memory");
  const B t0 = V::pair_table(0), t1 = V::pair_table(2), t2 = V::pair_table(4), t3 = V::pair_table(6);
  const B t4 = V::pair_table(8), t5 = V::pair_table(10), t6 = V::pair_table(12);
  B h0 = V::zero8(), h1 = h0, h2 = h0, h3 = h0, h4 = h0, h5 = h0, h6 = h0;
  for (; bytes != end; bytes += V::kGroup) {
    __asm__ volatile("" : : : "memory");
    V::prefetch(ahead);
    ahead += step;
    const B index = V::adds8(V::sub8(V::load8(bytes), constants[0]), constants[1]);
    h0 = V::add_look_up(h0, t0, index);
    h1 = V::add_look_up(h1, t1, index);
    h2 = V::add_look_up(h2, t2, index);
    h3 = V::add_look_up(h3, t3, index);
    h4 = V::add_look_up(h4, t4, index);
    h5 = V::add_look_up(h5, t5, index);
    h6 = V::add_look_up(h6, t6, index);
  }
  halves[0] = h0;
  halves[1] = h1;
  halves[2] = h2;
  halves[3] = h3;
  halves[4] = h4;
  halves[5] = h5;
  halves[6] = h6;
}
static_assert(kTables == 7);

/// counts[i - skip] += number of bytes equal to first + i, for skip <= i < kWindow.
template <class V>
TDCORE_NOINLINE void count_window(const u8* bytes, const u8* end, int first, int skip, const u8* ahead, u64 step,
                                  u64* counts) noexcept {
  using B = typename V::B;
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    B halves[kTables], tally[kWindow];
    for (int i = 0; i < kWindow; ++i) {
      tally[i] = V::zero8();
    }
    while (bytes != stop) {
      const u64 here = static_cast<u64>(stop - bytes);
      const u8* next = here > kHalfGroups * V::kGroup ? bytes + kHalfGroups * V::kGroup : stop;
      count_halves<V>(bytes, next, first, ahead, step, halves);
      ahead += static_cast<u64>(next - bytes) / V::kGroup * step;
      for (int i = 0; i < kTables; ++i) {
        tally[2 * i] = V::add8(tally[2 * i], V::low_half(halves[i]));
        tally[2 * i + 1] = V::add8(tally[2 * i + 1], V::high_half(halves[i]));
      }
      bytes = next;
    }
    for (int i = skip; i < kWindow; ++i) {
      counts[i - skip] += V::sum8(tally[i]);
    }
  }
}

/// Adds the bytes first .. last to the histogram one by one: for few of them. Returns how many they were.
template <class V>
TDCORE_NOINLINE u64 count_rare(const u8* bytes, const u8* end, int first, int last, u64* histogram) noexcept {
  constexpr u64 kStep = 4 * V::kGroup;  // looked at together
  const typename V::B from = V::set8(first), span = V::set8(last - first);
  const auto wanted = [&](const u8* at) {
    const typename V::B offsets = V::sub8(V::load8(at), from);
    return V::eq8(V::min8(offsets, span), offsets);
  };
  u64 found = 0;
  const auto count_group = [&](const u8* at) {
    for (u64 mask = V::mask8(wanted(at)); mask != 0; mask &= mask - 1) {
      ++histogram[at[__builtin_ctzll(mask)] - kFirstExponent];
      ++found;
    }
  };
  for (; static_cast<u64>(end - bytes) >= kStep; bytes += kStep) {
    const typename V::B pair = V::or8(wanted(bytes), wanted(bytes + V::kGroup));
    const typename V::B other = V::or8(wanted(bytes + 2 * V::kGroup), wanted(bytes + 3 * V::kGroup));
    if (V::mask8(V::or8(pair, other)) != 0) {
      for (u64 at = 0; at < kStep; at += V::kGroup) {
        count_group(bytes + at);
      }
    }
  }
  for (; bytes != end; bytes += V::kGroup) {
    count_group(bytes);
  }
  return found;
}

/// counts[i] += number of bytes equal to first + i, for i < bins.
TDCORE_NOINLINE [[maybe_unused]] void count_by_table(const u8* bytes, const u8* end, int first, int bins, u64* counts) noexcept {
  u32 tables[4][256] = {};
  for (; bytes != end; bytes += 4) {
    ++tables[0][bytes[0]];
    ++tables[1][bytes[1]];
    ++tables[2][bytes[2]];
    ++tables[3][bytes[3]];
  }
  for (int i = 0; i < bins; ++i) {
    const int e = first + i;
    counts[i] += u64{tables[0][e]} + tables[1][e] + tables[2][e] + tables[3][e];
  }
}

/// Counts the uppermost `bins` of the bytes first .. first + most - 1 and returns bins:
/// counts[i] += number of bytes equal to first + most - bins + i. At most kMaxBins.
template <class V>
constexpr int kMaxBins = V::kLookUp ? kWindow : kLog2Bins;

template <class V>
TDCORE_INLINE int count_some(const u8* bytes, const u8* end, int first, int most, const u8* ahead, u64 step,
                             u64* counts) noexcept {
  switch (most) {
    case 1: count_equal<V, 1>(bytes, end, first, counts); return 1;
    case 2: count_equal<V, 2>(bytes, end, first, counts); return 2;
    case 3: count_equal<V, 3>(bytes, end, first, counts); return 3;
    case 4: count_equal<V, 4>(bytes, end, first, counts); return 4;
    case 5: count_equal<V, 5>(bytes, end, first, counts); return 5;
    default: break;
  }
  if constexpr (V::kLookUp) {
    if (most > kFewBins) {
      const int bins = most < kWindow ? most : kWindow;
      count_window<V>(bytes, end, first + most - kWindow, kWindow - bins, ahead, step, counts);
      return bins;
    }
  } else if (most > 4 * kFewBins) {
    count_by_table(bytes, end, first, most, counts);
    return most;
  }
  count_equal<V, kFewBins>(bytes, end, first + most - kFewBins, counts);
  return kFewBins;
}

/// Adds the pending exponent bytes to the histogram, from the top until nothing remains; the lowest bin that can be
/// in use gets what remains.
template <class V>
TDCORE_NOINLINE void count_pending(Pending& pending, u64 step, u64 (&histogram)[kLog2Bins]) noexcept {
  const u8* ahead = pending.ahead;
  const u8* bytes = pending.bytes;
  const u8* end = bytes + pending.elements;
  u64 remaining = pending.elements - pending.zero_bytes - pending.non_finite;
  const int lowest = pending.low == 0 ? kFirstExponent : pending.low;
  const int first = lowest < kFirstExponent ? kFirstExponent : lowest > kLastExponent ? kLastExponent : lowest;
  int last = pending.high < kFirstExponent ? kFirstExponent : pending.high > kLastExponent ? kLastExponent : pending.high;
  if (last == kLastExponent && last > first) {
    const u64 count = count_from<V>(bytes, end, last) - pending.non_finite;
    histogram[kLog2Bins - 1] += count;
    remaining -= count;
    --last;
  }
  while (remaining != 0 && last > first) {
    if constexpr (V::kLookUp) {
      if (remaining * 128 < pending.elements && last - first > 1) {
        remaining -= count_rare<V>(bytes, end, first + 1, last, histogram);
        break;
      }
    }
    u64 counts[kMaxBins<V>] = {};
    const int bins = count_some<V>(bytes, end, first + 1, last - first, ahead, step, counts);
    step = 0;
    last -= bins;
    for (int i = 0; i < bins; ++i) {
      histogram[last + 1 + i - kFirstExponent] += counts[i];
      remaining -= counts[i];
    }
  }
  histogram[first - kFirstExponent] += remaining;
  pending.elements = 0;
  pending.zero_bytes = 0;
  pending.non_finite = 0;
  pending.low = 255;
  pending.high = 0;
}

// ---- the elements after the last whole group ------------------------------------------------------------

/// Their finite values, as doubles; everything but the moments is already counted.
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

/// Mean of a block whose sum left float64's range (values around 1e308).
template <class E>
TDCORE_NOINLINE double scaled_mean(const u8* data, u64 elements, double finite) noexcept {
  double mean = 0;
  for (u64 i = 0; i < elements; ++i) {
    const double value = E::value(load_raw<E>(data, i));
    mean += is_finite(value) ? value / finite : 0.0;
  }
  return mean;
}

template <class V, class E>
TDCORE_INLINE void fast_pass(const u8* data, u64 groups, double pivot, u8* exponents, const u8* ahead,
                          BlockSums& sums) noexcept {
  if constexpr (E::kWide) {
    pivot == 0 ? wide_double<V, E, false>(data, groups, pivot, exponents, ahead, sums)
               : wide_double<V, E, true>(data, groups, pivot, exponents, ahead, sums);
  } else if constexpr (E::kFloatSums) {
    pivot == 0 ? narrow_float<V, E, false>(data, groups, pivot, exponents, ahead, sums)
               : narrow_float<V, E, true>(data, groups, pivot, exponents, ahead, sums);
  } else {
    pivot == 0 ? narrow_double<V, E, false>(data, groups, pivot, exponents, ahead, sums)
               : narrow_double<V, E, true>(data, groups, pivot, exponents, ahead, sums);
  }
}

/// True when a fast pass is not to be trusted for a block with these sums.
template <class E>
TDCORE_INLINE bool needs_care(const BlockSums& sums) noexcept {
  if (sums.non_finite != 0 || !is_finite(sums.d2)) {
    return true;
  }
  const bool nothing_but_zeros = sums.min == 0 && sums.max == 0;
  return E::kFloatSums && !nothing_but_zeros && (sums.high < kNarrowFirst || sums.high > kNarrowLast);
}

/// Sums of a block's groups around `pivot`: fast if that will do, else careful.
template <class V, class E>
TDCORE_INLINE void sum_groups(ChunkState& state, const u8* data, u64 groups, double pivot, u8* exponents,
                              const u8* ahead, BlockSums& sums) noexcept {
  sums = BlockSums{};
  if (groups == 0) {
    return;
  }
  if constexpr (!E::kFloat) {
    fast_pass<V, E>(data, groups, pivot, exponents, ahead, sums);
    return;
  }
  if (!state.careful) {
    fast_pass<V, E>(data, groups, pivot, exponents, ahead, sums);
    if (!needs_care<E>(sums)) {
      return;
    }
    sums = BlockSums{};
  }
  if constexpr (E::kWide) {
    wide_careful<V, E>(data, groups, pivot, exponents, ahead, sums);
  } else {
    narrow_careful<V, E>(data, groups, pivot, exponents, ahead, sums);
  }
  state.careful = needs_care<E>(sums);
}

struct Moments {
  double mean, m2;
};

template <class E>
TDCORE_INLINE Moments moments_of(const BlockSums& sums, double pivot, double finite, const u8* data, u64 elements) noexcept {
  const double offset = sums.d / finite;
  double mean = pivot + offset;
  if (E::kFloat && E::kWide && !is_finite(mean)) {
    mean = scaled_mean<E>(data, elements, finite);
  }
  const double m2 = sums.d2 - offset * sums.d;
  return {mean, m2 > 0 ? m2 : m2 <= 0 ? 0.0 : kInfinity};  // NaN: Inf - Inf
}

/// True when the spread is too small beside the mean to be summed around 0.
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
TDCORE_INLINE void add_finite(ChunkState& state, const BlockSums& sums, double abs_min, const Moments& m, double finite) noexcept {
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

/// Zeros and subnormals of a block's groups; its exponent bytes, already in place, become pending. Returns its
/// smallest |x|, or Inf if that cannot matter.
template <class V, class E>
TDCORE_INLINE double count_groups(ChunkState& state, const u8* data, u64 groups, const BlockSums& sums,
                                  Pending& pending) noexcept {
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
TDCORE_INLINE void feed_block(ChunkState& state, const u8* data, u64 elements, Pending& pending) noexcept {
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
  sum_groups<V, E>(state, data, groups, pivot, exponents, pending.ahead, sums);
  add_tail<V>(tail, pivot, sums, abs_min);
  const double finite = static_cast<double>(groups * V::kGroup - sums.non_finite + tail.finite);
  if (finite > 0) {
    Moments moments = moments_of<E>(sums, pivot, finite, data, elements);
    const bool far = needs_pivot<E>(moments, finite);
    if (far && pivot == 0) {
      pivot = as_pivot<E>(moments.mean);
      sum_groups<V, E>(state, data, groups, pivot, exponents, pending.ahead, sums);
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
  Pending pending;
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
  table.copy = V::copy;
  table.fence = V::fence;
  return table;
}

}  // namespace
}  // namespace tdcore
