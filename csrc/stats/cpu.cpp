#include "stats/cpu.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "stats/chunk.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace tdcore {
namespace {

// ---- choice of kernels ----

#if defined(__x86_64__)
/// Checks MOVBE, F16C and LZCNT, which not every compiler's __builtin_cpu_supports() supports.
bool has_small_extensions() noexcept {
  constexpr unsigned kMovbe = 1U << 22, kF16c = 1U << 29, kLzcnt = 1U << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool first = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & kMovbe) != 0 && (c & kF16c) != 0;
  return first && __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c & kLzcnt) != 0;
}

bool machine_has_avx2() noexcept {  // all of x86-64-v3
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && has_small_extensions();
}

bool machine_has_avx512() noexcept {  // all of x86-64-v4
  return machine_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#endif

/// The best kernels that the machine can run, up to level `limit`. With `exact`, the kernels of this level,
/// or nullptr.
const KernelTable* find_kernels(const char* limit, bool exact) noexcept {
  const auto wanted = [&](const char* level) { return !exact || std::strcmp(level, limit) == 0; };
#if defined(__x86_64__)
  __builtin_cpu_init();  // not every run-time library calls it before constructors
  const bool below512 = std::strcmp(limit, "avx2") == 0 || std::strcmp(limit, "portable") == 0;
  if (!below512 && wanted("avx512") && avx512_kernels() != nullptr && machine_has_avx512()) {
    return avx512_kernels();
  }
  if (std::strcmp(limit, "portable") != 0 && wanted("avx2") && avx2_kernels() != nullptr &&
      machine_has_avx2()) {
    return avx2_kernels();
  }
#endif
  const KernelTable* portable = portable_kernels();
  return wanted(portable->level) || std::strcmp(limit, "portable") == 0 ? portable : nullptr;
}

bool is_float8(Dtype dtype) noexcept { return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2; }

// ---- a contiguous tensor ----

struct Contiguous {
  const KernelTable& kernels;
  const std::byte* source;
  std::byte* destination;  // or null
  std::uint64_t elements;
  Dtype dtype;
  bool stream;
};

TensorStats reduce_chunk(const void* context, std::uint64_t chunk) noexcept {
  const auto& job = *static_cast<const Contiguous*>(context);
  const DefaultFloatMode mode;
  const std::uint64_t first = chunk * kChunkElements;
  const std::uint64_t elements = std::min(kChunkElements, job.elements - first);
  const std::uint64_t offset = first * dtype_bytes(job.dtype);
  TensorStats stats;  // constructed in place, without a copy
  ChunkReducer reducer{job.kernels, job.dtype, stats};
  reducer.feed(job.source + offset, job.destination == nullptr ? nullptr : job.destination + offset, elements,
               job.stream);
  if (job.stream) {
    job.kernels.fence();
  }
  reducer.finish();
  return stats;
}

TensorStats run_contiguous(const Contiguous& job, int threads) noexcept {
  if (job.elements == 0 || !has_stats(job.dtype)) {
    TensorStats stats = empty_stats();
    stats.count = job.elements;
    if (job.destination != nullptr) {
      copy_streaming(job.source, job.destination, job.elements * dtype_bytes(job.dtype));
    }
    return stats;
  }
  const std::uint64_t chunks = (job.elements + kChunkElements - 1) / kChunkElements;
  return run_chunks(reduce_chunk, &job, chunks, threads);
}

// ---- threads ----

constexpr std::uint64_t kWaveChunks = 64;  // number of stored results
constexpr int kMaxHelpers = 32;

/// Chunks [first, first + count) of a job, which threads take by `next`.
struct Wave {
  ChunkFunction function;
  const void* context;
  std::uint64_t first;
  std::uint64_t count;
  std::atomic<std::uint64_t> next{0};  // relaxed: only distributes indices; join() publishes the results
  std::array<TensorStats, kWaveChunks> results;

  void work() noexcept {
    for (;;) {
      const std::uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) {
        return;
      }
      results[index] = function(context, first + index);
    }
  }
};

TensorStats run_alone(ChunkFunction function, const void* context, std::uint64_t chunks) noexcept {
  TensorStats stats = function(context, 0);
  for (std::uint64_t chunk = 1; chunk < chunks; ++chunk) {
    merge(stats, function(context, chunk));
  }
  return stats;
}

void run_wave(Wave& wave, int threads) noexcept {
  std::array<std::thread, kMaxHelpers> helpers;
  const auto wanted =
      static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(threads), wave.count));
  for (int i = 0; i + 1 < std::min(wanted, kMaxHelpers); ++i) {
    try {
      helpers[static_cast<std::size_t>(i)] = std::thread{[&wave] { wave.work(); }};
    } catch (const std::system_error&) {
      break;  // no further thread can be started: the running threads share the work
    }
  }
  wave.work();
  for (std::thread& helper : helpers) {
    if (helper.joinable()) {
      helper.join();
    }
  }
}

}  // namespace

TensorStats run_chunks(ChunkFunction function, const void* context, std::uint64_t chunks,
                       int threads) noexcept {
  if (chunks <= 1) return function(context, 0);
  if (threads <= 1) return run_alone(function, context, chunks);
  TensorStats stats = empty_stats();
  for (std::uint64_t first = 0; first < chunks; first += kWaveChunks) {
    Wave wave{function, context, first, std::min(kWaveChunks, chunks - first), {}, {}};
    run_wave(wave, threads);
    for (std::uint64_t index = 0; index < wave.count; ++index) {
      merge(stats, wave.results[index]);
    }
  }
  return stats;
}

bool use_streaming([[maybe_unused]] std::uint64_t bytes) noexcept {
#if defined(__SANITIZE_THREAD__)
  return false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return false;
#else
  return bytes >= kStreamingBytes;
#endif
#else
  return bytes >= kStreamingBytes;
#endif
}

const KernelTable& active_kernels() noexcept {
  static const KernelTable& kActive = []() -> const KernelTable& {
    const char* limit = std::getenv("TDCORE_SIMD");
    return *find_kernels(limit == nullptr ? "" : limit, false);
  }();
  return kActive;
}

#if defined(__x86_64__)
DefaultFloatMode::DefaultFloatMode() noexcept : saved_{_mm_getcsr()} { _mm_setcsr(0x1f80); }
DefaultFloatMode::~DefaultFloatMode() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
DefaultFloatMode::DefaultFloatMode() noexcept : saved_{0} {
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
  __asm__ volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
}
DefaultFloatMode::~DefaultFloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
#else
DefaultFloatMode::DefaultFloatMode() noexcept : saved_{0} {}
DefaultFloatMode::~DefaultFloatMode() = default;
#endif

ChunkReducer::ChunkReducer(const KernelTable& kernels, Dtype dtype, TensorStats& stats) noexcept
    : kernels_{kernels}, dtype_{dtype}, stats_{stats} {
  if (is_float8(dtype)) {
    state_.emplace<ByteTable>();
  } else if (kernels.feed_bytes[static_cast<std::size_t>(dtype)] == nullptr) {
    stats_ = empty_stats();
    state_.emplace<ChunkState>(ChunkState{.stats = stats_});
  }
}

void ChunkReducer::feed(const void* source, void* destination, std::uint64_t elements, bool stream) noexcept {
  const auto dtype = static_cast<std::size_t>(dtype_);
  if (ChunkState* const state = std::get_if<ChunkState>(&state_); state != nullptr) {
    kernels_.feed[dtype](*state, source, destination, elements, stream);
    return;
  }
  constexpr std::uint64_t kPiece =
      16 * 1024;  // bytes that are reduced, then copied while they are in the cache
  for (std::uint64_t done = 0; done < elements; done += kPiece) {
    const std::uint64_t here = std::min(kPiece, elements - done);
    const std::byte* from = static_cast<const std::byte*>(source) + done;
    if (ByteSums* const sums = std::get_if<ByteSums>(&state_); sums != nullptr) {
      kernels_.feed_bytes[dtype](*sums, from, here);
    } else {
      std::get_if<ByteTable>(&state_)->add(from, here);
    }
    if (destination != nullptr) {
      std::byte* to = static_cast<std::byte*>(destination) + done;
      stream ? kernels_.copy(to, from, here) : static_cast<void>(std::memcpy(to, from, here));
    }
  }
}

void ChunkReducer::finish() noexcept {
  if (const ByteSums* const sums = std::get_if<ByteSums>(&state_); sums != nullptr) {
    stats_ = stats_of_sums(*sums);
  } else if (const ByteTable* const table = std::get_if<ByteTable>(&state_); table != nullptr) {
    stats_ = stats_of_table(*table, dtype_);
  }
}

bool has_stats(Dtype dtype) noexcept {
  return dtype != Dtype::kUnknown && static_cast<int>(dtype) < static_cast<int>(Dtype::kC64);
}

TensorStats reduce(const void* data, std::uint64_t elements, Dtype dtype, int threads) noexcept {
  return run_contiguous(
      {active_kernels(), static_cast<const std::byte*>(data), nullptr, elements, dtype, false}, threads);
}

TensorStats reduce_copy(const void* source, void* destination, std::uint64_t elements, Dtype dtype,
                        int threads) noexcept {
  const bool stream = use_streaming(elements * dtype_bytes(dtype));
  return run_contiguous({active_kernels(), static_cast<const std::byte*>(source),
                         static_cast<std::byte*>(destination), elements, dtype, stream},
                        threads);
}

void copy_streaming(const void* source, void* destination, std::uint64_t bytes) noexcept {
  if (bytes == 0) {
    return;
  }
  if (!use_streaming(bytes)) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const KernelTable& kernels = active_kernels();
  kernels.copy(destination, source, bytes);
  kernels.fence();
}

const char* simd_level() noexcept { return active_kernels().level; }

TensorStats reduce_at_level(const char* level, const void* data, std::uint64_t elements,
                            Dtype dtype) noexcept {
  const KernelTable* kernels = find_kernels(level, true);
  if (kernels == nullptr) {
    return empty_stats();
  }
  return run_contiguous({*kernels, static_cast<const std::byte*>(data), nullptr, elements, dtype, false}, 1);
}

}  // namespace tdcore
