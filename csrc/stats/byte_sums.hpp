// stats/byte_sums.hpp: exact integer sums of bool, uint8 and int8.
// Part of stats/kernels.hpp, which describes the kernels and is the only file that includes this header.
// Everything is in an unnamed namespace, so that each instruction set has its own code.
// Threads: pure functions on the caller's state.
#pragma once

#include "stats/bytes.hpp"
#include "stats/elements.hpp"

namespace tdcore {
namespace {

// Each type converts an element to x, for the extremes and the sum of x - kShift, and to |x|.
struct BoolByte {
  static constexpr bool kSigned = false;
  static constexpr int kThresholds = 1, kShift = 0;  // powers of two that |x| can reach
  static std::int64_t value(u8 raw) noexcept { return raw != 0 ? 1 : 0; }
  template <class V>
  static typename V::B shifted(typename V::B raw) noexcept {
    return V::min8(raw, V::set8(1));
  }
};
struct U8Byte {
  static constexpr bool kSigned = false;
  static constexpr int kThresholds = 8, kShift = 0;
  static std::int64_t value(u8 raw) noexcept { return raw; }
  template <class V>
  static typename V::B shifted(typename V::B raw) noexcept {
    return raw;
  }
};
struct I8Byte {
  static constexpr bool kSigned = true;
  static constexpr int kThresholds = 8, kShift = -128;  // as unsigned bytes in the order of their values
  static std::int64_t value(u8 raw) noexcept { return static_cast<std::int8_t>(raw); }
  template <class V>
  static typename V::B shifted(typename V::B raw) noexcept {
    return V::sub8(raw, V::set8(128));
  }
};

constexpr u64 kByteGroups = 252;  // tallies are bytes, squares 32-bit lanes; a multiple of 4

template <class V, class E>
TDCORE_INLINE typename V::B magnitude8(typename V::B raw) noexcept {
  if constexpr (E::kSigned) {
    return V::min8(raw, V::sub8(V::zero8(), raw));  // as unsigned bytes: |-128| is 128
  }
  return E::template shifted<V>(raw);
}

/// Computes the sums and the extremes of at most kByteGroups groups.
template <class V, class E>
TDCORE_NOINLINE void sum_bytes(ByteSums& sums, const u8* data, u64 groups) noexcept {
  using B = typename V::B;
  typename V::L sum = V::zero64(), abs_sum = V::zero64();
  typename V::I squares = V::zero32();
  B low = V::set8(255), high = V::zero8(), abs_low = V::set8(255);
  for (const u8* end = data + groups * V::kGroup; data != end; data += V::kGroup) {
    V::prefetch(data + 4096);
    const B raw = V::load8_unaligned(data);
    const B shifted = E::template shifted<V>(raw);
    sum = V::add_bytes(sum, shifted);
    low = V::min8(low, shifted);
    high = V::max8(high, shifted);
    const B magnitude = magnitude8<V, E>(raw);
    squares = V::add_squares(squares, magnitude);
    if constexpr (E::kSigned) {
      abs_sum = V::add_bytes(abs_sum, magnitude);
      abs_low = V::min8(abs_low, magnitude);
    }
  }
  const std::int64_t least = V::lowest8(low) + E::kShift, greatest = V::highest8(high) + E::kShift;
  const u64 count = groups * V::kGroup, shifted_sum = V::sum64(sum);
  sums.count += count;
  sums.sum += static_cast<std::int64_t>(shifted_sum) + E::kShift * static_cast<std::int64_t>(count);
  sums.abs_sum += E::kSigned ? V::sum64(abs_sum) : shifted_sum;
  sums.square_sum += V::sum32(squares);
  sums.min = least < sums.min ? least : sums.min;
  sums.max = greatest > sums.max ? greatest : sums.max;
  const std::int64_t smallest = E::kSigned ? V::lowest8(abs_low) : least;
  sums.abs_min = smallest < sums.abs_min ? smallest : sums.abs_min;
}

/// Counts, for at most kByteGroups groups, the magnitudes that reach each power of two.
template <class V, class E>
TDCORE_NOINLINE void count_magnitudes(ByteSums& sums, const u8* data, u64 groups) noexcept {
  using B = typename V::B;
  B tally[E::kThresholds], limits[E::kThresholds];
  for (int i = 0; i < E::kThresholds; ++i) {
    tally[i] = V::zero8();
    limits[i] = V::set8((1 << i) - 1 - 128);
  }
  // GCC 12 generates two instructions for a comparison with a known constant.
  __asm__ volatile("" : : "r"(limits) : "memory");
  for (const u8* end = data + groups * V::kGroup; data != end; data += V::kGroup) {
    const B magnitude = V::sub8(magnitude8<V, E>(V::load8_unaligned(data)), V::set8(128));  // now signed
    for (int i = 0; i < E::kThresholds; ++i) {
      tally[i] = V::sub8(tally[i], V::above8(magnitude, limits[i]));
    }
  }
  for (int i = 0; i < E::kThresholds; ++i) sums.at_least[i] += V::sum8(tally[i]);
}

template <class E>
TDCORE_INLINE void add_byte(ByteSums& sums, u8 raw) noexcept {
  const std::int64_t value = E::value(raw), magnitude = value < 0 ? -value : value;
  ++sums.count;
  sums.sum += value;
  sums.abs_sum += static_cast<u64>(magnitude);
  sums.square_sum += static_cast<u64>(value * value);
  sums.min = value < sums.min ? value : sums.min;
  sums.max = value > sums.max ? value : sums.max;
  sums.abs_min = magnitude < sums.abs_min ? magnitude : sums.abs_min;
  for (int i = 0; i < E::kThresholds; ++i) sums.at_least[i] += magnitude >= (1 << i) ? 1 : 0;
}

template <class V, class E>
void feed_bytes(ByteSums& sums, const void* source, u64 elements) noexcept {
  const u8* data = static_cast<const u8*>(source);
  for (u64 left = elements / V::kGroup; left != 0;) {
    const u64 groups = left < kByteGroups ? left : kByteGroups;
    sum_bytes<V, E>(sums, data, groups);
    count_magnitudes<V, E>(sums, data, groups);
    data += groups * V::kGroup;
    left -= groups;
  }
  for (u64 i = 0; i < elements % V::kGroup; ++i) add_byte<E>(sums, data[i]);
}

}  // namespace
}  // namespace tdcore
