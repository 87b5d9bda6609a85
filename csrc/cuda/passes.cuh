// passes.cuh: statistics of a warp's part of a tile.
//
// A fast pass around a pivot reads the whole vectors of contiguous tensors (sums.cuh). The remaining elements
// are read one by one in float64. So are strided tensors, and elements for which the result of the fast pass
// is not valid (NaN, Inf, subnormals, a far mean). A vector belongs to the same thread in all passes.
// Threads: all lanes of a warp call these functions together.
#pragma once

#include "cuda/sums.cuh"

namespace tdcore::device {

inline constexpr u32 kWarps = kThreads / kLanes;
inline constexpr u32 kRowWords = kThreads / 4;  // words of a row of the histogram: a byte per thread
inline constexpr u32 kCountWords = 6;           // words of TensorStats that are counts, before the doubles
inline constexpr u32 kValueWords = 8;
inline constexpr u32 kColumns = kCountWords + kLog2Bins;  // words of TensorStats that are added up
static_assert(sizeof(TensorStats) == 8 * (kColumns + kValueWords));
static_assert(kTileElements / kThreads <= 255);

/// The current tile, written by one thread; in shared memory, because registers are few.
struct TileTask {
  Item item;
  ElementSource source;  // elements of the tile
  u64 tile, tiles;       // number of the tile in its item, and number of the item's tiles
  TensorStats* to;       // address of the tile's result
  u32 position;          // position of the item
  u32 elements;          // number of elements of the tile
};

struct Shared {
  TileTask task;
  const Item* items;  // of the launch; in shared memory, because registers are few
  const ItemLayout* layouts;
  u32 histogram[kLog2Bins * kRowWords];  // zero between tiles
  Values warps[kWarps];
  u32 bins[kLog2Bins];
  u64 columns[2][kColumns];
  u32 binned;  // number of values in the bins of the tile; zero between tiles, like the next four
  u32 nan, pos_inf, neg_inf, subnormal;
  bool last;  // whether this block finished a group or an item
};

TDCORE_DEVICE bool has_values(Dtype dtype) { return dtype != Dtype::kUnknown && dtype < Dtype::kC64; }

/// Properties of an element type for the passes.
struct Limits {
  double far = 256;            // largest squared distance of pivot and mean, in variances
  double largest = kInfinity;  // the fast pass is not valid from this |x| on, even if its sums are finite
  double smallest = 0;         // the fast pass is not valid if the largest |x| is below this number
  double normal = 0;   // values below this number are subnormal; 0: their number follows from the bins
  bool exact = false;  // sums around 0 are exact integers
};

TDCORE_DEVICE Limits limits_of(Dtype dtype) {
  Limits limits;
  if (dtype <= Dtype::kI16) limits.exact = true;
  if (dtype == Dtype::kF64) limits.normal = 0x1p-1022;
  if (dtype == Dtype::kF32 || dtype == Dtype::kBF16) limits.normal = 0x1p-126;
  if (dtype == Dtype::kF8E4M3) limits.largest = 480;  // a NaN that was read as a number
  const bool float32_sums =
      dtype == Dtype::kF32 ? kFewFloat64Units : dtype >= Dtype::kF16 && dtype != Dtype::kF64;
  if (float32_sums) limits.far = 4;
  // Squares of values between these limits, and of differences of such values, are normal as float32.
  if (float32_sums && (dtype == Dtype::kBF16 || dtype == Dtype::kF32)) limits.largest = 0x1p60;
  if (float32_sums && dtype == Dtype::kBF16) limits.smallest = 0x1p-48;
  if (float32_sums && dtype == Dtype::kF32) limits.smallest = 0x1p-38;
  return limits;
}

// ---- the fast pass ----------------------------------------------------------------------------------------

/// Mean of `first` over the lanes that have a value; 0 if the mean is not finite.
template <class Number>
TDCORE_DEVICE Number pivot_of(Number first, bool has) {
  const u32 lanes = static_cast<u32>(__popc(__ballot_sync(kAllLanes, has)));
  const Number sum = sum_of_lanes(has ? first : Number{0});
  const Number mean = sum / static_cast<Number>(lanes == 0 ? 1 : lanes);
  return is_finite(static_cast<double>(mean)) ? mean : Number{0};
}

/// Sums the thread's whole vectors, among the first `vectors` vectors.
template <class Sums>
TDCORE_DEVICE Moments fast_pass(const u8* data, u32 vectors, Bins bins, double& pivot) {
  using Raw = typename Sums::Raw;
  constexpr u32 kBytes = sizeof(Raw), kEach = kPerVector<kBytes>;
  const u32 steps = (vectors + kThreads - 1) / kThreads;
  Sums sums;
  u32 taken = 0;
  Words now{}, next{};
  // Two vectors are loaded while another vector is summed. The bounds are equal in the block, because
  // pivot_of() shuffles.
  TDCORE_NO_UNROLL
  for (u32 step = 0; step < steps + 2; ++step) {
    const u32 vector = step * kThreads + threadIdx.x;
    Words loaded{};
    if (vector < vectors) loaded = load_vector<kBytes>(data + static_cast<u64>(vector) * 16, kEach);
    if (step == 2) sums.pivot = pivot_of(Sums::first(now), vector - 2 * kThreads < vectors);
    if (step >= 2 && vector - 2 * kThreads < vectors) {
      sums.add(now, bins);
      taken += kEach;
    }
    now = next;
    next = loaded;
  }
  pivot = static_cast<double>(sums.pivot);
  return sums.lane(taken);
}

TDCORE_DEVICE Moments fast_pass_of(Dtype dtype, const u8* data, u32 vectors, Bins bins, double& pivot) {
  switch (dtype) {
    case Dtype::kBool:
      return fast_pass<SmallSums<BoolElement>>(data, vectors, bins, pivot);
    case Dtype::kU8:
      return fast_pass<SmallSums<U8Element>>(data, vectors, bins, pivot);
    case Dtype::kI8:
      return fast_pass<SmallSums<I8Element>>(data, vectors, bins, pivot);
    case Dtype::kU16:
      return fast_pass<SmallSums<U16Element>>(data, vectors, bins, pivot);
    case Dtype::kI16:
      return fast_pass<SmallSums<I16Element>>(data, vectors, bins, pivot);
    case Dtype::kU32:
      return fast_pass<WideSums<U32Element>>(data, vectors, bins, pivot);
    case Dtype::kI32:
      return fast_pass<WideSums<I32Element>>(data, vectors, bins, pivot);
    case Dtype::kU64:
      return fast_pass<WideSums<U64Element>>(data, vectors, bins, pivot);
    case Dtype::kI64:
      return fast_pass<WideSums<I64Element>>(data, vectors, bins, pivot);
    case Dtype::kF16:
      return fast_pass<ShortSums<F16Element>>(data, vectors, bins, pivot);
    case Dtype::kBF16:
      return fast_pass<ShortSums<BF16Element>>(data, vectors, bins, pivot);
    case Dtype::kF32:
      return fast_pass<Float32Sums>(data, vectors, bins, pivot);
    case Dtype::kF64:
      return fast_pass<WideSums<F64Element>>(data, vectors, bins, pivot);
    case Dtype::kF8E4M3:
      return fast_pass<ShortSums<F8E4M3Element>>(data, vectors, bins, pivot);
    default:
      return fast_pass<ShortSums<F8E5M2Element>>(data, vectors, bins, pivot);
  }
}

// ---- element by element -----------------------------------------------------------------------------------

/// Counts that the fast pass cannot make, of a thread's part of a tile: one byte each, at most 255.
struct Odd {
  u32 bytes = 0;

  static constexpr u32 kNan = 0, kPosInf = 1, kNegInf = 2, kSubnormal = 3;
  TDCORE_DEVICE void add(u32 kind) { bytes += 1u << (8 * kind); }
  TDCORE_DEVICE u32 count(u32 kind) const { return bytes >> (8 * kind) & 255; }
};

/// The bits of an element of 1, 2, 4 or 8 bytes at any address.
TDCORE_DEVICE u64 load_bits(const u8* from, u32 bytes) {
  TDCORE_ASSUME_GLOBAL(from);
  if (reinterpret_cast<std::uintptr_t>(from) % bytes == 0) {
    if (bytes == 8) return *reinterpret_cast<const u64*>(from);
    if (bytes == 4) return *reinterpret_cast<const u32*>(from);
    if (bytes == 2) return *reinterpret_cast<const u16*>(from);
  }
  u64 bits = 0;
  TDCORE_NO_UNROLL
  for (u32 i = 0; i < bytes; ++i) bits |= static_cast<u64>(from[i]) << (8 * i);
  return bits;
}

template <class E>
TDCORE_DEVICE double value_as(u64 bits) {
  return E::value(static_cast<typename E::Raw>(bits));
}

TDCORE_DEVICE double value_of_bits(Dtype dtype, u64 bits) {
  switch (dtype) {
    case Dtype::kBool:
      return bits != 0 ? 1 : 0;
    case Dtype::kI8:
      return value_as<I8Element>(bits);
    case Dtype::kI16:
      return value_as<I16Element>(bits);
    case Dtype::kI32:
      return value_as<I32Element>(bits);
    case Dtype::kI64:
      return value_as<I64Element>(bits);
    case Dtype::kF16:
      return value_as<F16Element>(bits);
    case Dtype::kBF16:
      return value_as<BF16Element>(bits);
    case Dtype::kF32:
      return value_as<F32Element>(bits);
    case Dtype::kF64:
      return value_as<F64Element>(bits);
    case Dtype::kF8E4M3:
      return value_as<F8E4M3Element>(bits);
    case Dtype::kF8E5M2:
      return value_as<F8E5M2Element>(bits);
    default:  // unsigned
      return value_as<U64Element>(bits);
  }
}

// Purpose of a call of add_each().
enum class Attempt : u32 {
  kRest,        // elements that remain after the fast pass
  kAroundZero,  // all elements
  kAroundMean,  // all elements, whose bins are counted
  kScaled,      // like kAroundMean, with values divided by 4096, because sums exceed float64 (around 1e308)
};

/// Adds the elements of the thread's vectors from `from` on.
TDCORE_DEVICE void add_each(Moments& lane, Odd& odd, const ElementSource& source, u32 from, u32 elements,
                            Dtype dtype, double pivot, Attempt attempt, Bins bins) {
  const u32 bytes = static_cast<u32>(dtype_bytes(dtype)), each = 16 / bytes;
  TDCORE_NO_UNROLL
  for (u32 first = (from / each / kThreads * kThreads + threadIdx.x) * each; first < elements;
       first += each * kThreads) {
    if (first < from) continue;
    Walk walk(source, first, bytes);
    TDCORE_NO_UNROLL
    for (u32 i = first; i < first + each && i < elements; ++i) {
      const double value = value_of_bits(dtype, load_bits(walk.next(source, i, bytes), bytes));
      if (!is_finite(value)) {
        odd.add(value != value ? Odd::kNan : value > 0 ? Odd::kPosInf : Odd::kNegInf);
        continue;
      }
      const double magnitude = fabs(value);
      const double delta = attempt == Attempt::kScaled ? value * 0x1p-12 : value - pivot;
      ++lane.finite;
      lane.sum += delta;
      lane.squares += delta * delta;
      lane.abs_sum += magnitude;
      lane.min = value < lane.min ? value : lane.min;
      lane.max = value > lane.max ? value : lane.max;
      if (bits_as<u64>(magnitude) == 0) continue;
      lane.abs_min = magnitude < lane.abs_min ? magnitude : lane.abs_min;
      if (magnitude < limits_of(dtype).normal) odd.add(Odd::kSubnormal);
      if (attempt <= Attempt::kAroundZero) bins.add_magnitude(magnitude, true);
    }
  }
}

/// Whether the pivot was too far from the mean for the tolerance in stats/cpu.hpp.
TDCORE_DEVICE bool is_far(const Values& values, double pivot, const Limits& limits) {
  const double offset = values.mean - pivot;
  return !limits.exact && values.finite * offset * offset > limits.far * values.m2;
}

/// Whether the result of a warp's fast pass is not valid.
TDCORE_DEVICE bool needs_care(const Moments& all, const Values& values, double pivot, const Limits& limits) {
  if (all.finite == 0) return false;
  // This detects Inf and NaN among the values, because their deltas and squares are not finite.
  if (!is_finite(all.sum) || !is_finite(all.squares) || !is_finite(all.abs_sum)) return true;
  return is_far(values, pivot, limits) || values.abs_max >= limits.largest ||
         (values.abs_max > 0 && values.abs_max < limits.smallest) || all.abs_min < limits.normal;
}

/// Computes mean and m2 exactly, for values whose sums are exact integers: n * squares stays below 2^55.
TDCORE_DEVICE void make_exact(Values& values, const Moments& all) {
  if (all.finite == 0) return;
  const i64 sum = static_cast<i64>(all.sum);
  values.m2 = static_cast<double>(all.finite * static_cast<i64>(all.squares) - sum * sum) / all.finite;
  values.square_sum = all.squares;
}

/// The values of the warp's elements; each thread has its own bins and odd counts.
TDCORE_DEVICE Values values_of_warp(const ElementSource& source, u32 elements, Dtype dtype, Bins bins,
                                    Odd& odd) {
  const u32 bytes = static_cast<u32>(dtype_bytes(dtype)), each = 16 / bytes;
  const Limits limits = limits_of(dtype);
  const bool fast = source.layout == nullptr && reinterpret_cast<std::uintptr_t>(source.data) % bytes == 0;
  Moments lane;
  Values values;
  double pivot = 0;
  u32 from = 0;
  Attempt attempt = Attempt::kAroundZero;
  if (fast) {
    lane = fast_pass_of(dtype, source.data, elements / each, bins, pivot);
    from = elements / each * each;
    attempt = Attempt::kRest;
  }
  TDCORE_NO_UNROLL
  while (true) {
    add_each(lane, odd, source, from, elements, dtype, pivot, attempt, bins);
    const Moments all = moments_of_lanes(lane);
    values = all.values(pivot);
    if (limits.exact) make_exact(values, all);
    if (attempt == Attempt::kRest) {
      if (!needs_care(all, values, pivot, limits)) break;
      bins.clear();
      pivot = 0;
      attempt = Attempt::kAroundZero;
    } else if (attempt == Attempt::kScaled) {
      values.mean *= 0x1p12;
      break;
    } else if (!is_finite(values.mean)) {
      pivot = 0;
      attempt = Attempt::kScaled;
    } else if (attempt == Attempt::kAroundZero && is_far(values, pivot, limits)) {
      pivot = values.mean;
      attempt = Attempt::kAroundMean;
    } else {
      break;
    }
    from = 0;
    lane = Moments{};
    odd = Odd{};
  }
  return values;
}

/// Reduces the warp's part of the tile to shared memory.
TDCORE_DEVICE void reduce_warp(Shared& shared) {
  const Dtype dtype = static_cast<Dtype>(shared.task.item.dtype);
  Odd odd;
  Values values = no_values();
  if (has_values(dtype)) {
    const Bins bins = Bins::of_thread(reinterpret_cast<u8*>(shared.histogram));
    values = values_of_warp(shared.task.source, shared.task.elements, dtype, bins, odd);
  }
  if (threadIdx.x % kLanes == 0) shared.warps[threadIdx.x / kLanes] = values;
  if (odd.bytes == 0) return;
  atomicAdd(&shared.nan, odd.count(Odd::kNan));
  atomicAdd(&shared.pos_inf, odd.count(Odd::kPosInf));
  atomicAdd(&shared.neg_inf, odd.count(Odd::kNegInf));
  atomicAdd(&shared.subnormal, odd.count(Odd::kSubnormal));
}

}  // namespace tdcore::device
