// stats/avx2.cpp: the kernels for x86-64-v3 (AVX2, FMA, F16C). Compiled with its own flags; stats/cpu.cpp
// checks the processor before it calls these kernels.
#include "stats/table.hpp"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

#include "stats/kernels.hpp"

namespace tdcore {
namespace {

alignas(16) constexpr u8 kPairTables[33] = {0, 0, 0, 0, 0, 0, 0, 0, 0,
                                            0, 0, 0, 0, 0, 0, 0, 1, 16};  // zeros follow

struct Avx2 {
  static constexpr u64 kGroup = 32;
  using F = __m256;
  using D = __m256d;
  using I = __m256i;  // 32-bit counters
  using L = __m256i;  // 64-bit counters
  using B = __m256i;
  using MF = __m256;
  using MD = __m256d;

  // float32 and float64 lanes
  static F set1(float x) noexcept { return _mm256_set1_ps(x); }
  static D set1(double x) noexcept { return _mm256_set1_pd(x); }
  static void store(float* to, F x) noexcept { _mm256_storeu_ps(to, x); }
  static void store(double* to, D x) noexcept { _mm256_storeu_pd(to, x); }
  static F add(F a, F b) noexcept { return _mm256_add_ps(a, b); }
  static D add(D a, D b) noexcept { return _mm256_add_pd(a, b); }
  static F sub(F a, F b) noexcept { return _mm256_sub_ps(a, b); }
  static D sub(D a, D b) noexcept { return _mm256_sub_pd(a, b); }
  static F fma(F a, F b, F c) noexcept { return _mm256_fmadd_ps(a, b, c); }
  static D fma(D a, D b, D c) noexcept { return _mm256_fmadd_pd(a, b, c); }
  /// add() on the ports of the multiplier, because the ports of the adder are the bottleneck.
  static F accumulate(F sum, F x) noexcept { return fma(x, set1(1.0f), sum); }
  static D accumulate(D sum, D x) noexcept { return fma(x, set1(1.0), sum); }
  static F min(F a, F b) noexcept { return _mm256_min_ps(a, b); }
  static D min(D a, D b) noexcept { return _mm256_min_pd(a, b); }
  static F max(F a, F b) noexcept { return _mm256_max_ps(a, b); }
  static D max(D a, D b) noexcept { return _mm256_max_pd(a, b); }
  static F abs(F a) noexcept { return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
  static D abs(D a) noexcept {
    return _mm256_and_pd(a, _mm256_castsi256_pd(_mm256_set1_epi64x(0x7fffffffffffffff)));
  }
  static D widen_low(F a) noexcept { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
  static D widen_high(F a) noexcept { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }

  /// The i-th of the four float32 vectors that load4() loads from a group at `at`, as two float64 vectors.
  template <class E>
  static void widen(E, const u8*, int, F x, D (&wide)[2]) noexcept {
    wide[0] = widen_low(x);
    wide[1] = widen_high(x);
  }
  static void widen(F32Element, const u8* at, int i, F,
                    D (&wide)[2]) noexcept {  // from memory: no extraction
    wide[0] = _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(at + 32 * i)));
    wide[1] = _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(at + 32 * i + 16)));
  }

  // masks
  static MF less(F a, F b) noexcept { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static MD less(D a, D b) noexcept { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
  static MF equal(F a, F b) noexcept { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static MD equal(D a, D b) noexcept { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
  // on bits, because the integer ports are less busy
  static MF is_finite(F a) noexcept {
    const __m256i magnitude = _mm256_castps_si256(abs(a));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude));
  }
  static MF same_bits(F a, F b) noexcept {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static MD is_finite(D a) noexcept { return less(abs(a), set1(__builtin_inf())); }
  static MD same_bits(D a, D b) noexcept {
    return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_castpd_si256(a), _mm256_castpd_si256(b)));
  }
  static F select(MF mask, F yes, F no) noexcept { return _mm256_blendv_ps(no, yes, mask); }
  static D select(MD mask, D yes, D no) noexcept { return _mm256_blendv_pd(no, yes, mask); }
  static I zero32() noexcept { return _mm256_setzero_si256(); }
  static L zero64() noexcept { return _mm256_setzero_si256(); }
  static I tally(I count, MF mask) noexcept { return _mm256_sub_epi32(count, _mm256_castps_si256(mask)); }
  static L tally(L count, MD mask) noexcept { return _mm256_sub_epi64(count, _mm256_castpd_si256(mask)); }
  static u64 sum32(I count) noexcept {
    alignas(32) u32 lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), count);
    u64 sum = 0;
    for (u32 lane : lanes) {
      sum += lane;
    }
    return sum;
  }
  static u64 sum64(L count) noexcept {
    alignas(32) u64 lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), count);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }

  // bytes
  static B zero8() noexcept { return _mm256_setzero_si256(); }
  static B set8(int x) noexcept { return _mm256_set1_epi8(static_cast<char>(x)); }
  static B load8(const u8* at) noexcept { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }
  static void store8(u8* at, B x) noexcept { _mm256_store_si256(reinterpret_cast<__m256i*>(at), x); }
  static B load8_unaligned(const u8* at) noexcept { return raw256(at); }
  static B eq8(B a, B b) noexcept { return _mm256_cmpeq_epi8(a, b); }
  static B above8(B a, B b) noexcept { return _mm256_cmpgt_epi8(a, b); }  // signed
  static L add_bytes(L sum, B a) noexcept { return _mm256_add_epi64(sum, _mm256_sad_epu8(a, zero8())); }
  static I add_squares(I sum, B a) noexcept {
    const __m256i low = _mm256_unpacklo_epi8(a, zero8()), high = _mm256_unpackhi_epi8(a, zero8());
    return _mm256_add_epi32(sum,
                            _mm256_add_epi32(_mm256_madd_epi16(low, low), _mm256_madd_epi16(high, high)));
  }
  static B sub8(B a, B b) noexcept { return _mm256_sub_epi8(a, b); }
  static B min8(B a, B b) noexcept { return _mm256_min_epu8(a, b); }
  static B max8(B a, B b) noexcept { return _mm256_max_epu8(a, b); }
  static B add8(B a, B b) noexcept { return _mm256_add_epi8(a, b); }
  static B adds8(B a, B b) noexcept { return _mm256_adds_epu8(a, b); }
  static B low_half(B a) noexcept { return _mm256_and_si256(a, set8(0x0f)); }
  static B high_half(B a) noexcept { return low_half(_mm256_srli_epi16(a, 4)); }
  static constexpr bool kLookUp = true;
  /// Entry `first` is 1 and entry `first` + 1 is 16; a byte with its top bit set is looked up as 0.
  static B pair_table(int first) noexcept {
    return _mm256_broadcastsi128_si256(raw128(kPairTables + 16 - first));
  }
  static B add_look_up(B sum, B table, B index) noexcept {
    sum = add8(sum, _mm256_shuffle_epi8(table, index));
    __asm__("" : "+x"(sum));  // prevents that all look-ups are first, which needs too many registers
    return sum;
  }
  static B or8(B a, B b) noexcept { return _mm256_or_si256(a, b); }
  static u64 mask8(B a) noexcept { return static_cast<u32>(_mm256_movemask_epi8(a)); }
  static u64 sum8(B a) noexcept {
    const __m256i sums = _mm256_sad_epu8(a, zero8());
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return static_cast<u64>(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
  }
  static int lowest8(B a) noexcept {
    const __m128i half = _mm_min_epu8(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return _mm_cvtsi128_si32(_mm_minpos_epu16(
               _mm_min_epu8(_mm_and_si128(half, _mm_set1_epi16(255)), _mm_srli_epi16(half, 8)))) &
           255;
  }
  static int highest8(B a) noexcept { return 255 - lowest8(_mm256_xor_si256(a, set8(255))); }

  /// Exponent bytes of 32 float32, in any order.
  template <class E>
  static B exponents(E, const u8*, const F (&x)[4]) noexcept {
    __m256i words[2];
    for (int i = 0; i < 2; ++i) {  // upper halves, joined
      words[i] = _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(x[2 * i]), 16),
                                    _mm256_castps_si256(x[2 * i + 1]), 0xaa);
    }
    return exponents_of_words(words);
  }
  static B exponents(BF16Element, const u8* at, const F (&)[4]) noexcept {
    const __m256i words[2] = {raw256(at), raw256(at + 32)};
    return exponents_of_words(words);
  }
  static B exponents_of_words(const __m256i (&words)[2]) noexcept {  // sign, exponent, start of the mantissa
    return _mm256_packus_epi16(_mm256_srli_epi16(_mm256_slli_epi16(words[0], 1), 8),
                               _mm256_srli_epi16(_mm256_slli_epi16(words[1], 1), 8));
  }
  /// Exponent bytes of 32 float64, saturated to float32's range, in any order.
  static B exponents_wide(const D (&x)[8]) noexcept {
    I e[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 high = _mm256_shuffle_ps(_mm256_castpd_ps(x[2 * i]), _mm256_castpd_ps(x[2 * i + 1]), 0xdd);
      e[i] = _mm256_srli_epi32(_mm256_slli_epi32(_mm256_castps_si256(high), 1), 21);
    }
    const __m256i bias = _mm256_set1_epi16(896);
    return _mm256_packus_epi16(_mm256_subs_epu16(_mm256_packus_epi32(e[0], e[1]), bias),
                               _mm256_subs_epu16(_mm256_packus_epi32(e[2], e[3]), bias));
  }

  // loads: one group
  static __m256i raw256(const u8* at) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static __m128i raw128(const u8* at) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }

  static void load4(F32Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_castsi256_ps(raw256(at + 32 * i));
    }
  }
  static void load4(F16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_cvtph_ps(raw128(at + 16 * i));
    }
  }
  static void load4(BF16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 2;
         ++i) {  // odd and even elements separately; the order within a group does not matter
      const __m256i pair = raw256(at + 32 * i);
      x[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
      x[2 * i + 1] =
          _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    }
  }
  static void load4(I16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(raw128(at + 16 * i)));
    }
  }
  static void load4(U16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(raw128(at + 16 * i)));
    }
  }
  static void load8(F64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm256_castsi256_pd(raw256(at + 32 * i));
    }
  }
  static void load8(I32Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm256_cvtepi32_pd(raw128(at + 16 * i));
    }
  }
  static void load8(U32Element, const u8* at, D (&x)[8]) noexcept {
    const __m128i flip = _mm_set1_epi32(static_cast<int>(0x80000000));
    for (int i = 0; i < 8; ++i) {
      x[i] = add(_mm256_cvtepi32_pd(_mm_xor_si128(raw128(at + 16 * i), flip)), set1(0x1p31));
    }
  }
  /// Exact high part plus exact low part, rounded once, like the scalar conversion.
  static D halves(__m256i x, __m256i high_bits, double high_bias) noexcept {
    const __m256i high = _mm256_xor_si256(_mm256_srli_epi64(x, 32), high_bits);
    const __m256i low = _mm256_blend_epi32(x, _mm256_set1_epi64x(0x4330000000000000), 0xaa);
    return add(sub(_mm256_castsi256_pd(high), set1(high_bias)), _mm256_castsi256_pd(low));
  }
  static void load8(U64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = halves(raw256(at + 32 * i), _mm256_set1_epi64x(0x4530000000000000), 0x1p84 + 0x1p52);
    }
  }
  static void load8(I64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = halves(raw256(at + 32 * i), _mm256_set1_epi64x(0x4530000080000000), 0x1p84 + 0x1p63 + 0x1p52);
    }
  }

  /// Always inlined, because GCC 12 treats a function that only prefetches as free of effects and removes
  /// calls.
  static TDCORE_INLINE void prefetch(const u8* at) noexcept {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
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
      const __m256i a = raw256(from + at), b = raw256(from + at + 32);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
  }
};

constexpr KernelTable kTable = make_table<Avx2>("avx2");

}  // namespace

const KernelTable* avx2_kernels() noexcept { return &kTable; }

}  // namespace tdcore

#else

namespace tdcore {
const KernelTable* avx2_kernels() noexcept { return nullptr; }
}  // namespace tdcore

#endif
