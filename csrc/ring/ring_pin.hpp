// ring_pin.hpp: Ring::Pin, for the source files of Ring. Threads: any.
#pragma once

#include "ring/ring.hpp"

namespace tdcore {

/// A call in progress. The order of its two accesses, and of the two accesses in close(), keeps the mapping
/// alive: all four are seq_cst, so either close() reads the user, or the user reads closed_.
class Ring::Pin {
 public:
  explicit Pin(const Ring& ring) noexcept : ring_(ring) {
    if (!ring.guard_->here()) return;
    ring.users_.fetch_add(1, std::memory_order_seq_cst);
    entered_ = !ring.closed_.load(std::memory_order_seq_cst);
    if (!entered_) leave(ring);
  }
  ~Pin() {
    if (entered_) leave(ring_);
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  explicit operator bool() const noexcept { return entered_; }
  void keep() noexcept { entered_ = false; }  // a reservation continues to use the ring
  static void leave(const Ring& ring) noexcept {
    ring.users_.fetch_sub(1, std::memory_order_release);
  }  // pairs with close()

 private:
  const Ring& ring_;
  bool entered_ = false;
};

}  // namespace tdcore
