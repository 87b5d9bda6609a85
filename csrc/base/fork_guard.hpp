// fork_guard.hpp: detects that code runs in a forked child, where the parent's threads, memory and devices
// must be left alone. Threads: here() from any thread; constructor and destructor from one.
#pragma once

#include <atomic>
#include <cstdint>

namespace tdcore {

/// Detects, with two loads, that this process is a fork of the one that made the guard. The kernel wipes a
/// private word in a child (MADV_WIPEONFORK), and a pthread_atfork handler raises a generation number. Either
/// is enough, so the guard also works on a kernel without the first and after a raw clone() without the
/// second.
class ForkGuard {
 public:
  ForkGuard();  // throws std::system_error
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  /// True in the process that made it. Any thread.
  bool here() const noexcept {
    return *alive_word_ == 1 && generation_ == fork_generation.load(std::memory_order_relaxed);
  }

 private:
  static void raise_generation() noexcept;

  // Raised in every child made by fork(). Relaxed: the child has one thread, and that one raised it.
  static inline std::atomic<std::uint64_t> fork_generation{0};

  const volatile std::uint64_t* alive_word_ =
      nullptr;                    // 1 here, 0 in a child; a page of its own, constant after construction
  std::uint64_t generation_ = 0;  // constant after construction
};

}  // namespace tdcore
