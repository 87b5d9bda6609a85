// stats/table.hpp: what the per-instruction-set units (portable, avx2, avx512) give to
// stats/cpu.cpp. Those units are compiled with flags of their own: nothing that they instantiate may have
// external linkage except the functions below, or the linker could give another unit their code.
// Threads: a ChunkState belongs to one thread; tables are constant.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "stats/bytes.hpp"
#include "stats/stats.hpp"

namespace tdcore {

/// Elements that are reduced together while they are in the first-level cache. Results depend on it.
inline constexpr std::uint64_t kBlockElements = 2048;

/// How a block must be summed: NaN and Inf masked out, and in float64 throughout (for extremes).
enum class Care : std::uint8_t { kNone, kMasked, kWidened };

/// Where the statistics of a chunk are gathered while it is fed.
struct ChunkState {
  TensorStats& stats;       // of what was fed so far; the caller's, empty_stats() to begin with
  double finite = 0;        // finite elements so far
  double pivot = 0;         // subtracted before squaring: 0, or the mean of the block before if that is large
  Care care = Care::kNone;  // what the last block needed: tried first for the next
};

/// Adds `elements` elements to `state`. All feeds of a chunk but the last are multiples of kBlockElements.
/// With a destination the bytes are copied there too, by non-temporal stores if `stream`;
/// the caller fences (KernelTable::fence).
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

/// nullptr when not compiled in; whether the machine can run it is the caller's question.
const KernelTable* portable_kernels() noexcept;
const KernelTable* avx2_kernels() noexcept;
const KernelTable* avx512_kernels() noexcept;

}  // namespace tdcore
