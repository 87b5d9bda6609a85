// stats/elements.hpp: reads of one element by the CPU's kernels (scalar_elements.hpp), its exponent, common
// limits. Part of stats/kernels.hpp, which describes the kernels and is the only file that includes this
// header. Everything is in an unnamed namespace, so that each instruction set has its own code. Threads: pure
// functions on the caller's state.
#pragma once

#include "base/scalar_elements.hpp"
#include "stats/table.hpp"

#define TDCORE_NOINLINE __attribute__((noinline))

namespace tdcore {
namespace {

constexpr int kFirstExponent = 127 + kLog2Min;                 // exponent byte of bin 0
constexpr int kLastExponent = kFirstExponent + kLog2Bins - 1;  // and of the last bin
constexpr u64 kFlushGroups = 16;

// Largest mean^2 / variance for which a block may be summed around another pivot. Precision is reduced by
// this factor.
constexpr double kMaxShift = 4096;
constexpr double kMaxShiftFloat = 1;

// float32 sums of squares are taken only for blocks whose largest |x| is 0 or in [2^-40, 2^60).
constexpr int kNarrowFirst = 127 - 40;
constexpr int kNarrowLast = 127 + 59;

template <class E>
TDCORE_INLINE typename E::Raw load_raw(const void* data, u64 index) noexcept {
  typename E::Raw raw;
  __builtin_memcpy(&raw, static_cast<const u8*>(data) + index * sizeof raw, sizeof raw);
  return raw;
}

/// Exponent byte of a finite or non-finite double, as in the vector code.
TDCORE_INLINE u8 exponent_byte(double value) noexcept {
  const int exponent = static_cast<int>((bits_as<u64>(value) >> 52) & 0x7ff) - 896;
  return static_cast<u8>(exponent < 0 ? 0 : exponent > 255 ? 255 : exponent);
}

}  // namespace
}  // namespace tdcore
