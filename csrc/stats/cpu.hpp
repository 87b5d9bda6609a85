// stats/cpu.hpp: statistics of tensors in host memory, alone or together with a copy of the bytes.
//
// One pass over the data in blocks that stay in the first-level cache. The kernels are compiled once
// per instruction set (stats/portable.cpp, stats/avx2.cpp, stats/avx512.cpp) and chosen at first use.
//
// Exact: all counts, the histogram, min, max, abs_min, abs_max (64-bit integers are first rounded to
// float64; so are their min and max). Accumulated in float64: everything else, within 1e-11 of the true
// value for float32, float64 and integers, 1e-6 for float16 and bfloat16 (whose blocks are summed in
// float32 and merged in float64); relative to abs_sum for mean * count, to the value itself otherwise.
// m2 has besides the error that float64 means imply: 2^-51 * |mean| / std of its value.
// Same bits for any number of threads and for contiguous and gathered input of the same values in C order.
// Between instruction sets, and for dense permuted views given to reduce(view), which are read in memory
// order, sums may differ within that tolerance.
// The caller's floating-point mode (rounding, flush to zero) has no influence and is left as it was.
//
// Threads: any thread may call any function here at any time; the memory must not change meanwhile.
// Nothing here allocates, throws or touches Python. threads > 1 starts helper threads for tensors of
// more than one chunk (kChunkElements) and joins them before it returns; if none can be started the caller
// does the work.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/tensor_view.hpp"
#include "stats/stats.hpp"

namespace tdcore {

/// Elements of one chunk: the unit that threads share out. Fixed, as results depend on it.
inline constexpr std::uint64_t kChunkElements = std::uint64_t{1} << 20;

/// Copies of this many bytes or more use non-temporal stores where the machine has them.
inline constexpr std::uint64_t kStreamingBytes = 16 * 1024;

/// False for dtypes without statistics: complex and unknown. reduce() of those returns empty statistics with
/// the count set.
bool has_stats(Dtype dtype) noexcept;

/// Statistics of `elements` contiguous elements. `data` needs no alignment; may be null when elements is 0.
TensorStats reduce(const void* data, std::uint64_t elements, Dtype dtype, int threads = 1) noexcept;

/// reduce() and copy_streaming() in one pass. Source and destination must not overlap.
/// A destination on a 64-byte boundary is fastest; any is right. Stores are fenced before it returns.
TensorStats reduce_copy(const void* source, void* destination, std::uint64_t elements, Dtype dtype,
                        int threads = 1) noexcept;

/// memcpy below kStreamingBytes, non-temporal stores from there on, fenced before it returns:
/// a release store after it publishes the bytes.
void copy_streaming(const void* source, void* destination, std::uint64_t bytes) noexcept;

/// Number of elements of a view; 1 for ndim 0.
std::uint64_t element_count(const TensorView& view) noexcept;

/// True if the view's elements are in C order without gaps (strides of extents 1 do not matter).
bool is_contiguous(const TensorView& view) noexcept;

/// Statistics of a whole view of any strides. Works for at most kMaxDims dimensions (more: empty statistics).
TensorStats reduce(const TensorView& view, int threads = 1) noexcept;

/// Elements [first_element, first_element + elements) of the view in C order: statistics and copy in one
/// pass, through a bounce block that stays in the cache. Contiguous views take the direct way.
/// Same bits as reduce() of the destination.
TensorStats reduce_copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                                void* destination) noexcept;

/// The copy alone, for any dtype with a size.
void copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                  void* destination) noexcept;

/// The statistics alone, of a range.
TensorStats reduce_strided(const TensorView& view, std::uint64_t first_element,
                           std::uint64_t elements) noexcept;

/// Instruction set in use: "avx512", "avx2", "neon" (portable code on aarch64) or "portable".
/// The environment variable TDCORE_SIMD (portable, avx2, avx512), read at first use, lowers it.
const char* simd_level() noexcept;

/// For tests and benchmarks: the same as reduce() at a named level; empty statistics with count 0 when the
/// machine lacks it.
TensorStats reduce_at_level(const char* level, const void* data, std::uint64_t elements,
                            Dtype dtype) noexcept;

}  // namespace tdcore
