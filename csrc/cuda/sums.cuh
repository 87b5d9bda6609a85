// sums.cuh: one pass over elements that are assumed to be finite, and the histogram.
//
// A thread sums around its warp's pivot, a mean of some of the elements. By Chan, Golub and LeVeque, this
// loses at most the factor elements / (elements in the pivot) of precision, for any mean.
//   f32, f64, 32- and 64-bit integers: in float64, one by one
//   f32 on devices with few units for float64: up to 32 elements in float32, those sums in float64
//   f16, bf16, f8: eight by eight in float32 as a tree, those sums in float64
//   8- and 16-bit integers: exactly, in integers
// needs_care() of passes.cuh detects values that are not finite, or too large or small for sums in float32.
//
// Histogram: every thread has a column with a byte for each of the 64 bins, so no atomics are needed. A row
// of 256 bytes belongs to a bin; in a row, four warps share the words, and the lanes of a warp are in 32
// banks. A thread counts at most 255 elements before the counts are collected.
//
// Threads: an object belongs to one thread; moments_of_lanes() is called by all lanes of a warp together.
#pragma once

#include "cuda/values.cuh"

namespace tdcore::device {

/// The histogram column of a thread.
struct Bins {
  u8* column;

  TDCORE_DEVICE static Bins of_thread(u8* histogram) {
    const u32 warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
    return {histogram + warp / 4 * 4 * kLanes + 4 * lane + warp % 4};
  }
  TDCORE_DEVICE void clear() const {
    TDCORE_NO_UNROLL
    for (u32 bin = 0; bin < kLog2Bins; ++bin) column[bin * kThreads] = 0;
  }
  /// Adds `one` (0 or 1) without a branch, which would cost more.
  TDCORE_DEVICE void add(i64 bin, bool one) const {
    u8& count = column[bin * i64{kThreads}];
    u32 sum = count;
    if (one) ++sum;
    count = static_cast<u8>(sum);
  }
  /// NaN counts in the largest bin; 0 is not counted.
  TDCORE_DEVICE void add_magnitude(float magnitude, bool nonzero) const {
    const u32 bits = bits_as<u32>(fmaxf(fminf(magnitude, 0x1p23f), 0x1p-40f));
    add(static_cast<i64>(bits >> 23) - (127 - 40), nonzero);
  }
  TDCORE_DEVICE void add_magnitude(double magnitude, bool nonzero) const {
    constexpr u32 kLow = (1023u - 40) << 20, kTop = (1023u + 23) << 20;
    const u32 high = static_cast<u32>(bits_as<u64>(magnitude) >> 32);
    add(static_cast<i64>((high < kLow ? kLow : high > kTop ? kTop : high) >> 20) - (1023 - 40), nonzero);
  }
};
static_assert(kLog2Min == -40 && kLog2Bins == 64);

/// Sums around a pivot, of a lane or of a warp.
struct Moments {
  u32 finite = 0;
  double sum = 0, squares = 0, abs_sum = 0;
  double min = kInfinity, max = -kInfinity, abs_min = kInfinity;  // abs_min: over values other than 0

  TDCORE_DEVICE Values values(double pivot) const {
    if (finite == 0) return no_values();
    const double count = finite, offset = sum / count, mean = pivot + offset;
    const double m2 = squares - offset * sum;
    const double low = min + 0.0, high = max + 0.0;  // + 0.0 turns -0 into 0
    Values values;
    values.finite = count;
    values.mean = mean;
    values.m2 = m2 > 0 ? m2 : m2 <= 0 ? 0.0 : kInfinity;  // NaN: Inf - Inf
    values.abs_sum = abs_sum;
    values.square_sum = values.m2 + count * mean * mean;
    values.min = low;
    values.max = high;
    values.abs_min = abs_min;
    values.abs_max = -low > high ? -low : high;
    return values;
  }
};

TDCORE_DEVICE Moments moments_of_lanes(const Moments& lane) {
  Moments all;
  all.finite = sum_of_lanes(lane.finite);
  all.sum = sum_of_lanes(lane.sum);
  all.squares = sum_of_lanes(lane.squares);
  all.abs_sum = sum_of_lanes(lane.abs_sum);
  all.min = least_of_lanes(lane.min);
  all.max = greatest_of_lanes(lane.max);
  all.abs_min = least_of_lanes(lane.abs_min);
  return all;
}

// ---- f32, f64, 32- and 64-bit integers -------------------------------------------------------------------

// Extremes of a type, and the exponents of its bins.
template <class E>
struct Extremes {  // float64, and 64-bit integers as float64
  double min = kInfinity, max = -kInfinity, abs_min = kInfinity;

  TDCORE_DEVICE void add(double value, typename E::Raw, Bins bins) {
    const double magnitude = fabs(value);
    min = value < min ? value : min;
    max = value > max ? value : max;
    const bool nonzero = bits_as<u64>(magnitude) != 0;
    bins.add_magnitude(magnitude, nonzero);
    if (nonzero) abs_min = magnitude < abs_min ? magnitude : abs_min;
  }
};
template <>
struct Extremes<F32Element> {
  float min = kInfinityF, max = -kInfinityF, abs_min = kInfinityF;

  TDCORE_DEVICE void add(double, u32 raw, Bins bins) {
    const float value = bits_as<float>(raw), magnitude = fabsf(value);
    min = fminf(min, value);
    max = fmaxf(max, value);
    const bool nonzero = (raw & 0x7FFFFFFF) != 0;
    bins.add_magnitude(magnitude, nonzero);
    if (nonzero) abs_min = fminf(abs_min, magnitude);
  }
};
// Rounding to float32 changes no bin: below 2^23 it is exact.
template <>
struct Extremes<I32Element> {
  i32 min = 0x7FFFFFFF, max = -0x7FFFFFFF - 1;
  u32 abs_min = 0xFFFFFFFF;

  TDCORE_DEVICE void add(double, i32 value, Bins bins) {
    const u32 magnitude = value < 0 ? 0 - static_cast<u32>(value) : static_cast<u32>(value);
    min = value < min ? value : min;
    max = value > max ? value : max;
    bins.add_magnitude(static_cast<float>(magnitude), magnitude != 0);
    if (magnitude != 0) abs_min = magnitude < abs_min ? magnitude : abs_min;
  }
};
template <>
struct Extremes<U32Element> {
  u32 min = 0xFFFFFFFF, max = 0, abs_min = 0xFFFFFFFF;

  TDCORE_DEVICE void add(double, u32 value, Bins bins) {
    min = value < min ? value : min;
    max = value > max ? value : max;
    bins.add_magnitude(static_cast<float>(value), value != 0);
    if (value != 0) abs_min = value < abs_min ? value : abs_min;
  }
};

template <class E>
struct WideSums {
  using Raw = typename E::Raw;
  double pivot = 0, sum = 0, squares = 0, abs_sum = 0;
  Extremes<E> extremes;

  TDCORE_DEVICE static double first(const Words& words) { return E::value(element_of<Raw>(words, 0)); }
  TDCORE_DEVICE void add(const Words& words, Bins bins) {
    TDCORE_UNROLL
    for (u32 i = 0; i < kPerVector<sizeof(Raw)>; ++i) {
      const Raw raw = element_of<Raw>(words, i);
      const double value = E::value(raw), delta = value - pivot;
      sum += delta;
      squares += delta * delta;
      abs_sum += fabs(value);
      extremes.add(value, raw, bins);
    }
  }
  TDCORE_DEVICE Moments lane(u32 elements) const {
    Moments moments;
    if (elements == 0) return moments;
    moments.finite = elements;
    moments.sum = sum;
    moments.squares = squares;
    moments.abs_sum = abs_sum;
    moments.min = static_cast<double>(extremes.min);
    moments.max = static_cast<double>(extremes.max);
    moments.abs_min = static_cast<double>(extremes.abs_min);
    return moments;
  }
};

// ---- f32, on devices with few units for float64 ----------------------------------------------------------

// A multiprocessor of these devices (Turing, Ada, GeForce, B300) has 2 or 4 units for float64, and WideSums
// needs five of their operations per element. Error of a sum: three rounded additions of a vector's tree and
// one addition per vector until the carry, so at most 12 * 2^-24 of the sum of the magnitudes.
template <class E>
struct CarriedSums {
  using Raw = typename E::Raw;
  static constexpr u32 kCarryVectors = 8;  // number of vectors that are summed in float32
  double sum = 0, squares = 0, abs_sum = 0;
  float part_sum = 0, part_squares = 0, part_abs_sum = 0;
  float pivot = 0;
  u32 vectors = 0;  // in the partial sums
  Extremes<E> extremes;

  TDCORE_DEVICE static float first(const Words& words) { return bits_as<float>(words.word[0]); }
  TDCORE_DEVICE void add(const Words& words, Bins bins) {
    float delta[4], square[4], magnitude[4];
    TDCORE_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const float value = bits_as<float>(words.word[i]);
      delta[i] = value - pivot;
      square[i] = delta[i] * delta[i];
      magnitude[i] = fabsf(value);
      extremes.add(0, words.word[i], bins);
    }
    part_sum += tree(delta);
    part_squares += tree(square);
    part_abs_sum += tree(magnitude);
    if (++vectors == kCarryVectors) carry();
  }
  TDCORE_DEVICE static float tree(const float (&x)[4]) { return (x[0] + x[1]) + (x[2] + x[3]); }
  TDCORE_DEVICE void carry() {
    sum += static_cast<double>(part_sum);
    squares += static_cast<double>(part_squares);
    abs_sum += static_cast<double>(part_abs_sum);
    part_sum = part_squares = part_abs_sum = 0;
    vectors = 0;
  }
  TDCORE_DEVICE Moments lane(u32 elements) {
    carry();
    return {elements,
            sum,
            squares,
            abs_sum,
            static_cast<double>(extremes.min),
            static_cast<double>(extremes.max),
            static_cast<double>(extremes.abs_min)};
  }
};

template <bool kFewUnits>
struct Float32SumsOf {
  using Type = WideSums<F32Element>;
};
template <>
struct Float32SumsOf<true> {
  using Type = CarriedSums<F32Element>;
};
using Float32Sums = Float32SumsOf<kFewFloat64Units>::Type;

// ---- f16, bf16, f8 ---------------------------------------------------------------------------------------

template <class E>
struct ShortSums {
  using Raw = typename E::Raw;
  double sum = 0, squares = 0, abs_sum = 0;
  float pivot = 0, min = kInfinityF, max = -kInfinityF, abs_min = kInfinityF;

  TDCORE_DEVICE static float first(const Words& words) { return E::short_value(element_of<Raw>(words, 0)); }
  TDCORE_DEVICE void add(const Words& words, Bins bins) {
    TDCORE_UNROLL
    for (u32 from = 0; from < kPerVector<sizeof(Raw)>; from += 8) {
      float delta[8], square[2] = {}, magnitude[8];
      TDCORE_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        const float value = E::short_value(element_of<Raw>(words, from + i));
        delta[i] = value - pivot;
        magnitude[i] = fabsf(value);
        square[i % 2] += delta[i] * delta[i];
        min = fminf(min, value);
        max = fmaxf(max, value);
        const bool nonzero = (bits_as<u32>(value) & 0x7FFFFFFF) != 0;
        bins.add_magnitude(magnitude[i], nonzero);
        if (nonzero) abs_min = fminf(abs_min, magnitude[i]);
      }
      sum += static_cast<double>(tree(delta));
      squares += static_cast<double>(square[0] + square[1]);
      abs_sum += static_cast<double>(tree(magnitude));
    }
  }
  TDCORE_DEVICE static float tree(const float (&x)[8]) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  }
  TDCORE_DEVICE Moments lane(u32 elements) const {
    return {elements,
            sum,
            squares,
            abs_sum,
            static_cast<double>(min),
            static_cast<double>(max),
            static_cast<double>(abs_min)};
  }
};

// ---- 8- and 16-bit integers ------------------------------------------------------------------------------

/// bool: every value except 0 is 1.
struct BoolElement {
  using Raw = u8;
};

template <class E>
struct SmallSums {
  using Raw = typename E::Raw;
  float pivot = 0;  // stays 0: the sums are exact
  i32 sum = 0, min = 0x7FFFFFFF, max = -0x7FFFFFFF - 1;
  u32 abs_sum = 0, abs_min = 0xFFFFFFFF;
  u64 squares = 0;

  TDCORE_DEVICE static float first(const Words&) { return 0; }
  TDCORE_DEVICE static i32 value_of(Raw raw) { return static_cast<i32>(raw); }
  TDCORE_DEVICE void add(const Words& words, Bins bins) {
    TDCORE_UNROLL
    for (u32 i = 0; i < kPerVector<sizeof(Raw)>; ++i) {
      const i32 value = value_of(element_of<Raw>(words, i));
      const u32 magnitude = static_cast<u32>(value < 0 ? -value : value);
      sum += value;
      abs_sum += magnitude;
      squares += static_cast<u64>(magnitude) * magnitude;
      min = value < min ? value : min;
      max = value > max ? value : max;
      // The low bits of 2^23 + magnitude as float32 are the magnitude, which avoids a slow conversion. The
      // magnitude 0 is treated as 1.
      const u32 bits = bits_as<u32>(bits_as<float>(0x4B000000u | magnitude) - 0x1p23f) >> 23;
      bins.add(static_cast<i64>(bits > 127 ? bits : 127) - (127 - 40), magnitude != 0);
      if (magnitude != 0) abs_min = magnitude < abs_min ? magnitude : abs_min;
    }
  }
  TDCORE_DEVICE Moments lane(u32 elements) const {
    return {elements,
            static_cast<double>(sum),
            static_cast<double>(squares),
            static_cast<double>(abs_sum),
            static_cast<double>(min),
            static_cast<double>(max),
            static_cast<double>(abs_min)};
  }
};
template <>
TDCORE_DEVICE i32 SmallSums<BoolElement>::value_of(u8 raw) {
  return raw != 0 ? 1 : 0;
}

}  // namespace tdcore::device
