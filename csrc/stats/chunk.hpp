// stats/chunk.hpp: between stats/cpu.cpp and stats/strided.cpp: one chunk at a time, many chunks by many
// threads. Threads: a ChunkReducer belongs to one thread; run_chunks() starts and joins its own.
#pragma once

#include <cstdint>
#include <variant>

#include "stats/bytes.hpp"
#include "stats/cpu.hpp"
#include "stats/table.hpp"

namespace tdcore {

/// The kernels in use; chosen at the first call.
const KernelTable& active_kernels() noexcept;

/// True where non-temporal stores pay: from kStreamingBytes on. ThreadSanitizer cannot see them, so never
/// under it.
bool use_streaming(std::uint64_t bytes) noexcept;

/// Round to nearest and keep subnormals while it lives, whatever the caller has set; restores it afterwards.
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
  /// With a destination, the bytes are copied as well; `stream` picks non-temporal stores, which the caller
  /// fences.
  void feed(const void* source, void* destination, std::uint64_t elements, bool stream) noexcept;
  void finish() noexcept;

 private:
  const KernelTable& kernels_;
  const Dtype dtype_;
  TensorStats& stats_;
  std::variant<ByteSums, ByteTable, ChunkState> state_;
};

/// What one chunk of a job gives. `context` is the job's.
using ChunkFunction = TensorStats (*)(const void* context, std::uint64_t chunk) noexcept;

/// Runs chunks 0 .. chunks - 1 and merges their statistics in order.
TensorStats run_chunks(ChunkFunction function, const void* context, std::uint64_t chunks,
                       int threads) noexcept;

}  // namespace tdcore
