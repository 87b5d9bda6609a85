// stats_kernels.hpp: the block kernels of reduce(), written once over a small vector wrapper V.
//
// Included by exactly one .cpp per instruction set, after it has defined its wrapper. Everything is in an
// unnamed namespace, so that code compiled for one instruction set never serves another.
//
// A block (kBlockElements) takes one pass: sums around a pivot K, min, max, and one byte per element with its
// binary exponent (as float32 has it: 0 for zero and below 2^-126, 255 for NaN and Inf). The histogram is
// counted from those bytes. Two kinds of pass:
//   fast     assumes finite values; NaN or Inf in a block shows in its sum of squares, then the block is redone
//   careful  masks NaN and Inf out and counts them
// Two kinds of lanes: narrow (float32 lanes; float32, float16, bfloat16, 16-bit integers) and wide (float64
// lanes; float64, 32- and 64-bit integers). float16 and bfloat16 are summed in float32 for at most kFlushGroups
// groups, then added to float64; where squares could leave float32's range the careful pass, all float64, is taken.
//
// V provides, with G = V::kGroup elements per group (one byte vector):
//   F, D, I, B      float32 lanes (G/4), float64 lanes (G/8), 32-bit lanes (G/4), bytes (G)
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
  static double value(Raw raw) noexcept { return static_cast<double>(bits_as<float>(raw)); }
};
struct F64Element {
  using Raw = u64;
  static constexpr bool kFloat = true, kWide = true, kFloatSums = false;
  static constexpr Raw kSign = u64{1} << 63, kFirstNormal = u64{1} << 52;
  static double value(Raw raw) noexcept { return bits_as<double>(raw); }
};
struct BF16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0080;
  static double value(Raw raw) noexcept { return static_cast<double>(bits_as<float>(static_cast<u32>(raw) << 16)); }
};
struct F16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0400;
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

// ---- one block ----------------------------------------------------------------------------------------

/// Sums of one block, over its finite values.
struct BlockSums {
  double d = 0, d2 = 0;  // of x - pivot, and of its square
  double abs = 0;
  double min = kInfinity, max = -kInfinity, abs_min = kInfinity;
  u64 non_finite = 0, pos_inf = 0, neg_inf = 0;
  // of the exponent bytes of the groups (the scalar tail keeps its own)
  u64 zero_bytes = 0;  // exponent byte 0
  int low = 255;       // smallest exponent byte other than 0, minus 1; 255 when none
  int high = 0;        // largest
};

template <class V>
struct ByteSums {
  typename V::B zeros = V::zero8(), low = V::set8(255), high = V::zero8();

  TDCORE_INLINE void add(typename V::B bytes) noexcept {
    zeros = V::sub8(zeros, V::eq8(bytes, V::zero8()));
    low = V::min8(low, V::sub8(bytes, V::set8(1)));
    high = V::max8(high, bytes);
  }
  void finish(BlockSums& sums) const noexcept {
    sums.zero_bytes = V::sum8(zeros);
    sums.low = V::lowest8(low);
    sums.high = V::highest8(high);
  }
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

template <class V, class Lanes, class T>
TDCORE_INLINE void extremes(Lanes low, Lanes high, Lanes abs_low, BlockSums& sums, T) noexcept {
  constexpr u64 kLanes = sizeof(Lanes) / sizeof(T);
  T lows[kLanes], highs[kLanes], abs_lows[kLanes];
  V::store(lows, low);
  V::store(highs, high);
  V::store(abs_lows, abs_low);
  for (u64 lane = 0; lane < kLanes; ++lane) {
    const double l = static_cast<double>(lows[lane]), h = static_cast<double>(highs[lane]);
    const double a = static_cast<double>(abs_lows[lane]);
    sums.min = l < sums.min ? l : sums.min;
    sums.max = h > sums.max ? h : sums.max;
    sums.abs_min = a < sums.abs_min ? a : sums.abs_min;
  }
}

/// The largest exponent byte without those of NaN and Inf, so that the histogram is not counted up to them.
TDCORE_INLINE void finite_high(BlockSums& sums) noexcept {
  const double largest = -sums.min > sums.max ? -sums.min : sums.max;
  sums.high = largest > 0 && is_finite(largest) ? exponent_byte(largest) : 0;
}

constexpr u64 kPrefetchBytes = 4096;

template <class V, class E>
TDCORE_INLINE void prefetch_group(const u8* at) noexcept {
  for (u64 offset = 0; offset < V::kGroup * sizeof(typename E::Raw); offset += 64) {
    V::prefetch(at + offset + kPrefetchBytes);
  }
}

/// Narrow, fast, float64 sums. `groups` groups from `data`; one exponent byte per element to `exponents`.
template <class V, class E>
TDCORE_NOINLINE void narrow_double(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const D k = V::set1(pivot);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  F low = V::set1(kInfinityF), high = V::set1(-kInfinityF), abs_low = low;
  ByteSums<V> bytes;
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    prefetch_group<V, E>(data);
    F x[4];
    V::load4(E{}, data, x);
    F magnitude[4];
    for (int i = 0; i < 4; ++i) {
      magnitude[i] = V::abs(x[i]);
      low = V::min(low, x[i]);
      high = V::max(high, x[i]);
      abs_low = V::min(abs_low, magnitude[i]);
      const D wide[2] = {V::widen_low(x[i]), V::widen_high(x[i])};
      for (int half = 0; half < 2; ++half) {
        const D delta = V::sub(wide[half], k);
        d[half] = V::add(d[half], delta);
        d2[half] = V::fma(delta, delta, d2[half]);
        abs[half] = V::add(abs[half], V::abs(wide[half]));
      }
    }
    const typename V::B exponent = V::exponents_narrow(magnitude);
    V::store8(exponents + group * V::kGroup, exponent);
    bytes.add(exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  extremes<V>(low, high, abs_low, sums, float{});
  bytes.finish(sums);
}

template <class V>
TDCORE_INLINE typename V::D widen_sum(typename V::F lanes) noexcept {
  return V::add(V::widen_low(lanes), V::widen_high(lanes));
}

/// Narrow, fast, float32 sums flushed to float64 every kFlushGroups groups. `pivot` is a float32 value.
template <class V, class E>
TDCORE_NOINLINE void narrow_float(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const F k = V::set1(static_cast<float>(pivot));
  const F nothing = V::set1(0.0f);
  D d_total = V::set1(0.0), d2_total = d_total, abs_total = d_total;
  F low = V::set1(kInfinityF), high = V::set1(-kInfinityF), abs_low = low;
  ByteSums<V> bytes;
  for (u64 group = 0; group < groups;) {
    F d[4] = {nothing, nothing, nothing, nothing}, d2[4] = {nothing, nothing, nothing, nothing};
    F abs[2] = {nothing, nothing};
    const u64 end = group + kFlushGroups < groups ? group + kFlushGroups : groups;
    for (; group < end; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
      prefetch_group<V, E>(data);
      F x[4];
      V::load4(E{}, data, x);
      F magnitude[4];
      for (int i = 0; i < 4; ++i) {
        magnitude[i] = V::abs(x[i]);
        low = V::min(low, x[i]);
        high = V::max(high, x[i]);
        abs_low = V::min(abs_low, magnitude[i]);
        const F delta = V::sub(x[i], k);
        d[i & 1] = V::add(d[i & 1], delta);
        d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
        abs[i & 1] = V::add(abs[i & 1], magnitude[i]);
      }
      const typename V::B exponent = V::exponents_narrow(magnitude);
      V::store8(exponents + group * V::kGroup, exponent);
      bytes.add(exponent);
    }
    d_total = V::add(d_total, V::add(widen_sum<V>(d[0]), widen_sum<V>(d[1])));
    d2_total = V::add(d2_total, V::add(widen_sum<V>(d2[0]), widen_sum<V>(d2[1])));
    abs_total = V::add(abs_total, V::add(widen_sum<V>(abs[0]), widen_sum<V>(abs[1])));
  }
  sums.d = total<V>(d_total);
  sums.d2 = total<V>(d2_total);
  sums.abs = total<V>(abs_total);
  extremes<V>(low, high, abs_low, sums, float{});
  bytes.finish(sums);
}

/// Narrow, careful: NaN and Inf masked out and counted. `pivot` is a float32 value.
template <class V, class E>
TDCORE_NOINLINE void narrow_careful(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  using F = typename V::F;
  using D = typename V::D;
  const D k = V::set1(pivot);
  const F kf = V::set1(static_cast<float>(pivot)), inf = V::set1(kInfinityF), neg = V::set1(-kInfinityF);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  F low = inf, high = neg, abs_low = inf;
  typename V::I pos_inf = V::zero32(), neg_inf = V::zero32(), finite_count = V::zero32();
  ByteSums<V> bytes;
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    prefetch_group<V, E>(data);
    F x[4];
    V::load4(E{}, data, x);
    F magnitude[4];
    for (int i = 0; i < 4; ++i) {
      magnitude[i] = V::abs(x[i]);
      const typename V::MF finite = V::less(magnitude[i], inf);
      finite_count = V::tally(finite_count, finite);
      pos_inf = V::tally(pos_inf, V::equal(x[i], inf));
      neg_inf = V::tally(neg_inf, V::equal(x[i], neg));
      low = V::min(low, V::select(finite, x[i], inf));
      high = V::max(high, V::select(finite, x[i], neg));
      abs_low = V::min(abs_low, V::select(finite, magnitude[i], inf));
      const F kept = V::select(finite, x[i], kf);
      const F kept_abs = V::select(finite, magnitude[i], V::set1(0.0f));
      const D wide[2] = {V::widen_low(kept), V::widen_high(kept)};
      const D wide_abs[2] = {V::widen_low(kept_abs), V::widen_high(kept_abs)};
      for (int half = 0; half < 2; ++half) {
        const D delta = V::sub(wide[half], k);
        d[half] = V::add(d[half], delta);
        d2[half] = V::fma(delta, delta, d2[half]);
        abs[half] = V::add(abs[half], wide_abs[half]);
      }
    }
    const typename V::B exponent = V::exponents_narrow(magnitude);
    V::store8(exponents + group * V::kGroup, exponent);
    bytes.add(exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.pos_inf = V::sum32(pos_inf);
  sums.neg_inf = V::sum32(neg_inf);
  sums.non_finite = groups * V::kGroup - V::sum32(finite_count);
  extremes<V>(low, high, abs_low, sums, float{});
  bytes.finish(sums);
  finite_high(sums);
}

/// Wide, fast.
template <class V, class E>
TDCORE_NOINLINE void wide_double(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  using D = typename V::D;
  const D k = V::set1(pivot);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  D low = V::set1(kInfinity), high = V::set1(-kInfinity), abs_low = low;
  ByteSums<V> bytes;
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    prefetch_group<V, E>(data);
    D x[8];
    V::load8(E{}, data, x);
    for (int i = 0; i < 8; ++i) {
      const D magnitude = V::abs(x[i]);
      low = V::min(low, x[i]);
      high = V::max(high, x[i]);
      abs_low = V::min(abs_low, magnitude);
      const D delta = V::sub(x[i], k);
      d[i & 1] = V::add(d[i & 1], delta);
      d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
      abs[i & 1] = V::add(abs[i & 1], magnitude);
    }
    const typename V::B exponent = V::exponents_wide(x);
    V::store8(exponents + group * V::kGroup, exponent);
    bytes.add(exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  extremes<V>(low, high, abs_low, sums, double{});
  bytes.finish(sums);
}

/// Wide, careful.
template <class V, class E>
TDCORE_NOINLINE void wide_careful(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  using D = typename V::D;
  const D k = V::set1(pivot), inf = V::set1(kInfinity), neg = V::set1(-kInfinity);
  D d[2] = {V::set1(0.0), V::set1(0.0)}, d2[2] = {d[0], d[0]}, abs[2] = {d[0], d[0]};
  D low = inf, high = neg, abs_low = inf;
  typename V::L pos_inf = V::zero64(), neg_inf = V::zero64(), finite_count = V::zero64();
  ByteSums<V> bytes;
  for (u64 group = 0; group < groups; ++group, data += V::kGroup * sizeof(typename E::Raw)) {
    prefetch_group<V, E>(data);
    D x[8];
    V::load8(E{}, data, x);
    for (int i = 0; i < 8; ++i) {
      const D magnitude = V::abs(x[i]);
      const typename V::MD finite = V::less(magnitude, inf);
      finite_count = V::tally(finite_count, finite);
      pos_inf = V::tally(pos_inf, V::equal(x[i], inf));
      neg_inf = V::tally(neg_inf, V::equal(x[i], neg));
      low = V::min(low, V::select(finite, x[i], inf));
      high = V::max(high, V::select(finite, x[i], neg));
      abs_low = V::min(abs_low, V::select(finite, magnitude, inf));
      const D delta = V::sub(V::select(finite, x[i], k), k);
      d[i & 1] = V::add(d[i & 1], delta);
      d2[i & 1] = V::fma(delta, delta, d2[i & 1]);
      abs[i & 1] = V::add(abs[i & 1], V::select(finite, magnitude, V::set1(0.0)));
    }
    const typename V::B exponent = V::exponents_wide(x);
    V::store8(exponents + group * V::kGroup, exponent);
    bytes.add(exponent);
  }
  sums.d = total<V>(V::add(d[0], d[1]));
  sums.d2 = total<V>(V::add(d2[0], d2[1]));
  sums.abs = total<V>(V::add(abs[0], abs[1]));
  sums.pos_inf = V::sum64(pos_inf);
  sums.neg_inf = V::sum64(neg_inf);
  sums.non_finite = groups * V::kGroup - V::sum64(finite_count);
  extremes<V>(low, high, abs_low, sums, double{});
  bytes.finish(sums);
  finite_high(sums);
}

// ---- histogram ----------------------------------------------------------------------------------------

/// counts[i] += number of bytes equal to first + i, for i < N.
template <class V, int N>
TDCORE_NOINLINE void count_equal(const u8* bytes, u64 groups, int first, u64* counts) noexcept {
  typename V::B tally[N], wanted[N];
  for (int i = 0; i < N; ++i) {
    tally[i] = V::zero8();
    wanted[i] = V::set8(first + i);
  }
  for (u64 group = 0; group < groups; ++group) {
    const typename V::B values = V::load8(bytes + group * V::kGroup);
    for (int i = 0; i < N; ++i) {
      tally[i] = V::sub8(tally[i], V::eq8(values, wanted[i]));
    }
  }
  for (int i = 0; i < N; ++i) {
    counts[i] += V::sum8(tally[i]);
  }
}

/// Number of bytes >= first.
template <class V>
TDCORE_NOINLINE u64 count_from(const u8* bytes, u64 groups, int first) noexcept {
  typename V::B tally = V::zero8();
  const typename V::B limit = V::set8(first);
  for (u64 group = 0; group < groups; ++group) {
    const typename V::B values = V::load8(bytes + group * V::kGroup);
    tally = V::sub8(tally, V::eq8(V::max8(values, limit), values));
  }
  return V::sum8(tally);
}

constexpr int kWideSpan = 32;  // from this many bins on, counting one by one is faster

/// Adds the exponent bytes of a block's groups to the histogram. The lowest bin in use gets what remains.
template <class V>
TDCORE_INLINE void count_exponents(const u8* bytes, u64 groups, const BlockSums& sums, u64 (&histogram)[kLog2Bins]) noexcept {
  u64 remaining = groups * V::kGroup - sums.zero_bytes - sums.non_finite;
  if (sums.low == 255) {  // zeros only
    return;
  }
  const int lowest = sums.low + 1;
  const int first = lowest < kFirstExponent ? kFirstExponent : lowest > kLastExponent ? kLastExponent : lowest;
  const int last = sums.high < kFirstExponent ? kFirstExponent : sums.high > kLastExponent ? kLastExponent : sums.high;
  u64 counts[kLog2Bins + 8] = {};  // of exponents first + 1 .. last
  int end = last;                  // exclusive
  if (last == kLastExponent && last > first) {
    counts[last - first - 1] = count_from<V>(bytes, groups, last) - sums.non_finite;
  } else {
    end = last + 1;
  }
  if (end - first > kWideSpan) {
    u32 tables[4][256] = {};
    for (u64 at = 0; at < groups * V::kGroup; at += 4) {
      ++tables[0][bytes[at]];
      ++tables[1][bytes[at + 1]];
      ++tables[2][bytes[at + 2]];
      ++tables[3][bytes[at + 3]];
    }
    for (int e = first + 1; e < end; ++e) {
      counts[e - first - 1] = u64{tables[0][e]} + tables[1][e] + tables[2][e] + tables[3][e];
    }
  } else {
    for (int e = first + 1; e < end;) {
      u64* at = counts + (e - first - 1);
      switch (end - e) {
        case 1: count_equal<V, 1>(bytes, groups, e, at); e += 1; break;
        case 2: count_equal<V, 2>(bytes, groups, e, at); e += 2; break;
        case 3: count_equal<V, 3>(bytes, groups, e, at); e += 3; break;
        case 4: count_equal<V, 4>(bytes, groups, e, at); e += 4; break;
        case 5: count_equal<V, 5>(bytes, groups, e, at); e += 5; break;
        default: count_equal<V, 6>(bytes, groups, e, at); e += 6; break;
      }
    }
  }
  for (int e = first + 1; e <= last; ++e) {
    histogram[e - kFirstExponent] += counts[e - first - 1];
    remaining -= counts[e - first - 1];
  }
  histogram[first - kFirstExponent] += remaining;
}

// ---- a block in a chunk -------------------------------------------------------------------------------

/// Zeros and subnormals by their bits. Only for blocks that have tiny values.
template <class E>
TDCORE_NOINLINE void count_tiny(const u8* data, u64 elements, u64& zeros, u64& subnormals) noexcept {
  using Raw = typename E::Raw;
  Raw zero_lanes = 0, below_lanes = 0;  // at most kBlockElements each
  static_assert(kBlockElements < 65536);
  for (u64 i = 0; i < elements; ++i) {
    const Raw magnitude = static_cast<Raw>(load_raw<E>(data, i) & static_cast<Raw>(~E::kSign));
    zero_lanes = static_cast<Raw>(zero_lanes + (magnitude == 0 ? 1 : 0));
    below_lanes = static_cast<Raw>(below_lanes + (magnitude < E::kFirstNormal ? 1 : 0));
  }
  zeros = zero_lanes;
  subnormals = static_cast<u64>(below_lanes) - zeros;
}

/// The elements after the last whole group, one by one.
template <class E>
TDCORE_INLINE void scalar_tail(const u8* data, u64 from, u64 to, double pivot, BlockSums& sums, ChunkState& state) noexcept {
  for (u64 i = from; i < to; ++i) {
    const typename E::Raw raw = load_raw<E>(data, i);
    const double value = E::value(raw);
    if (E::kFloat && !is_finite(value)) {
      ++sums.non_finite;
      sums.pos_inf += value == kInfinity ? 1 : 0;
      sums.neg_inf += value == -kInfinity ? 1 : 0;
      continue;
    }
    const double magnitude = value < 0 ? -value : value;
    const double delta = value - pivot;
    sums.d += delta;
    sums.d2 += delta * delta;
    sums.abs += magnitude;
    sums.min = value < sums.min ? value : sums.min;
    sums.max = value > sums.max ? value : sums.max;
    sums.abs_min = magnitude < sums.abs_min ? magnitude : sums.abs_min;
    if (magnitude == 0) {
      ++state.stats.zero_count;
      continue;
    }
    if constexpr (E::kFloat) {
      state.stats.subnormal_count += (raw & static_cast<typename E::Raw>(~E::kSign)) < E::kFirstNormal ? 1 : 0;
    }
    const int bin = static_cast<int>(exponent_byte(magnitude)) - kFirstExponent;
    ++state.stats.log2_counts[bin < 0 ? 0 : bin >= kLog2Bins ? kLog2Bins - 1 : bin];
  }
}

/// The first pivot: the finite element of least magnitude among a few spread over the block, so that one outlier
/// does not become it; the first finite element when none of those is finite.
template <class E>
TDCORE_NOINLINE void find_pivot(ChunkState& state, const u8* data, u64 elements) noexcept {
  constexpr u64 kSamples = 8;
  double best = kInfinity;
  for (u64 sample = 0; sample < kSamples; ++sample) {
    const double value = E::value(load_raw<E>(data, elements * sample / kSamples));
    const double magnitude = value < 0 ? -value : value;
    if (magnitude < (best < 0 ? -best : best)) {
      best = value;
    }
  }
  for (u64 i = 0; i < elements && !is_finite(best); ++i) {
    best = E::value(load_raw<E>(data, i));
  }
  if (is_finite(best)) {
    state.pivot = E::kWide ? best : static_cast<double>(static_cast<float>(best));
    state.has_pivot = true;
  }
}

/// Mean of a block whose sum around the pivot left float64's range (values around 1e308).
template <class E>
TDCORE_NOINLINE double scaled_mean(const u8* data, u64 elements, double finite) noexcept {
  double mean = 0;
  for (u64 i = 0; i < elements; ++i) {
    const double value = E::value(load_raw<E>(data, i));
    mean += is_finite(value) ? value / finite : 0.0;
  }
  return mean;
}

/// Adds the sums of a block of `elements` elements to the chunk's statistics (merge_moments of stats.hpp, inlined).
template <class E>
TDCORE_INLINE void add_block(ChunkState& state, const u8* data, u64 elements, const BlockSums& sums) noexcept {
  TensorStats& stats = state.stats;
  stats.count += elements;
  stats.pos_inf_count += sums.pos_inf;
  stats.neg_inf_count += sums.neg_inf;
  stats.nan_count += sums.non_finite - sums.pos_inf - sums.neg_inf;
  if (elements == sums.non_finite) {
    return;
  }
  const double finite = static_cast<double>(elements - sums.non_finite);
  double mean = state.pivot + sums.d / finite;
  if (E::kFloat && E::kWide && !is_finite(mean)) {
    mean = scaled_mean<E>(data, elements, finite);
  }
  const double correction = sums.d / finite * sums.d;
  double m2 = sums.d2 - correction;
  m2 = m2 > 0 ? m2 : m2 <= 0 ? 0.0 : kInfinity;  // NaN: Inf - Inf
  const double low = sums.min + 0.0, high = sums.max + 0.0;  // + 0.0 turns -0 into 0
  const double abs_low = sums.abs_min;
  const double abs_high = -low > high ? -low : high;
  const double square = m2 + finite * mean * mean;
  if (state.finite > 0) {
    merge_moments(stats.mean, stats.m2, state.finite, mean, m2, finite);
    stats.min = low < stats.min ? low : stats.min;
    stats.max = high > stats.max ? high : stats.max;
    stats.abs_min = abs_low < stats.abs_min ? abs_low : stats.abs_min;
    stats.abs_max = abs_high > stats.abs_max ? abs_high : stats.abs_max;
  } else {
    stats.mean = mean;
    stats.m2 = m2;
    stats.min = low;
    stats.max = high;
    stats.abs_min = abs_low;
    stats.abs_max = abs_high;
  }
  stats.abs_sum += sums.abs;
  stats.square_sum += square;
  state.finite += finite;
  state.pivot = E::kWide ? mean : static_cast<double>(static_cast<float>(mean));
}

template <class V, class E>
TDCORE_INLINE void fast_pass(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  if constexpr (E::kWide) {
    wide_double<V, E>(data, groups, pivot, exponents, sums);
  } else if constexpr (E::kFloatSums) {
    narrow_float<V, E>(data, groups, pivot, exponents, sums);
  } else {
    narrow_double<V, E>(data, groups, pivot, exponents, sums);
  }
}

template <class V, class E>
TDCORE_INLINE void careful_pass(const u8* data, u64 groups, double pivot, u8* exponents, BlockSums& sums) noexcept {
  sums = BlockSums{};
  if constexpr (E::kWide) {
    wide_careful<V, E>(data, groups, pivot, exponents, sums);
  } else {
    narrow_careful<V, E>(data, groups, pivot, exponents, sums);
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

template <class V, class E>
TDCORE_INLINE void feed_block(ChunkState& state, const u8* data, u64 elements, u8* exponents) noexcept {
  if (!state.has_pivot) {
    find_pivot<E>(state, data, elements);
  }
  const u64 groups = elements / V::kGroup;
  const u64 in_groups = groups * V::kGroup;
  BlockSums sums;
  if (groups != 0) {
    if constexpr (!E::kFloat) {
      fast_pass<V, E>(data, groups, state.pivot, exponents, sums);
    } else {
      if (!state.careful) {
        fast_pass<V, E>(data, groups, state.pivot, exponents, sums);
        state.careful = needs_care<E>(sums);
        if (state.careful) {
          careful_pass<V, E>(data, groups, state.pivot, exponents, sums);
        }
      } else {
        careful_pass<V, E>(data, groups, state.pivot, exponents, sums);
        state.careful = needs_care<E>(sums);
      }
    }
    u64 zeros = sums.zero_bytes, subnormals = 0;
    if constexpr (E::kFloat) {
      const int first_normal = sizeof(typename E::Raw) == 2 && E::kFirstNormal == 0x0400 ? 127 - 14 : 1;
      if (zeros != 0 || sums.low + 1 < first_normal) {
        count_tiny<E>(data, in_groups, zeros, subnormals);
      }
    }
    state.stats.zero_count += zeros;
    state.stats.subnormal_count += subnormals;
    count_exponents<V>(exponents, groups, sums, state.stats.log2_counts);
    state.stats.log2_counts[0] += sums.zero_bytes - zeros;  // below 2^-126, not zero
  }
  if (in_groups != elements) {
    scalar_tail<E>(data, in_groups, elements, state.pivot, sums, state);
  }
  add_block<E>(state, data, elements, sums);
}

template <class V, class E>
void feed(ChunkState& state, const void* source, void* destination, u64 elements, bool stream) noexcept {
  constexpr u64 kElementBytes = sizeof(typename E::Raw);
  alignas(64) u8 exponents[kBlockElements];
  const u8* from = static_cast<const u8*>(source);
  u8* to = static_cast<u8*>(destination);
  for (u64 done = 0; done < elements; done += kBlockElements) {
    const u64 here = elements - done < kBlockElements ? elements - done : kBlockElements;
    feed_block<V, E>(state, from + done * kElementBytes, here, exponents);
    if (to != nullptr) {
      if (stream) {
        V::copy(to + done * kElementBytes, from + done * kElementBytes, here * kElementBytes);
      } else {
        __builtin_memcpy(to + done * kElementBytes, from + done * kElementBytes, here * kElementBytes);
      }
    }
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
