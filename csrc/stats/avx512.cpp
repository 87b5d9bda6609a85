// stats/avx512.cpp: the kernels for x86-64-v4 (AVX-512 F, BW, CD, DQ, VL). Compiled with its own flags;
// stats/cpu.cpp checks the processor before it calls these kernels. The logic is in stats/kernels.hpp and
// common to all levels; only the wrapper below is specific to this level.
#include "stats/table.hpp"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own headers, _mm512_undefined_*()
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "stats/kernels.hpp"

namespace tdcore {
namespace {

alignas(16) constexpr u8 kPairTables[33] = {0, 0, 0, 0, 0, 0, 0, 0, 0,
                                            0, 0, 0, 0, 0, 0, 0, 1, 16};  // zeros follow

struct Avx512 {
  static constexpr u64 kGroup = 64;
  using F = __m512;
  using D = __m512d;
  using I = __m512i;
  using L = __m512i;
  using B = __m512i;
  using MF = __mmask16;
  using MD = __mmask8;

  // float32 and float64 lanes
  static F set1(float x) noexcept { return _mm512_set1_ps(x); }
  static D set1(double x) noexcept { return _mm512_set1_pd(x); }
  static void store(float* to, F x) noexcept { _mm512_storeu_ps(to, x); }
  static void store(double* to, D x) noexcept { _mm512_storeu_pd(to, x); }
  static F add(F a, F b) noexcept { return _mm512_add_ps(a, b); }
  static D add(D a, D b) noexcept { return _mm512_add_pd(a, b); }
  static F sub(F a, F b) noexcept { return _mm512_sub_ps(a, b); }
  static D sub(D a, D b) noexcept { return _mm512_sub_pd(a, b); }
  static F fma(F a, F b, F c) noexcept { return _mm512_fmadd_ps(a, b, c); }
  static D fma(D a, D b, D c) noexcept { return _mm512_fmadd_pd(a, b, c); }
  /// add() on the ports of the multiplier, because the ports of the adder are the bottleneck.
  static F accumulate(F sum, F x) noexcept { return fma(x, set1(1.0f), sum); }
  static D accumulate(D sum, D x) noexcept { return fma(x, set1(1.0), sum); }
  static F min(F a, F b) noexcept { return _mm512_min_ps(a, b); }
  static D min(D a, D b) noexcept { return _mm512_min_pd(a, b); }
  static F max(F a, F b) noexcept { return _mm512_max_ps(a, b); }
  static D max(D a, D b) noexcept { return _mm512_max_pd(a, b); }
  static F abs(F a) noexcept { return _mm512_and_ps(a, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff))); }
  static D abs(D a) noexcept {
    return _mm512_and_pd(a, _mm512_castsi512_pd(_mm512_set1_epi64(0x7fffffffffffffff)));
  }
  static D widen_low(F a) noexcept { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
  static D widen_high(F a) noexcept { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }

  /// The i-th of the four float32 vectors that load4() loads from a group at `at`, as two float64 vectors.
  template <class E>
  static void widen(E, const u8*, int, F x, D (&wide)[2]) noexcept {
    wide[0] = widen_low(x);
    wide[1] = widen_high(x);
  }
  static void widen(F32Element, const u8* at, int i, F,
                    D (&wide)[2]) noexcept {  // from memory: no extraction
    wide[0] = _mm512_cvtps_pd(_mm256_loadu_ps(reinterpret_cast<const float*>(at + 64 * i)));
    wide[1] = _mm512_cvtps_pd(_mm256_loadu_ps(reinterpret_cast<const float*>(at + 64 * i + 32)));
  }

  // masks
  static MF less(F a, F b) noexcept { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static MD less(D a, D b) noexcept { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
  static MF equal(F a, F b) noexcept { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static MD equal(D a, D b) noexcept { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
  static MF is_finite(F a) noexcept { return less(abs(a), set1(__builtin_inff())); }
  static MF same_bits(F a, F b) noexcept {
    return _mm512_cmpeq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(b));
  }
  static MD is_finite(D a) noexcept { return less(abs(a), set1(__builtin_inf())); }
  static MD same_bits(D a, D b) noexcept {
    return _mm512_cmpeq_epi64_mask(_mm512_castpd_si512(a), _mm512_castpd_si512(b));
  }
  static F select(MF mask, F yes, F no) noexcept { return _mm512_mask_blend_ps(mask, no, yes); }
  static D select(MD mask, D yes, D no) noexcept { return _mm512_mask_blend_pd(mask, no, yes); }
  static I zero32() noexcept { return _mm512_setzero_si512(); }
  static L zero64() noexcept { return _mm512_setzero_si512(); }
  static I tally(I count, MF mask) noexcept {
    return _mm512_mask_add_epi32(count, mask, count, _mm512_set1_epi32(1));
  }
  static L tally(L count, MD mask) noexcept {
    return _mm512_mask_add_epi64(count, mask, count, _mm512_set1_epi64(1));
  }
  static u64 sum32(I count) noexcept { return static_cast<u64>(_mm512_reduce_add_epi32(count)); }
  static u64 sum64(L count) noexcept { return static_cast<u64>(_mm512_reduce_add_epi64(count)); }

  // bytes
  static B zero8() noexcept { return _mm512_setzero_si512(); }
  static B set8(int x) noexcept { return _mm512_set1_epi8(static_cast<char>(x)); }
  static B load8(const u8* at) noexcept { return _mm512_load_si512(at); }
  static void store8(u8* at, B x) noexcept { _mm512_store_si512(at, x); }
  static B load8_unaligned(const u8* at) noexcept { return raw512(at); }
  static B eq8(B a, B b) noexcept { return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b)); }
  static B above8(B a, B b) noexcept { return _mm512_movm_epi8(_mm512_cmpgt_epi8_mask(a, b)); }  // signed
  static L add_bytes(L sum, B a) noexcept { return _mm512_add_epi64(sum, _mm512_sad_epu8(a, zero8())); }
  static I add_squares(I sum, B a) noexcept {
    const __m512i low = _mm512_unpacklo_epi8(a, zero8()), high = _mm512_unpackhi_epi8(a, zero8());
    return _mm512_add_epi32(sum,
                            _mm512_add_epi32(_mm512_madd_epi16(low, low), _mm512_madd_epi16(high, high)));
  }
  static B sub8(B a, B b) noexcept { return _mm512_sub_epi8(a, b); }
  static B min8(B a, B b) noexcept { return _mm512_min_epu8(a, b); }
  static B max8(B a, B b) noexcept { return _mm512_max_epu8(a, b); }
  static B add8(B a, B b) noexcept { return _mm512_add_epi8(a, b); }
  static B adds8(B a, B b) noexcept { return _mm512_adds_epu8(a, b); }
  static B low_half(B a) noexcept { return _mm512_and_si512(a, set8(0x0f)); }
  static B high_half(B a) noexcept { return low_half(_mm512_srli_epi16(a, 4)); }
  static constexpr bool kLookUp = true;
  /// Entry `first` is 1 and entry `first` + 1 is 16; a byte with its top bit set is looked up as 0.
  static B pair_table(int first) noexcept {
    return _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kPairTables + 16 - first)));
  }
  static B add_look_up(B sum, B table, B index) noexcept {
    sum = add8(sum, _mm512_shuffle_epi8(table, index));
    __asm__("" : "+v"(sum));  // prevents that all look-ups are first, which needs too many registers
    return sum;
  }
  static B or8(B a, B b) noexcept { return _mm512_or_si512(a, b); }
  static u64 mask8(B a) noexcept { return _cvtmask64_u64(_mm512_movepi8_mask(a)); }
  static u64 sum8(B a) noexcept { return sum64(_mm512_sad_epu8(a, zero8())); }
  static int lowest8(B a) noexcept {
    const __m256i half = _mm256_min_epu8(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    const __m128i quarter = _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i words =
        _mm_min_epu8(_mm_and_si128(quarter, _mm_set1_epi16(255)), _mm_srli_epi16(quarter, 8));
    return _mm_cvtsi128_si32(_mm_minpos_epu16(words)) & 255;
  }
  static int highest8(B a) noexcept { return 255 - lowest8(_mm512_xor_si512(a, set8(255))); }

  /// Exponent bytes of 64 float32, in any order.
  template <class E>
  static B exponents(E, const u8*, const F (&x)[4]) noexcept {
    __m512i words[2];
    for (int i = 0; i < 2; ++i) {  // upper halves, joined
      words[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(x[2 * i]), 16),
                                         _mm512_castps_si512(x[2 * i + 1]));
    }
    return exponents_of_words(words);
  }
  static B exponents(BF16Element, const u8* at, const F (&)[4]) noexcept {
    const __m512i words[2] = {raw512(at), raw512(at + 64)};
    return exponents_of_words(words);
  }
  static B exponents_of_words(const __m512i (&words)[2]) noexcept {  // sign, exponent, start of the mantissa
    return _mm512_packus_epi16(_mm512_srli_epi16(_mm512_slli_epi16(words[0], 1), 8),
                               _mm512_srli_epi16(_mm512_slli_epi16(words[1], 1), 8));
  }
  /// Exponent bytes of 64 float64, saturated to float32's range, in any order.
  static B exponents_wide(const D (&x)[8]) noexcept {
    I e[4];
    for (int i = 0; i < 4; ++i) {
      const F high = _mm512_shuffle_ps(_mm512_castpd_ps(x[2 * i]), _mm512_castpd_ps(x[2 * i + 1]), 0xdd);
      e[i] = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_castps_si512(high), 1), 21);
    }
    const __m512i bias = _mm512_set1_epi16(896);
    return _mm512_packus_epi16(_mm512_subs_epu16(_mm512_packus_epi32(e[0], e[1]), bias),
                               _mm512_subs_epu16(_mm512_packus_epi32(e[2], e[3]), bias));
  }

  // loads: one group
  static __m512i raw512(const u8* at) noexcept { return _mm512_loadu_si512(at); }
  static __m256i raw256(const u8* at) noexcept {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }

  static void load4(F32Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm512_castsi512_ps(raw512(at + 64 * i));
    }
  }
  static void load4(F16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm512_cvtph_ps(raw256(at + 32 * i));
    }
  }
  static void load4(BF16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 2;
         ++i) {  // odd and even elements separately; the order within a group does not matter
      const __m512i pair = raw512(at + 64 * i);
      x[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      x[2 * i + 1] =
          _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    }
  }
  static void load4(I16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(raw256(at + 32 * i)));
    }
  }
  static void load4(U16Element, const u8* at, F (&x)[4]) noexcept {
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(raw256(at + 32 * i)));
    }
  }
  static void load8(F64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm512_castsi512_pd(raw512(at + 64 * i));
    }
  }
  static void load8(I32Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm512_cvtepi32_pd(raw256(at + 32 * i));
    }
  }
  static void load8(U32Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm512_cvtepu32_pd(raw256(at + 32 * i));
    }
  }
  static void load8(U64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm512_cvtepu64_pd(raw512(at + 64 * i));
    }
  }
  static void load8(I64Element, const u8* at, D (&x)[8]) noexcept {
    for (int i = 0; i < 8; ++i) {
      x[i] = _mm512_cvtepi64_pd(raw512(at + 64 * i));
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
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), raw512(from + at));
    }
    __builtin_memcpy(to + at, from + at, bytes - at);
  }
};

constexpr KernelTable kTable = make_table<Avx512>("avx512");

}  // namespace

const KernelTable* avx512_kernels() noexcept { return &kTable; }

}  // namespace tdcore

#else

namespace tdcore {
const KernelTable* avx512_kernels() noexcept { return nullptr; }
}  // namespace tdcore

#endif
