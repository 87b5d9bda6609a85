// leak.hpp: objects that live until the process ends, because a device or a thread that did not stop in time
// may still use them. They are reachable from a list, so leak checkers report nothing.
// Threads: any.
#pragma once

#include <atomic>
#include <new>
#include <utility>

namespace tdcore {

/// Moves `what` to where nothing destroys it. Without memory for that, nothing destroys it either.
template <typename T>
void leak_on_purpose(T&& what) noexcept {
  struct Leaked {
    alignas(T) unsigned char bytes[sizeof(T)];
    Leaked* next;
  };
  static std::atomic<Leaked*> newest{nullptr};  // relaxed, because the list is never read
  Leaked* const kept = new (std::nothrow) Leaked;
  if (kept == nullptr) {
    alignas(T) unsigned char bytes[sizeof(T)];
    (void)new (bytes) T(std::move(what));
    return;
  }
  (void)new (kept->bytes) T(std::move(what));
  kept->next = newest.exchange(kept, std::memory_order_relaxed);
}

}  // namespace tdcore
