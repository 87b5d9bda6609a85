// Growth of a ring (ring.hpp, "Growth" and 10).
#include <algorithm>
#include <bit>
#include <exception>

#include "base/signal_free_thread.hpp"
#include "ring/ring_pin.hpp"

namespace tdcore {
namespace {

constexpr std::chrono::seconds kPauseAfterRefusal{1};
constexpr std::chrono::microseconds kPauseWhileGrowing{20};
constexpr std::uint64_t kFactor = 4;

}  // namespace

/// False if a record of `units` has no room even in an empty ring of the current size.
bool Ring::may_ever_fit(std::uint64_t units) const noexcept {
  const Cursor tail =
      Cursor::unpack(memory_->control().reservation.load(std::memory_order_acquire));  // see reserve()
  return units <= sizes_[tail.size].capacity;
}

/// The smallest size after `index` in which a record of `units` has room immediately, or the largest size. In
/// units. Under grow_mutex_.
std::uint64_t Ring::next_size(std::uint64_t index, std::uint64_t units) const noexcept {
  const std::uint64_t most = limit_bytes() / kUnitBytes;
  const ControlPage& control = memory_->control();
  const Cursor head = Cursor::unpack(
      control.head.load(std::memory_order_acquire));  // before the reservation, as in reserve()
  const Cursor tail = Cursor::unpack(control.reservation.load(std::memory_order_relaxed));
  const std::uint64_t before = sizes_[index].capacity;
  const std::uint64_t in_flight =
      tail.units_since(head) + before;  // the rest of the current size is left unused
  std::uint64_t capacity = std::min(before * kFactor, most);
  while (capacity < most && (in_flight + units > capacity || units > capacity - before))
    capacity = std::min(capacity * kFactor, most);
  return capacity;
}

/// Makes sizes_[index], whose memory is allocated, the ring's size. Under grow_mutex_.
void Ring::set_size(std::uint64_t index) noexcept {
  const Size& before = sizes_[index - 1];
  std::atomic<std::uint64_t>& reservation = memory_->control().reservation;
  std::uint64_t word =
      reservation.load(std::memory_order_relaxed);  // its size changes only under grow_mutex_
  for (;;) {
    const Cursor tail = Cursor::unpack(word);
    const std::uint64_t position = place(tail.position, before.capacity, 1, before).position;
    sizes_[index].bias = (before.capacity - position) & kPositionMask;
    const Cursor after{tail.ticket, position, index};
    // Release: pairs with the acquire in reserve().
    if (reservation.compare_exchange_weak(word, after.pack(), std::memory_order_release,
                                          std::memory_order_relaxed)) {
      return;
    }
  }
}

/// Allocates the memory for `capacity` units, more than now, and makes this the ring's size. False if there
/// is no memory. Under grow_mutex_.
bool Ring::resize(std::uint64_t capacity) noexcept {
  ControlPage& control = memory_->control();
  const std::uint64_t index = Cursor::unpack(control.reservation.load(std::memory_order_relaxed)).size;
  try {
    memory_->take_data(capacity * kUnitBytes);
  } catch (const std::exception& error) {
    no_growth_until_ = std::chrono::steady_clock::now() + kPauseAfterRefusal;
    control.data_limit.store(sizes_[index].capacity * kUnitBytes, std::memory_order_relaxed);
    try {
      growth_refusal_ = error.what();
    } catch (...) {  // no memory for the reason
    }
    return false;
  }
  sizes_[index + 1].capacity = capacity;
  set_size(index + 1);
  control.data_limit.store(limit_bytes(), std::memory_order_relaxed);
  growth_refusal_.clear();
  return true;
}

/// Makes the ring larger, so that a record of `units` may find room, if its size still is `seen`, in which
/// the caller found none. False if the ring has its full size, or if there is no memory. True also if another
/// thread has made the ring larger: the record may have room in that size.
bool Ring::grow(std::uint64_t units, std::uint64_t seen) noexcept {
  const ControlPage& control = memory_->control();
  if (sizes_[seen].capacity >= limit_bytes() / kUnitBytes || seen + 1 == sizes_.size()) return false;
  std::unique_lock lock(grow_mutex_, std::defer_lock);
  while (!lock.try_lock()) {  // another thread may be allocating a further size, which is not needed here
    // Acquire: as in reserve().
    if (Cursor::unpack(control.reservation.load(std::memory_order_acquire)).size != seen) return true;
    std::this_thread::sleep_for(kPauseWhileGrowing);
  }
  const std::uint64_t index = Cursor::unpack(control.reservation.load(std::memory_order_relaxed)).size;
  if (index != seen) return true;
  if (std::chrono::steady_clock::now() < no_growth_until_) return false;
  return resize(next_size(index, units));
}

/// The work of expect(), in its thread. One growth after the other, so that a capture that needs only the
/// next size does not wait until all memory is allocated.
void Ring::grow_ahead() noexcept {
  const Pin pin(*this);
  if (!pin) return;
  for (bool grown = true; grown && !closed_.load(std::memory_order_relaxed);) {
    const std::lock_guard lock(grow_mutex_);
    const std::uint64_t expected = expected_units_.load(std::memory_order_relaxed);
    const std::uint64_t most = limit_bytes() / kUnitBytes;
    const std::uint64_t index =
        Cursor::unpack(memory_->control().reservation.load(std::memory_order_relaxed)).size;
    const std::uint64_t capacity = sizes_[index].capacity;
    grown = capacity < most && capacity - capacity / 8 < expected && index + 1 < sizes_.size() &&
            resize(std::min(capacity * kFactor, most));
  }
}

void Ring::expect(std::uint64_t bytes) noexcept {
  const Pin pin(*this);
  if (!pin) return;
  const std::uint64_t units = bytes / kUnitBytes + 1;
  const std::lock_guard lock(ahead_mutex_);
  if (units <= expected_units_.load(std::memory_order_relaxed)) return;
  expected_units_.store(units, std::memory_order_relaxed);
  if (ahead_ && ahead_->joinable()) ahead_->join();  // rare, and short
  ahead_ = start_signal_free_thread([this] { grow_ahead(); });
}

std::uint64_t Ring::raise_limit(std::uint64_t bytes) noexcept {
  const Pin pin(*this);
  if (!pin) return limit_bytes();
  const std::lock_guard taking(take_mutex_);
  const std::lock_guard growing(grow_mutex_);
  const std::uint64_t before = limit_bytes();
  const std::uint64_t limit =
      std::min(std::bit_ceil(std::min(bytes, config_.data_bytes)), config_.data_bytes);
  const bool is_lane = memory_->control().lane != 0;
  if (limit <= before || (is_lane && take_tried_)) return before;
  if (is_lane) {
    set_lane_size(limit);
  } else {
    limit_.store(limit, std::memory_order_relaxed);
    memory_->control().data_limit.store(limit, std::memory_order_relaxed);
  }
  return limit;
}

std::uint64_t Ring::memory_bytes() const noexcept {
  const Pin pin(*this);
  if (!pin) return 0;
  std::uint64_t bytes = memory_->taken_bytes();
  for (const std::shared_ptr<Ring>& lane : lanes_) bytes += lane->memory_bytes();
  return bytes;
}

std::string Ring::growth_refusal() const {
  if (!guard_->here()) return {};
  const std::unique_lock lock(grow_mutex_, std::try_to_lock);
  return lock.owns_lock() ? growth_refusal_ : std::string();  // a thread is making the ring larger
}

}  // namespace tdcore
