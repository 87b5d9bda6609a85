// rounding.hpp: rounding of float32 and float64 to float16 and bfloat16, to nearest even, by integer
// arithmetic.
//
// The result has the same bits on every device and on the host, in any floating-point mode. NaN stays NaN
// (its sign and the upper bits of its payload are kept, the quiet bit is set); too large values become Inf.
// Threads: pure functions.
#pragma once

#include "base/scalar_elements.hpp"

namespace tdcore {
namespace {

// Formats, by the number of bits of their mantissa.
inline constexpr u32 kHalf = 10, kBrainFloat = 7;

/// Bits of the nearest value of a 16-bit format, ties to even. `bits`: bits of a float32.
TDCORE_HD TDCORE_INLINE u16 round_bits(u32 bits, u32 mantissa_bits) noexcept {
  const u32 exponent_bits = 15 - mantissa_bits, shift = 23 - mantissa_bits;
  const u32 bias = (1u << (exponent_bits - 1)) - 1;
  const u32 sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  const u32 infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if (magnitude > 0x7F800000) {
    const u32 payload = (magnitude & 0x7FFFFF) >> shift;
    return static_cast<u16>(sign | infinity | 1u << (mantissa_bits - 1) | payload);
  }
  const u32 lowest = (127 - bias + 1) << 23;  // bits of the smallest normal value
  u32 kept = magnitude - ((127 - bias) << 23), dropped_bits = shift;
  if (bias != 127 && magnitude < lowest) {  // subnormal there
    const u32 down = 127 - bias + 1 - (magnitude >> 23);
    if (down > mantissa_bits + 1) return static_cast<u16>(sign);
    kept = (magnitude & 0x7FFFFF) | 0x800000;
    dropped_bits = shift + down;
  }
  const u32 half = 1u << (dropped_bits - 1), odd = kept >> dropped_bits & 1;
  const u32 rounded = (kept + half - 1 + odd) >> dropped_bits;
  return static_cast<u16>(sign | (rounded < infinity ? rounded : infinity));
}

/// Bits of a float32 that rounds to a shorter format like this float64: its last bit is set if bits were cut
/// off (rounding to odd).
TDCORE_HD TDCORE_INLINE u32 odd_float_bits(u64 bits) noexcept {
  const u32 sign = static_cast<u32>(bits >> 32) & 0x80000000;
  const u64 magnitude = bits & ~(u64{1} << 63);
  if (magnitude >= u64{0x7FF} << 52) {  // Inf, NaN
    const u32 payload = static_cast<u32>(magnitude >> 29) & 0x7FFFFF;
    return sign | 0x7F800000 | payload | (magnitude > u64{0x7FF} << 52 ? 0x400000 : 0);
  }
  const u32 exponent = static_cast<u32>(magnitude >> 52);
  if (exponent >= 1023 + 128) return sign | 0x7F7FFFFF;
  const u32 least = 1023 - 126;  // exponent of the smallest normal float32
  const u32 down = exponent < least ? least - exponent : 0;
  const u64 mantissa = (magnitude & ((u64{1} << 52) - 1)) | (exponent != 0 ? u64{1} << 52 : 0);
  const u32 cut = 29 + down;
  if (cut > 53) return sign | (magnitude != 0 ? 1 : 0);
  const u32 kept = static_cast<u32>(mantissa >> cut) | ((mantissa & ((u64{1} << cut) - 1)) != 0 ? 1 : 0);
  return sign | (down != 0 ? kept : kept + ((exponent - least) << 23));
}

/// Rounded bits of a float32 (bytes 4) or a float64 (bytes 8).
TDCORE_HD TDCORE_INLINE u16 rounded_bits(u64 bits, u32 bytes, u32 mantissa_bits) noexcept {
  return round_bits(bytes == 8 ? odd_float_bits(bits) : static_cast<u32>(bits), mantissa_bits);
}

}  // namespace
}  // namespace tdcore
