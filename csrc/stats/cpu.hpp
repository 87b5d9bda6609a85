// stats/cpu.hpp: statistics of tensors in host memory, alone or together with a copy of the bytes.
//
// The data is read in one pass, in blocks that stay in the first-level cache. The kernels are compiled once
// per instruction set (stats/portable.cpp, stats/avx2.cpp, stats/avx512.cpp) and selected at first use.
//
// Precision: - Exact: all counts, the histogram, min, max, abs_min, abs_max (64-bit integers are first
// rounded to float64). - Other values are accumulated in float64. Their error is within 1e-11 for float32,
// float64 and integers, and
//   within 1e-6 for float16 and bfloat16 (whose blocks are summed in float32 and merged in float64), relative
//   to abs_sum for mean * count, and to the value itself otherwise. m2 also has the error of means in
//   float64: 2^-51 * |mean| / std of its value.
// - The result has the same bits for any number of threads, and for contiguous and gathered input with the
// same
//   values in C order. Sums may differ within the tolerance between instruction sets, and for dense permuted
//   views in reduce(view), which are read in memory order.
// - The caller's floating-point mode (rounding, flush to zero) has no influence and is not changed.
//
// Threads: any thread may call any function at any time; the memory must not change meanwhile. These
// functions do not allocate, throw or use Python. With threads > 1, helper threads are started for tensors of
// more than one chunk (kChunkElements) and joined before the function returns; if no thread can be started,
// the caller does the work.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/tensor_view.hpp"
#include "stats/stats.hpp"

namespace tdcore {

/// Elements of one chunk, the unit of work of a thread. Fixed, because results depend on it.
inline constexpr std::uint64_t kChunkElements = std::uint64_t{1} << 20;

/// Copies of this many bytes or more use non-temporal stores if the machine has them.
inline constexpr std::uint64_t kStreamingBytes = 16 * 1024;

/// False for dtypes without statistics: complex and unknown. For these dtypes reduce() returns empty
/// statistics with the count set.
bool has_stats(Dtype dtype) noexcept;

/// Statistics of `elements` contiguous elements. `data` needs no alignment; may be null when elements is 0.
TensorStats reduce(const void* data, std::uint64_t elements, Dtype dtype, int threads = 1) noexcept;

/// reduce() and copy_streaming() in one pass. Source and destination must not overlap.
/// A destination on a 64-byte boundary is fastest; others are allowed. Stores are fenced before the function
/// returns.
TensorStats reduce_copy(const void* source, void* destination, std::uint64_t elements, Dtype dtype,
                        int threads = 1) noexcept;

/// memcpy below kStreamingBytes, otherwise non-temporal stores, which are fenced before the function returns,
/// so that a later release store publishes the bytes.
void copy_streaming(const void* source, void* destination, std::uint64_t bytes) noexcept;

/// Number of elements of a view; 1 for ndim 0.
std::uint64_t element_count(const TensorView& view) noexcept;

/// True if the view's elements are in C order without gaps (strides of extents 1 do not matter).
bool is_contiguous(const TensorView& view) noexcept;

/// Whether the view's elements fill a range of memory without gaps or overlap, in any order (a transposed or
/// channels_last tensor). Then `first` is the distance in elements from the view's first element to the
/// element with the lowest address. False for more than kMaxDims dimensions.
bool is_dense(const TensorView& view, std::int64_t& first) noexcept;

/// Statistics of a whole view of any strides, with at most kMaxDims dimensions (otherwise empty statistics).
TensorStats reduce(const TensorView& view, int threads = 1) noexcept;

/// Elements [first_element, first_element + elements) of the view in C order: statistics and copy in one
/// pass, through a bounce block that stays in the cache. Contiguous views are read directly.
/// Same bits as reduce() of the destination.
TensorStats reduce_copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                                void* destination) noexcept;

/// Only the copy, for any dtype with a size.
void copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                  void* destination) noexcept;

/// Only the statistics, of a range.
TensorStats reduce_strided(const TensorView& view, std::uint64_t first_element,
                           std::uint64_t elements) noexcept;

/// Instruction set in use: "avx512", "avx2", "neon" (portable code on aarch64) or "portable". The environment
/// variable TDCORE_SIMD (portable, avx2, avx512), which is read at first use, sets a lower one.
const char* simd_level() noexcept;

/// For tests and benchmarks: reduce() at a named level; empty statistics with count 0 if the machine does not
/// have the level.
TensorStats reduce_at_level(const char* level, const void* data, std::uint64_t elements,
                            Dtype dtype) noexcept;

}  // namespace tdcore
