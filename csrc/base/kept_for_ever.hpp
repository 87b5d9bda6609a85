// kept_for_ever.hpp: what stays until the process ends, since a device or a thread that cannot be waited for
// may still touch it. It can be reached from a list, so that tools which look for leaks see that it is meant.
// Threads: any.
#pragma once

#include <atomic>
#include <new>
#include <utility>

namespace tdcore {

/// Moves `what` to where nothing destroys it. Without memory for that, nothing destroys it either.
template <typename T>
void keep_for_ever(T&& what) noexcept {
  struct Kept {
    alignas(T) unsigned char bytes[sizeof(T)];
    Kept* next;
  };
  static std::atomic<Kept*> newest{nullptr};  // nobody reads the list: relaxed
  Kept* const kept = new (std::nothrow) Kept;
  if (kept == nullptr) {
    alignas(T) unsigned char bytes[sizeof(T)];
    (void)new (bytes) T(std::move(what));
    return;
  }
  (void)new (kept->bytes) T(std::move(what));
  kept->next = newest.exchange(kept, std::memory_order_relaxed);
}

}  // namespace tdcore
