// fixed_types.hpp: integers of fixed width, with or without a standard library.
//
// Code for a device includes this header in place of <cstddef> and <cstdint>, because NVRTC has neither.
// Threads: types only.
#pragma once

#if defined(__CUDACC_RTC__)
namespace std {
using size_t = decltype(sizeof(0));
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
}  // namespace std
static_assert(sizeof(std::int64_t) == 8 && sizeof(std::uint64_t) == 8 && sizeof(void*) == 8);
// NVRTC does not have these built-in functions of GCC, Clang and nvcc.
#define __builtin_inf() __builtin_bit_cast(double, 0x7FF0000000000000)
#define __builtin_inff() __builtin_bit_cast(float, 0x7F800000)
#define __builtin_nan(tag) __builtin_bit_cast(double, 0x7FF8000000000000)
#define __builtin_memcpy memcpy
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define TDCORE_HD __host__ __device__
#else
#define TDCORE_HD
#endif
// For functions of translation units with their own instruction-set flags: never emitted as a symbol, so
// never shared between the units.
#define TDCORE_ALWAYS_INLINE inline __attribute__((always_inline))
