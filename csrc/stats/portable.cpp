// stats/portable.cpp: the kernels for any machine, in 16-byte vectors of the compiler's own vector types
// (SSE2 on x86-64, NEON on aarch64, plain code elsewhere). Works with GCC and Clang.
#include "stats/table.hpp"

#include <type_traits>

#include "stats/kernels.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tdcore {
namespace {

struct Portable {
  static constexpr u64 kGroup = 16;
  using F = float __attribute__((vector_size(16)));
  using D = double __attribute__((vector_size(16)));
  using I = u32 __attribute__((vector_size(16)));
  using L = u64 __attribute__((vector_size(16)));
  using B = u8 __attribute__((vector_size(16)));
  using S = signed char __attribute__((vector_size(16)));
  using H = u16 __attribute__((vector_size(16)));
  static constexpr u16 kLowByte = 255;
  using MF = std::int32_t __attribute__((vector_size(16)));
  using MD = std::int64_t __attribute__((vector_size(16)));

  template <class To, class From>
  static To as(From from) noexcept {
    return bits_as<To>(from);
  }

  // float32 and float64 lanes
  static F set1(float x) noexcept { return F{x, x, x, x}; }
  static D set1(double x) noexcept { return D{x, x}; }
  static void store(float* to, F x) noexcept { __builtin_memcpy(to, &x, sizeof x); }
  static void store(double* to, D x) noexcept { __builtin_memcpy(to, &x, sizeof x); }
  static F add(F a, F b) noexcept { return a + b; }
  static D add(D a, D b) noexcept { return a + b; }
  static F sub(F a, F b) noexcept { return a - b; }
  static D sub(D a, D b) noexcept { return a - b; }
  static F fma(F a, F b, F c) noexcept { return a * b + c; }
  static D fma(D a, D b, D c) noexcept { return a * b + c; }
  static F accumulate(F sum, F x) noexcept { return sum + x; }
  static D accumulate(D sum, D x) noexcept { return sum + x; }
  static F min(F a, F b) noexcept { return select(a < b, a, b); }
  static D min(D a, D b) noexcept { return select(a < b, a, b); }
  static F max(F a, F b) noexcept { return select(a > b, a, b); }
  static D max(D a, D b) noexcept { return select(a > b, a, b); }
  static F abs(F a) noexcept { return as<F>(as<I>(a) & 0x7fffffffu); }
  static D abs(D a) noexcept { return as<D>(as<L>(a) & 0x7fffffffffffffffu); }
  static D widen_low(F a) noexcept { return D{static_cast<double>(a[0]), static_cast<double>(a[1])}; }
  static D widen_high(F a) noexcept { return D{static_cast<double>(a[2]), static_cast<double>(a[3])}; }

  template <class E>
  static void widen(E, const u8*, int, F x, D (&wide)[2]) noexcept {
    wide[0] = widen_low(x);
    wide[1] = widen_high(x);
  }

  // masks: lanes of all ones or all zeros
  static MF less(F a, F b) noexcept { return a < b; }
  static MD less(D a, D b) noexcept { return a < b; }
  static MF equal(F a, F b) noexcept { return a == b; }
  static MD equal(D a, D b) noexcept { return a == b; }
  static MF is_finite(F a) noexcept { return (as<I>(a) & 0x7fffffffu) < 0x7f800000u; }
  static MD is_finite(D a) noexcept { return less(abs(a), set1(__builtin_inf())); }
  static MF same_bits(F a, F b) noexcept { return as<MF>(a) == as<MF>(b); }
  static MD same_bits(D a, D b) noexcept { return as<MD>(a) == as<MD>(b); }
  static F select(MF mask, F yes, F no) noexcept {
    return as<F>((as<MF>(yes) & mask) | (as<MF>(no) & ~mask));
  }
  static D select(MD mask, D yes, D no) noexcept {
    return as<D>((as<MD>(yes) & mask) | (as<MD>(no) & ~mask));
  }
  static I zero32() noexcept { return I{}; }
  static L zero64() noexcept { return L{}; }
  static I tally(I count, MF mask) noexcept { return count - as<I>(mask); }
  static L tally(L count, MD mask) noexcept { return count - as<L>(mask); }
  static u64 sum32(I count) noexcept { return u64{count[0]} + count[1] + count[2] + count[3]; }
  static u64 sum64(L count) noexcept { return count[0] + count[1]; }

  // bytes
  static B zero8() noexcept { return B{}; }
  static B set8(int x) noexcept { return B{} + static_cast<u8>(x); }
  static B load8(const u8* at) noexcept {
    B x;
    __builtin_memcpy(&x, at, sizeof x);
    return x;
  }
  static void store8(u8* at, B x) noexcept { __builtin_memcpy(at, &x, sizeof x); }
  static B load8_unaligned(const u8* at) noexcept { return load8(at); }
  static B eq8(B a, B b) noexcept { return as<B>(a == b); }
  static B above8(B a, B b) noexcept { return as<B>(as<S>(a) > as<S>(b)); }  // signed
  static L add_bytes(L sum, B a) noexcept {
    const H pairs = (as<H>(a) & kLowByte) + (as<H>(a) >> 8);
    const I fours = (as<I>(pairs) & 0xffffu) + (as<I>(pairs) >> 16);
    return sum + (as<L>(fours) & 0xffffffffu) + (as<L>(fours) >> 32);
  }
  static I add_squares(I sum, B a) noexcept {
    const H low = as<H>(a) & kLowByte, high = as<H>(a) >> 8;
    const I low_squares = as<I>(low * low), high_squares = as<I>(high * high);
    return sum + (low_squares & 0xffffu) + (low_squares >> 16) + (high_squares & 0xffffu) +
           (high_squares >> 16);
  }
  static B sub8(B a, B b) noexcept { return a - b; }
  static B min8(B a, B b) noexcept {
    const B mask = as<B>(a < b);
    return (a & mask) | (b & ~mask);
  }
  static B max8(B a, B b) noexcept {
    const B mask = as<B>(a > b);
    return (a & mask) | (b & ~mask);
  }
  static u64 sum8(B a) noexcept {
    u64 sum = 0;
    for (u64 lane = 0; lane < kGroup; ++lane) {
      sum += a[lane];
    }
    return sum;
  }
  static int lowest8(B a) noexcept {
    int lowest = 255;
    for (u64 lane = 0; lane < kGroup; ++lane) {
      lowest = a[lane] < lowest ? a[lane] : lowest;
    }
    return lowest;
  }
  static int highest8(B a) noexcept { return 255 - lowest8(~a); }

  static constexpr bool kLookUp = false;  // no table look-up exists in both compilers

  template <class E>
  static B exponents(E, const u8*, const F (&x)[4]) noexcept {
    B bytes{};
    for (u64 i = 0; i < 4; ++i) {
      const I e = as<I>(x[i]) >> 23;
      for (u64 lane = 0; lane < 4; ++lane) {
        bytes[4 * i + lane] = static_cast<u8>(e[lane]);
      }
    }
    return bytes;
  }
  static B exponents_wide(const D (&x)[8]) noexcept {
    B bytes{};
    for (u64 i = 0; i < 8; ++i) {
      for (u64 lane = 0; lane < 2; ++lane) {
        bytes[2 * i + lane] = exponent_byte(x[i][lane]);
      }
    }
    return bytes;
  }

  // loads: one group, in order
  static void load4(F32Element, const u8* at, F (&x)[4]) noexcept { __builtin_memcpy(x, at, sizeof x); }
  static void load4(BF16Element, const u8* at, F (&x)[4]) noexcept {
    for (u64 i = 0; i < 4; ++i) {
      x[i] = as<F>(halves(at + 8 * i) << 16);
    }
  }
  /// By integer arithmetic and one exact subtraction, independent of the machine's treatment of subnormals.
  static void load4(F16Element, const u8* at, F (&x)[4]) noexcept {
    for (u64 i = 0; i < 4; ++i) {
      const I half = halves(at + 8 * i);
      const I magnitude = half & 0x7fffu;
      const I shifted = magnitude << 13;
      const MF tiny = as<MF>(magnitude < 0x400u);
      const MF special = as<MF>(magnitude >= 0x7c00u);
      const F normal = as<F>(shifted + (112u << 23) + (as<I>(special) & (112u << 23)));
      const F subnormal = as<F>(shifted + (113u << 23)) - 0x1p-14f;
      x[i] = as<F>(as<I>(select(tiny, subnormal, normal)) | (half & 0x8000u) << 16);
    }
  }
  static void load4(I16Element, const u8* at, F (&x)[4]) noexcept { convert<I16Element>(at, x); }
  static void load4(U16Element, const u8* at, F (&x)[4]) noexcept { convert<U16Element>(at, x); }
  static void load8(F64Element, const u8* at, D (&x)[8]) noexcept { __builtin_memcpy(x, at, sizeof x); }
  template <class E>
  static void load8(E, const u8* at, D (&x)[8]) noexcept {
    convert<E>(at, x);
  }

  static I halves(const u8* at) noexcept {
    u16 lanes[4];
    __builtin_memcpy(lanes, at, sizeof lanes);
    return I{lanes[0], lanes[1], lanes[2], lanes[3]};
  }
  template <class E, class Lanes, u64 N>
  static void convert(const u8* at, Lanes (&x)[N]) noexcept {
    using Scalar = std::conditional_t<N == 4, float, double>;
    Scalar values[kGroup];
    for (u64 i = 0; i < kGroup; ++i) {
      values[i] = static_cast<Scalar>(load_raw<E>(at, i));
    }
    __builtin_memcpy(x, values, sizeof x);
  }

  static TDCORE_INLINE void prefetch(const u8* at) noexcept { __builtin_prefetch(at); }  // see stats/avx2.cpp

#if defined(__x86_64__)
  static void fence() noexcept { _mm_sfence(); }
  static void copy(void* destination, const void* source, u64 bytes) noexcept {
    u8* to = static_cast<u8*>(destination);
    const u8* from = static_cast<const u8*>(source);
    const u64 head = (0 - reinterpret_cast<std::uintptr_t>(to)) & 63;
    if (bytes < 128 + head) {
      __builtin_memcpy(to, from, bytes);
      return;
    }
    __builtin_memcpy(to, from, head);
    u64 at = head;
    for (; at + 64 <= bytes; at += 64) {
      for (u64 part = 0; part < 64; part += 16) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + part));
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + part), x);
      }
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
  }
#else
  static void fence() noexcept {}
  static void copy(void* destination, const void* source, u64 bytes) noexcept {
    __builtin_memcpy(destination, source, bytes);
  }
#endif
};

#if defined(__aarch64__)
constexpr KernelTable kTable = make_table<Portable>("neon");
#else
constexpr KernelTable kTable = make_table<Portable>("portable");
#endif

}  // namespace

const KernelTable* portable_kernels() noexcept { return &kTable; }

}  // namespace tdcore
