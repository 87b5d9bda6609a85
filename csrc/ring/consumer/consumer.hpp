// consumer.hpp: the consumer side of the ring: reads records in ticket order and gives their space back.
// Of a trainer with accelerators it reads the main ring and all lanes, in one order of tickets
// (lane_order.hpp).
//
// One consumer at a time, in the flusher's process or in a thread of the trainer. It may be killed at any
// moment; the next one attaches to the same memory and goes on at the first record not given back
// (ring.hpp, 8). next() only reads; release() makes what was read final.
// Threads: one thread at a time for next(), seek(), release(), names(); the rest from any thread.
// Nothing here waits, and nothing read from the ring is followed before it was checked.
//
// Torn records. A slot whose commit word is not its ticket is *pending* while the producers' process lives:
// the consumer stops there. When the caller has detected its end (producer_dead), every such slot below the
// reservation word is torn: it is counted and skipped, and only its commit word is read. The first skipped
// slot also sets control.marked_dead, in all lanes: if a producer is alive after all, it gets no more room. A
// committed slot with an impossible place or size is corrupt and treated as torn, alive or not.
// A committed batch whose values are not there yet (lane_reader.hpp) is pending too, and is counted in
// control.early_commits, once per consumer.
// The caller's verdict comes after the trainer's files are closed (a pidfd is ready only then), so the driver
// has ended what its devices were doing: what is not committed by then is torn for good in a lane, too, and
// the order over the lanes remembers it (lane_order.hpp), should a word come after all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ring/consumer/lane_chooser.hpp"
#include "ring/consumer/lane_order.hpp"
#include "ring/consumer/lane_reader.hpp"
#include "ring/control_page.hpp"
#include "ring/counters.hpp"
#include "ring/names.hpp"
#include "ring/ring_memory.hpp"

namespace tdcore {

class Consumer {
 public:
  /// Starts at the head; the control page's epoch goes up by one. lanes: the main ring, then its lanes in
  /// their order. Throws std::invalid_argument when these are not one trainer's, all of them.
  explicit Consumer(std::vector<std::shared_ptr<RingMemory>> lanes);
  explicit Consumer(std::shared_ptr<RingMemory> memory);  // a ring without lanes
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  /// The next record, or nothing: none committed yet, or a forked child.
  [[nodiscard]] std::optional<RecordView> next(bool producer_dead) noexcept;

  Mark mark() const noexcept { return cursor_; }  // behind the last record that next() gave
  Mark released() const noexcept { return released_; }
  void seek(const Mark& mark) noexcept { cursor_ = mark; }  // a mark not before released()

  /// Gives back everything from `first` to `end` and counts the `torn` records in between, exactly once even
  /// if killed in here. Throws std::logic_error when `first` is not where the last release ended, or when
  /// another consumer has attached since (this one must stop: its reads are void).
  void release(const Mark& first, const Mark& end, std::uint64_t torn = 0);

  /// Names published since the last call with the same cursor. Throws std::runtime_error (corrupt table).
  std::vector<Name> names(NameCursor& cursor) const {
    return usable() ? read_names(*memory(), cursor) : std::vector<Name>{};
  }

  bool usable() const noexcept { return memory()->here(); }
  bool closing() const noexcept;
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t pending_records() const noexcept;  // reserved and not given back, torn ones included
  std::uint64_t pending_bytes() const noexcept;
  std::uint64_t data_bytes() const noexcept;  // of the smallest lane
  std::uint64_t slots() const noexcept;       // likewise
  double fill() const noexcept;  // share in use of the fullest lane, of its bytes or slots: 0 to 1
  std::uint64_t early_commits() const noexcept;

  Counters counters() const noexcept { return usable() ? read_counters(memory()->control()) : Counters{}; }
  void count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept;

  /// Adds to the totals that the trainer sees, and beats the heart. `error` counts as one error, an empty one
  /// ends it.
  void report(std::uint64_t records, std::uint64_t bytes, std::uint64_t rows, std::int64_t last_step,
              const std::string* error) noexcept;

  /// Passes a request on to the trainer; the first one stands. False when longer than kControlTextBytes or
  /// empty.
  [[nodiscard]] bool request_stop(const std::string& text) noexcept;

  /// Passes a request of another kind on to the trainer. False while the one before has not been taken, and
  /// when longer than kControlTextBytes or empty.
  [[nodiscard]] bool try_post_request(const std::string& text) noexcept;
  /// How many were passed on since the ring was made, by earlier consumers too.
  std::uint64_t requests_posted() const noexcept;

  const std::shared_ptr<RingMemory>& memory() const noexcept { return lanes_[0]; }  // the main ring's
  std::span<const std::byte* const> data() const noexcept { return data_; }         // of each lane

 private:
  void check_lanes() const;
  std::optional<RecordView> next_of_one(bool producer_dead) noexcept;
  std::optional<RecordView> next_of_all(bool producer_dead) noexcept;
  RecordView take(std::uint32_t lane, const Found& found) noexcept;
  void mark_dead() noexcept;
  void count_early(std::uint32_t lane) noexcept;
  bool release_one(const Mark& end, std::uint64_t torn) noexcept;
  void finish_torn_count() noexcept;

  const std::vector<std::shared_ptr<RingMemory>> lanes_;
  std::vector<const std::byte*> data_;  // constant after construction
  LaneOrder order_;
  LaneChooser chooser_;
  std::array<bool, kMaxLanes> early_{};  // whether the oldest record of the lane was counted as early
  std::uint64_t epoch_ = 0;
  Mark cursor_;    // next record to read
  Mark released_;  // what this consumer last stored as head
};

}  // namespace tdcore
