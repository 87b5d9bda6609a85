#include "base/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <system_error>

#include "base/limits.hpp"

namespace tdcore {

void ForkGuard::raise_generation() noexcept { fork_generation.fetch_add(1, std::memory_order_relaxed); }

ForkGuard::ForkGuard() {
  static std::once_flag registered;
  std::call_once(registered, [] { (void)::pthread_atfork(nullptr, nullptr, raise_generation); });
  void* const page = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(), "mmap of one page (fork guard)");
#ifdef MADV_WIPEONFORK
  (void)::madvise(page, kPageBytes,
                  MADV_WIPEONFORK);  // Linux 4.14; otherwise the generation number detects a fork
#endif
  auto* const word = new (page) std::uint64_t{1};
  alive_word_ = word;
  generation_ = fork_generation.load(std::memory_order_relaxed);
}

ForkGuard::~ForkGuard() {
  if (here()) ::munmap(const_cast<std::uint64_t*>(alive_word_), kPageBytes);
}

}  // namespace tdcore
