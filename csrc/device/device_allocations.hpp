// device_allocations.hpp: memory of a device that work in flight uses, first in, first out, freed by events.
//
// An allocation is an extent of a memory together with the event behind the last work that touches it. Room
// is found without waiting: by what events say is done, or by making the stream wait for their events; where
// the allocations in the way are its own, it waits for nothing that it would not have waited for. Nothing is
// allocated after construction. Threads: one at a time (DeviceEngine's mutex).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.hpp"
#include "ring/ring.hpp"

namespace tdcore {

/// Positions only grow; at() says where in the memory one is. An extent never wraps.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class FifoSpace {
 public:
  explicit FifoSpace(std::uint64_t bytes) noexcept : size_(bytes) {}

  /// Where the next allocation of `bytes` <= size() would lie. Changes nothing.
  Extent place(std::uint64_t bytes) const noexcept {
    const bool wraps = tail_ % size_ + bytes > size_;
    const std::uint64_t begin = wraps ? (tail_ / size_ + 1) * size_ : tail_;
    return {begin, begin + bytes};
  }
  bool fits(const Extent& extent) const noexcept { return is_free() || extent.end <= head_ + size_; }
  /// For work that make_room() has ordered behind what lies there.
  void take(const Extent& extent) noexcept {
    if (is_free()) head_ = extent.begin;
    free_to(needed(extent));
    tail_ = extent.end;
  }
  void free_to(std::uint64_t position) noexcept { head_ = position > head_ ? position : head_; }
  /// What must be free for `extent` to fit: everything before this position.
  std::uint64_t needed(const Extent& extent) const noexcept {
    return extent.end > size_ ? extent.end - size_ : 0;
  }
  std::uint64_t at(const Extent& extent) const noexcept { return extent.begin % size_; }
  /// Whether two extents share bytes, on any lap. An empty extent has no bytes.
  bool share_memory(const Extent& left, const Extent& right) const noexcept {
    const std::uint64_t left_bytes = left.end - left.begin;
    const std::uint64_t right_bytes = right.end - right.begin;
    return left_bytes > 0 && right_bytes > 0 && at(left) < at(right) + right_bytes &&
           at(right) < at(left) + left_bytes;
  }
  std::uint64_t size() const noexcept { return size_; }

 private:
  bool is_free() const noexcept { return head_ == tail_; }

  std::uint64_t size_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
};

/// A record that waits for its commit.
struct InFlightRecord {
  Reservation room;
  DeviceCommit commit;  // word null: none
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  bool by_host = false;  // the host commits it when it has seen the event
};

struct Allocation {
  EventHandle event = 0;    // of this place in the list, used again and again
  StreamHandle stream = 0;  // that it is recorded on
  Extent memory;            // of the device
  Extent pinned;            // of the host, where there is some
  InFlightRecord record;
  bool done = false;

  void start(StreamHandle on) noexcept {
    stream = on;
    memory = pinned = {};
    record = {};
    done = false;
  }
};

/// The allocations of one memory, oldest first.
class AllocationList {
 public:
  /// False when there is no memory or the device gives no events.
  bool make(Device& device, std::size_t capacity) noexcept;

  std::size_t size() const noexcept { return count_; }
  bool full() const noexcept { return count_ == allocations_.size(); }
  Allocation& operator[](std::size_t i) noexcept { return allocations_[(first_ + i) % allocations_.size()]; }
  /// The place of the next allocation, whose event may be recorded; push() keeps it.
  Allocation& next() noexcept { return allocations_[(first_ + count_) % allocations_.size()]; }
  void push() noexcept { ++count_; }
  void pop() noexcept {
    first_ = (first_ + 1) % allocations_.size();
    --count_;
  }

 private:
  std::vector<Allocation> allocations_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// When memory of work that is not done may be taken.
enum class Reuse {
  kNever,
  kBehindSameStream,  // by work of the same stream, which runs later; the stream is made to wait all the same
  kStreamWaits,       // the stream is made to wait for others
};

/// Whether `extent` may be taken for work on `stream`, which waits for what lies there where it must.
/// `refused`: the device was asked and did not.
bool make_room(Device& device, AllocationList& allocations, const FifoSpace& space, const Extent& extent,
               StreamHandle stream, Reuse reuse, bool& refused) noexcept;

}  // namespace tdcore
