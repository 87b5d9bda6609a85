// fork_guard.hpp: detection of a forked child, where the parent's threads, memory and devices must not be
// used. Threads: here() from any thread; constructor and destructor from one thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace tdcore {

/// Detects, with two loads, that this process is a fork of the process that created the guard. The kernel
/// wipes a private word in a child (MADV_WIPEONFORK), and a pthread_atfork handler increments a generation
/// number. Either mechanism is enough, so the guard also works on a kernel without MADV_WIPEONFORK, and after
/// a raw clone(), which calls no handler.
class ForkGuard {
 public:
  ForkGuard();  // throws std::system_error
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  /// True in the process that created the guard. Any thread.
  bool here() const noexcept {
    return *alive_word_ == 1 && generation_ == fork_generation.load(std::memory_order_relaxed);
  }

 private:
  static void raise_generation() noexcept;

  // Incremented in every child of fork(). Relaxed: the child has one thread, which has incremented it.
  static inline std::atomic<std::uint64_t> fork_generation{0};

  const volatile std::uint64_t* alive_word_ =
      nullptr;                    // 1 here, 0 in a child; on a separate page, constant after construction
  std::uint64_t generation_ = 0;  // constant after construction
};

}  // namespace tdcore
