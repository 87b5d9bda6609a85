// stats/histogram.hpp: the log2 histogram of exponent bytes.
// Part of stats/kernels.hpp, which describes the kernels and is the only file that includes this header.
// Everything is in an unnamed namespace, so that each instruction set has its own code.
// Threads: pure functions on the caller's state.
#pragma once

#include "stats/sums.hpp"

namespace tdcore {
namespace {

/// Number of exponent bytes, of several blocks, that are counted together to share the fixed cost.
constexpr u64 kPendingElements = 8192;
static_assert(kPendingElements % kBlockElements == 0);
constexpr u64 kTallyGroups = 240;  // groups whose bytes are tallied in bytes; a multiple of kHalfGroups

struct PendingExponents {
  alignas(64) u8 bytes[kPendingElements];
  u64 elements = 0;
  u64 zero_bytes = 0;  // number of bytes that are 0
  u64 non_finite = 0;  // number of bytes of NaN and Inf
  int low = 255, high = 0;
  const u8* ahead = nullptr;  // end of the prefetched memory
};

/// counts[i] += number of bytes equal to first + i, for i < N.
template <class V, int N>
TDCORE_NOINLINE void count_equal(const u8* bytes, const u8* end, int first, u64* counts) noexcept {
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    typename V::B tally[N], wanted[N];
    for (int i = 0; i < N; ++i) {
      tally[i] = V::zero8();
      wanted[i] = V::set8(first + i);
    }
    for (; bytes != stop; bytes += V::kGroup) {
      const typename V::B values = V::load8(bytes);
      for (int i = 0; i < N; ++i) {
        tally[i] = V::sub8(tally[i], V::eq8(values, wanted[i]));
      }
    }
    for (int i = 0; i < N; ++i) {
      counts[i] += V::sum8(tally[i]);
    }
  }
}

/// Number of bytes >= first.
template <class V>
TDCORE_NOINLINE u64 count_from(const u8* bytes, const u8* end, int first) noexcept {
  u64 count = 0;
  const typename V::B limit = V::set8(first);
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    typename V::B tally = V::zero8();
    for (; bytes != stop; bytes += V::kGroup) {
      const typename V::B values = V::load8(bytes);
      tally = V::sub8(tally, V::eq8(V::max8(values, limit), values));
    }
    count += V::sum8(tally);
  }
  return count;
}

constexpr int kWindow = 14;
constexpr int kTables = kWindow / 2;
constexpr int kFewBins = 6;
constexpr u64 kHalfGroups = 15;  // half a byte holds 15 at most
static_assert(kTallyGroups % kHalfGroups == 0 && kTallyGroups < 256);

/// halves[i] = counts of the bytes first + 2i and first + 2i + 1, in the two halves of each byte. By table
/// look-up: table i maps its two values to 1 and 16, and all other values to 0. Not inlined, because it needs
/// all registers.
template <class V>
TDCORE_NOINLINE void count_halves(const u8* bytes, const u8* end, int first, const u8* ahead, u64 step,
                                  typename V::B* halves) noexcept {
  using B = typename V::B;
  // GCC 12 keeps tables and sums in registers only if they are not arrays, and the two constants are in
  // memory.
  const B constants[2] = {V::set8(first),
                          V::set8(0x70)};  // 16 and more get the top bit, which is looked up as 0
  __asm__ volatile("" : : "r"(constants) : "memory");
  const B t0 = V::pair_table(0), t1 = V::pair_table(2), t2 = V::pair_table(4), t3 = V::pair_table(6);
  const B t4 = V::pair_table(8), t5 = V::pair_table(10), t6 = V::pair_table(12);
  B h0 = V::zero8(), h1 = h0, h2 = h0, h3 = h0, h4 = h0, h5 = h0, h6 = h0;
  for (; bytes != end; bytes += V::kGroup) {
    __asm__ volatile("" : : : "memory");
    V::prefetch(ahead);
    ahead += step;
    const B index = V::adds8(V::sub8(V::load8(bytes), constants[0]), constants[1]);
    h0 = V::add_look_up(h0, t0, index);
    h1 = V::add_look_up(h1, t1, index);
    h2 = V::add_look_up(h2, t2, index);
    h3 = V::add_look_up(h3, t3, index);
    h4 = V::add_look_up(h4, t4, index);
    h5 = V::add_look_up(h5, t5, index);
    h6 = V::add_look_up(h6, t6, index);
  }
  halves[0] = h0;
  halves[1] = h1;
  halves[2] = h2;
  halves[3] = h3;
  halves[4] = h4;
  halves[5] = h5;
  halves[6] = h6;
}
static_assert(kTables == 7);

/// counts[i - skip] += number of bytes equal to first + i, for skip <= i < kWindow.
template <class V>
TDCORE_NOINLINE void count_window(const u8* bytes, const u8* end, int first, int skip, const u8* ahead,
                                  u64 step, u64* counts) noexcept {
  using B = typename V::B;
  while (bytes != end) {
    const u64 left = static_cast<u64>(end - bytes);
    const u8* stop = left > kTallyGroups * V::kGroup ? bytes + kTallyGroups * V::kGroup : end;
    B halves[kTables], tally[kWindow];
    for (int i = 0; i < kWindow; ++i) {
      tally[i] = V::zero8();
    }
    while (bytes != stop) {
      const u64 here = static_cast<u64>(stop - bytes);
      const u8* next = here > kHalfGroups * V::kGroup ? bytes + kHalfGroups * V::kGroup : stop;
      count_halves<V>(bytes, next, first, ahead, step, halves);
      ahead += static_cast<u64>(next - bytes) / V::kGroup * step;
      for (int i = 0; i < kTables; ++i) {
        tally[2 * i] = V::add8(tally[2 * i], V::low_half(halves[i]));
        tally[2 * i + 1] = V::add8(tally[2 * i + 1], V::high_half(halves[i]));
      }
      bytes = next;
    }
    for (int i = skip; i < kWindow; ++i) {
      counts[i - skip] += V::sum8(tally[i]);
    }
  }
}

/// Adds the bytes first .. last to the histogram one by one, if they are few. Returns their number.
template <class V>
TDCORE_NOINLINE u64 count_rare(const u8* bytes, const u8* end, int first, int last, u64* histogram) noexcept {
  constexpr u64 kStep = 4 * V::kGroup;  // bytes that are compared together
  const typename V::B from = V::set8(first), span = V::set8(last - first);
  const auto wanted = [&](const u8* at) {
    const typename V::B offsets = V::sub8(V::load8(at), from);
    return V::eq8(V::min8(offsets, span), offsets);
  };
  u64 found = 0;
  const auto count_group = [&](const u8* at) {
    for (u64 mask = V::mask8(wanted(at)); mask != 0; mask &= mask - 1) {
      ++histogram[at[__builtin_ctzll(mask)] - kFirstExponent];
      ++found;
    }
  };
  for (; static_cast<u64>(end - bytes) >= kStep; bytes += kStep) {
    const typename V::B pair = V::or8(wanted(bytes), wanted(bytes + V::kGroup));
    const typename V::B other = V::or8(wanted(bytes + 2 * V::kGroup), wanted(bytes + 3 * V::kGroup));
    if (V::mask8(V::or8(pair, other)) != 0) {
      for (u64 at = 0; at < kStep; at += V::kGroup) {
        count_group(bytes + at);
      }
    }
  }
  for (; bytes != end; bytes += V::kGroup) {
    count_group(bytes);
  }
  return found;
}

/// counts[i] += number of bytes equal to first + i, for i < bins.
[[maybe_unused]] TDCORE_NOINLINE void count_by_table(const u8* bytes, const u8* end, int first, int bins,
                                                     u64* counts) noexcept {
  u32 tables[4][256] = {};
  for (; bytes != end; bytes += 4) {
    ++tables[0][bytes[0]];
    ++tables[1][bytes[1]];
    ++tables[2][bytes[2]];
    ++tables[3][bytes[3]];
  }
  for (int i = 0; i < bins; ++i) {
    const int e = first + i;
    counts[i] += u64{tables[0][e]} + tables[1][e] + tables[2][e] + tables[3][e];
  }
}

/// Counts the uppermost `bins` of the bytes first .. first + most - 1 and returns bins:
/// counts[i] += number of bytes equal to first + most - bins + i. At most kMaxBins.
template <class V>
constexpr int kMaxBins = V::kLookUp ? kWindow : kLog2Bins;

template <class V>
TDCORE_INLINE int count_some(const u8* bytes, const u8* end, int first, int most, const u8* ahead, u64 step,
                             u64* counts) noexcept {
  switch (most) {
    case 1:
      count_equal<V, 1>(bytes, end, first, counts);
      return 1;
    case 2:
      count_equal<V, 2>(bytes, end, first, counts);
      return 2;
    case 3:
      count_equal<V, 3>(bytes, end, first, counts);
      return 3;
    case 4:
      count_equal<V, 4>(bytes, end, first, counts);
      return 4;
    case 5:
      count_equal<V, 5>(bytes, end, first, counts);
      return 5;
    default:
      break;
  }
  if constexpr (V::kLookUp) {
    if (most > kFewBins) {
      const int bins = most < kWindow ? most : kWindow;
      count_window<V>(bytes, end, first + most - kWindow, kWindow - bins, ahead, step, counts);
      return bins;
    }
  } else if (most > 4 * kFewBins) {
    count_by_table(bytes, end, first, most, counts);
    return most;
  }
  count_equal<V, kFewBins>(bytes, end, first + most - kFewBins, counts);
  return kFewBins;
}

/// Adds the pending exponent bytes to the histogram, from the top until no bytes remain. The lowest bin that
/// can be in use gets the remaining bytes.
template <class V>
TDCORE_NOINLINE void count_pending(PendingExponents& pending, u64 step,
                                   u64 (&histogram)[kLog2Bins]) noexcept {
  const u8* ahead = pending.ahead;
  const u8* bytes = pending.bytes;
  const u8* end = bytes + pending.elements;
  u64 remaining = pending.elements - pending.zero_bytes - pending.non_finite;
  const int lowest = pending.low == 0 ? kFirstExponent : pending.low;
  const int first = lowest < kFirstExponent  ? kFirstExponent
                    : lowest > kLastExponent ? kLastExponent
                                             : lowest;
  int last = pending.high < kFirstExponent  ? kFirstExponent
             : pending.high > kLastExponent ? kLastExponent
                                            : pending.high;
  if (last == kLastExponent && last > first) {
    const u64 count = count_from<V>(bytes, end, last) - pending.non_finite;
    histogram[kLog2Bins - 1] += count;
    remaining -= count;
    --last;
  }
  while (remaining != 0 && last > first) {
    if constexpr (V::kLookUp) {
      if (remaining * 128 < pending.elements && last - first > 1) {
        remaining -= count_rare<V>(bytes, end, first + 1, last, histogram);
        break;
      }
    }
    u64 counts[kMaxBins<V>] = {};
    const int bins = count_some<V>(bytes, end, first + 1, last - first, ahead, step, counts);
    step = 0;
    last -= bins;
    for (int i = 0; i < bins; ++i) {
      histogram[last + 1 + i - kFirstExponent] += counts[i];
      remaining -= counts[i];
    }
  }
  histogram[first - kFirstExponent] += remaining;
  pending.elements = 0;
  pending.zero_bytes = 0;
  pending.non_finite = 0;
  pending.low = 255;
  pending.high = 0;
}

}  // namespace
}  // namespace tdcore
