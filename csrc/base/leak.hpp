// leak.hpp: objects that are never destroyed, because a device or a thread that did not stop in time may
// still use them. A list refers to the objects, so that leak checkers do not report them. Threads: any.
#pragma once

#include <atomic>
#include <new>
#include <utility>

namespace tdcore {

/// Moves `what` into an object that is never destroyed. If there is no memory for it, `what` is leaked too.
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
