// device_allocations.hpp: memory of a device for work in flight, first in, first out, freed by events.
//
// An allocation is an extent of a memory, and the event after the last work that uses the extent. The host
// finds room without waiting: in extents whose events have happened, or by making the stream wait for the
// events. If the allocations belong to the same stream, this adds no wait. Nothing is allocated after
// construction. Threads: one at a time (DeviceEngine's mutex).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.hpp"
#include "ring/ring.hpp"

namespace tdcore {

/// Positions only increase; at() returns the address of a position. An extent never wraps.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class FifoSpace {
 public:
  explicit FifoSpace(std::uint64_t bytes) noexcept : size_(bytes) {}

  /// The extent of the next allocation of `bytes` <= size(). Changes nothing.
  Extent place(std::uint64_t bytes) const noexcept {
    const bool wraps = tail_ % size_ + bytes > size_;
    const std::uint64_t begin = wraps ? (tail_ / size_ + 1) * size_ : tail_;
    return {begin, begin + bytes};
  }
  bool fits(const Extent& extent) const noexcept { return is_free() || extent.end <= head_ + size_; }
  /// Takes an extent for work that make_room() has ordered after the earlier users of the extent.
  void take(const Extent& extent) noexcept {
    if (is_free()) head_ = extent.begin;
    free_to(needed(extent));
    tail_ = extent.end;
  }
  void free_to(std::uint64_t position) noexcept { head_ = position > head_ ? position : head_; }
  /// `extent` fits if everything before this position is free.
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
  DeviceCommit commit;  // word null: no record
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  bool by_host = false;     // the host commits the record after the event
  bool incomplete = false;  // the device rejected a part of the work
  // A record with results of graphs: the device stores here which tensors are counted.
  const device::CollectionOutcome* outcome = nullptr;
};

struct Allocation {
  EventHandle event = 0;    // event of this place in the list; reused
  EventHandle awaited = 0;  // the event after the work: `event`, or that of a later place of the same launch
  StreamHandle stream = 0;  // stream on which the event is recorded
  Extent memory;            // device memory
  Extent pinned;            // host memory, if any
  InFlightRecord record;
  bool done = false;

  void start(StreamHandle on) noexcept {
    stream = on;
    awaited = event;
    memory = pinned = {};
    record = {};
    done = false;
  }
};

/// The allocations of one memory, oldest first.
class AllocationList {
 public:
  /// Creates the list. False if there is no memory, or if the device cannot create events.
  bool make(Device& device, std::size_t capacity) noexcept;

  std::size_t size() const noexcept { return count_; }
  bool full() const noexcept { return count_ == allocations_.size(); }
  Allocation& operator[](std::size_t i) noexcept { return allocations_[(first_ + i) % allocations_.size()]; }
  /// The place of the next allocation, whose event may be recorded; push() adds it to the list.
  std::size_t next_index() const noexcept { return (first_ + count_) % allocations_.size(); }
  Allocation& next(std::size_t ahead = 0) noexcept {
    return allocations_[(first_ + count_ + ahead) % allocations_.size()];
  }
  std::size_t free() const noexcept { return allocations_.size() - count_; }
  void push(std::size_t places = 1) noexcept { count_ += places; }
  void pop() noexcept {
    first_ = (first_ + 1) % allocations_.size();
    --count_;
  }

 private:
  std::vector<Allocation> allocations_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

/// Conditions under which memory of unfinished work may be reused.
enum class Reuse {
  kNever,
  kBehindSameStream,  // by later work of the same stream, which also waits for the event
  kStreamWaits,       // by any stream, which waits for the event
};

/// Whether `extent` may be taken for work on `stream`. Makes the stream wait for earlier users if necessary.
/// `refused`: the device has rejected the wait.
bool make_room(Device& device, AllocationList& allocations, const FifoSpace& space, const Extent& extent,
               StreamHandle stream, Reuse reuse, bool& refused) noexcept;

}  // namespace tdcore
