// values.cuh: statistics of the finite values of a part of a tensor, merged within a warp in an order that
// depends only on the lanes.
//
// Threads: all lanes of a warp call these functions together.
#pragma once

#include "cuda/words.cuh"

namespace tdcore::device {

inline constexpr u32 kAllLanes = 0xFFFFFFFF;
inline constexpr u32 kLanes = 32;

/// Statistics of `finite` values; without values, the result of no_values().
struct Values {
  double finite;
  double mean, m2, abs_sum, square_sum, min, max, abs_min, abs_max;
};

TDCORE_DEVICE Values no_values() { return {0, 0, 0, 0, 0, kInfinity, -kInfinity, kInfinity, 0}; }

/// Merges the fields that are independent of each other. get(field) returns the other field.
template <class Get>
TDCORE_DEVICE void merge_fields(Values& into, Get&& get) {
  const double min = get(into.min, &Values::min), max = get(into.max, &Values::max);
  into.min = min < into.min ? min : into.min;
  into.max = max > into.max ? max : into.max;
  const double abs_min = get(into.abs_min, &Values::abs_min), abs_max = get(into.abs_max, &Values::abs_max);
  into.abs_min = abs_min < into.abs_min ? abs_min : into.abs_min;
  into.abs_max = abs_max > into.abs_max ? abs_max : into.abs_max;
  into.abs_sum += get(into.abs_sum, &Values::abs_sum);
  into.square_sum += get(into.square_sum, &Values::square_sum);
  const double finite = get(into.finite, &Values::finite);
  const double mean = get(into.mean, &Values::mean), m2 = get(into.m2, &Values::m2);
  if (finite == 0) return;
  if (into.finite == 0) {
    into.mean = mean;
    into.m2 = m2;
  } else {
    merge_moments(into.mean, into.m2, into.finite, mean, m2, finite);
  }
  into.finite += finite;
}

/// Like merge() of stats.hpp.
TDCORE_DEVICE void merge_values(Values& into, const Values& other) {
  merge_fields(into, [&](double, double Values::* field) { return other.*field; });
}

/// Merges the values of the first `lanes` (a power of two) lanes in lane 0. The values of other lanes are
/// invalid after that.
TDCORE_DEVICE void merge_lanes(Values& values, u32 lanes) {
  TDCORE_NO_UNROLL
  for (u32 distance = lanes / 2; distance != 0; distance /= 2) {
    merge_fields(values,
                 [&](double mine, double Values::*) { return __shfl_down_sync(kAllLanes, mine, distance); });
  }
}

// Every lane gets the same bits, because x + y is y + x.
template <class Number>
TDCORE_DEVICE Number sum_of_lanes(Number value) {
  TDCORE_UNROLL
  for (u32 distance = 1; distance != kLanes; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
template <class Number>
TDCORE_DEVICE Number least_of_lanes(Number value) {
  TDCORE_UNROLL
  for (u32 distance = 1; distance != kLanes; distance *= 2) {
    const Number other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other < value ? other : value;
  }
  return value;
}
template <class Number>
TDCORE_DEVICE Number greatest_of_lanes(Number value) {
  TDCORE_UNROLL
  for (u32 distance = 1; distance != kLanes; distance *= 2) {
    const Number other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

}  // namespace tdcore::device
