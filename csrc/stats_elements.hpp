// stats_elements.hpp: the element types that the kernels take: how one element reads, its exponent, its
// limits. Part of stats_kernels.hpp, which says what all of it does; included by it only. Everything is in an
// unnamed namespace: each instruction set has its own. Threads: pure functions on the caller's state.
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
constexpr int kFirstExponent = 127 + kLog2Min;                 // exponent byte of bin 0
constexpr int kLastExponent = kFirstExponent + kLog2Bins - 1;  // and of the last bin
constexpr u64 kFlushGroups = 16;

// Largest mean^2 / variance for which a block may be summed around another pivot: loses that factor of
// precision.
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
  static double value(Raw raw) noexcept {
    return static_cast<double>(bits_as<float>(static_cast<u32>(raw) << 16));
  }
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

}  // namespace
}  // namespace tdcore
