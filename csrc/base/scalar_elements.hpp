// scalar_elements.hpp: the value of one element, for each type with statistics.
//
// The kernels of the CPU (stats/elements.hpp) and of devices (cuda/) share this code. Everything is in an
// unnamed namespace, because translation units with their own instruction-set flags must not share
// instantiated code.
// Threads: pure functions.
#pragma once

#include "base/fixed_types.hpp"

#define TDCORE_INLINE inline __attribute__((always_inline))

namespace tdcore {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

constexpr double kInfinity = __builtin_inf();
constexpr float kInfinityF = __builtin_inff();

template <class To, class From>
TDCORE_HD TDCORE_INLINE To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

TDCORE_HD TDCORE_INLINE bool is_finite(double value) noexcept {
  return ((bits_as<u64>(value) >> 52) & 0x7ff) != 0x7ff;
}

/// Value of a float16. Exact, because every float16 is normal or zero as a float32.
TDCORE_HD TDCORE_INLINE float half_value(u32 raw) noexcept {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(raw)));
  return value;
#else
  const u32 magnitude = raw & 0x7fffu;
  const u32 sign = (raw & 0x8000u) << 16;
  if (magnitude < 0x0400u) {
    const float tiny = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -tiny : tiny;
  }
  const u32 rebias = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;
  return bits_as<float>(sign | ((magnitude << 13) + rebias));
#endif
}

// kFloatSums: blocks of the type are summed in float32. kWide: only float64 represents all values.
struct F32Element {
  using Raw = u32;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = false;
  static constexpr Raw kSign = 0x80000000, kFirstNormal = 0x00800000;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  TDCORE_HD static double value(Raw raw) noexcept { return static_cast<double>(bits_as<float>(raw)); }
};
struct F64Element {
  using Raw = u64;
  static constexpr bool kFloat = true, kWide = true, kFloatSums = false;
  static constexpr Raw kSign = u64{1} << 63, kFirstNormal = u64{1} << 52;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  TDCORE_HD static double value(Raw raw) noexcept { return bits_as<double>(raw); }
};
struct BF16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0080;
  static constexpr int kFirstNormalExponent = 1;  // exponent byte of the smallest normal value
  TDCORE_HD static float short_value(u32 raw) noexcept { return bits_as<float>(raw << 16); }
  TDCORE_HD static double value(Raw raw) noexcept { return static_cast<double>(short_value(raw)); }
};
struct F16Element {
  using Raw = u16;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x8000, kFirstNormal = 0x0400;
  static constexpr int kFirstNormalExponent = 127 - 14;  // exponent byte of the smallest normal value
  TDCORE_HD static float short_value(u32 raw) noexcept { return half_value(raw); }
  TDCORE_HD static double value(Raw raw) noexcept { return static_cast<double>(half_value(raw)); }
};
/// A float16 without its last byte.
struct F8E5M2Element {
  using Raw = u8;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x80, kFirstNormal = 0x04;
  TDCORE_HD static float short_value(u32 raw) noexcept { return half_value(raw << 8); }
  TDCORE_HD static double value(Raw raw) noexcept { return static_cast<double>(short_value(raw)); }
};
/// No Inf, and one NaN per sign, for which short_value() returns 480, the value of the same bits as a number.
struct F8E4M3Element {
  using Raw = u8;
  static constexpr bool kFloat = true, kWide = false, kFloatSums = true;
  static constexpr Raw kSign = 0x80, kFirstNormal = 0x08;
  TDCORE_HD static float short_value(u32 raw) noexcept {  // read as a float16, the exponent is 8 too small
    return half_value((raw & 0x80u) << 8 | (raw & 0x7fu) << 7) * 256.0f;
  }
  TDCORE_HD static double value(Raw raw) noexcept {
    return (raw & 0x7f) == 0x7f ? __builtin_nan("") : static_cast<double>(short_value(raw));
  }
};
template <class Integer, bool Wide>
struct IntegerElement {
  using Raw = Integer;
  static constexpr bool kFloat = false, kWide = Wide, kFloatSums = false;
  static constexpr int kFirstNormalExponent = 1;
  TDCORE_HD static double value(Raw raw) noexcept { return static_cast<double>(raw); }
};
using U8Element = IntegerElement<u8, false>;
using I8Element = IntegerElement<std::int8_t, false>;
using I16Element = IntegerElement<std::int16_t, false>;
using U16Element = IntegerElement<u16, false>;
using I32Element = IntegerElement<i32, true>;
using U32Element = IntegerElement<u32, true>;
using I64Element = IntegerElement<i64, true>;
using U64Element = IntegerElement<u64, true>;

}  // namespace
}  // namespace tdcore
