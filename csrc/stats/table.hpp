// stats/table.hpp: the interface between stats/cpu.cpp and the translation units of the instruction sets
// (portable, avx2, avx512). These units are compiled with their own flags. Therefore only the functions below
// may have external linkage; otherwise the linker could use the code of one unit in another. Threads: a
// ChunkState belongs to one thread; tables are constant.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "stats/bytes.hpp"
#include "stats/stats.hpp"

namespace tdcore {

/// Elements that are reduced together while they are in the first-level cache. Results depend on it.
inline constexpr std::uint64_t kBlockElements = 2048;

/// Method to sum a block: fast, with NaN and Inf masked out, or masked and in float64 (for extreme values).
enum class Care : std::uint8_t { kNone, kMasked, kWidened };

/// Statistics of a chunk while its elements are added.
struct ChunkState {
  TensorStats& stats;       // of the elements so far; owned by the caller, empty_stats() at the start
  double finite = 0;        // finite elements so far
  double pivot = 0;         // subtracted before squaring: 0, or the mean of the previous block if it is large
  Care care = Care::kNone;  // care of the last block, tried first for the next block
};

/// Adds `elements` elements to `state`: a multiple of kBlockElements, except in the last call for a chunk.
/// With a destination the bytes are also copied, by non-temporal stores if `stream`; then the caller must
/// fence (KernelTable::fence).
using FeedFunction = void (*)(ChunkState& state, const void* source, void* destination,
                              std::uint64_t elements, bool stream) noexcept;

struct KernelTable {
  const char* level;
  FeedFunction feed[static_cast<int>(Dtype::kCount)];  // null: no kernel (complex, unknown, 1-byte types)
  ByteFeedFunction feed_bytes[static_cast<int>(Dtype::kCount)];  // for bool, uint8 and int8 alone
  void (*copy)(void* destination, const void* source,
               std::uint64_t bytes) noexcept;  // non-temporal, not fenced
  void (*fence)() noexcept;
};

/// nullptr if the kernels are not compiled in. The caller checks whether the machine can run them.
const KernelTable* portable_kernels() noexcept;
const KernelTable* avx2_kernels() noexcept;
const KernelTable* avx512_kernels() noexcept;

}  // namespace tdcore
