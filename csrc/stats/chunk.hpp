// stats/chunk.hpp: the part that stats/cpu.cpp and stats/strided.cpp share: reduction of one chunk, and of
// many chunks by several threads. Threads: a ChunkReducer belongs to one thread; run_chunks() starts and
// joins its own threads.
#pragma once

#include <cstdint>
#include <variant>

#include "stats/bytes.hpp"
#include "stats/cpu.hpp"
#include "stats/table.hpp"

namespace tdcore {

/// The kernels in use; chosen at the first call.
const KernelTable& active_kernels() noexcept;

/// Whether non-temporal stores are faster: from kStreamingBytes on. False under ThreadSanitizer, which does
/// not detect these stores.
bool use_streaming(std::uint64_t bytes) noexcept;

/// Sets the floating-point mode to round to nearest and keep subnormals. The destructor restores the caller's
/// mode.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept;
  ~DefaultFloatMode();
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  std::uint64_t saved_;
};

/// Statistics of one chunk (at most kChunkElements elements) fed in pieces. The pieces do not change the
/// result as long as all but the last are multiples of kBlockElements. Needs a DefaultFloatMode around it.
class ChunkReducer {
 public:
  /// has_stats(dtype). `stats` holds the result after finish().
  ChunkReducer(const KernelTable& kernels, Dtype dtype, TensorStats& stats) noexcept;
  /// With a destination, the bytes are copied as well. `stream`: use non-temporal stores, which the caller
  /// must fence.
  void feed(const void* source, void* destination, std::uint64_t elements, bool stream) noexcept;
  void finish() noexcept;

 private:
  const KernelTable& kernels_;
  const Dtype dtype_;
  TensorStats& stats_;
  std::variant<ByteSums, ByteTable, ChunkState> state_;
};

/// Function that reduces one chunk of a job. `context` is the argument of run_chunks().
using ChunkFunction = TensorStats (*)(const void* context, std::uint64_t chunk) noexcept;

/// Runs chunks 0 .. chunks - 1 and merges their statistics in order.
TensorStats run_chunks(ChunkFunction function, const void* context, std::uint64_t chunks,
                       int threads) noexcept;

}  // namespace tdcore
