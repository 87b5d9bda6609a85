// consumer.hpp: the consumer side of the ring: reads records in ticket order and releases their space.
// For a trainer with accelerators, the consumer reads the main ring and all lanes, in one order of tickets
// (lane_order.hpp).
//
// There is one consumer at a time, in the flusher's process or in a thread of the trainer. A consumer may be
// killed at any moment; the next consumer attaches to the same memory and continues at the first record that
// was not released (ring.hpp, 8). next() only reads; release() makes the reads final.
// Threads: one thread at a time for next(), seek(), release(), names(); other methods from any thread.
// The consumer never waits, and checks every value from the ring before it uses the value.
//
// Torn records. A slot whose commit word is not its ticket is *pending* while the producers' process lives:
// the consumer stops there. When the caller has detected the end of the process (producer_dead), every such
// slot below the reservation word is *torn*: it is counted and skipped, and only its commit word is read. The
// first skipped slot also sets control.marked_dead, in all lanes, so that a producer that is alive after all
// gets no more room. A committed slot with an impossible place or size is corrupt, and is always treated as
// torn.
//
// A committed batch whose values have not arrived yet (lane_reader.hpp) is pending too, and is counted in
// control.early_commits, once per consumer.
//
// The caller detects the end of the process only after its files are closed (a pidfd is ready only then).
// Closing them has made the driver end the work of the devices, so a record in a lane that is not committed
// by then is torn permanently. The order over the lanes stores this (lane_order.hpp), in case a commit word
// is written later.
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
  /// Starts at the head and increments the control page's epoch. lanes: the main ring, then all of its lanes
  /// in their order. Throws std::invalid_argument for any other list.
  explicit Consumer(std::vector<std::shared_ptr<RingMemory>> lanes);
  explicit Consumer(std::shared_ptr<RingMemory> memory);  // a ring without lanes
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  /// The next record; nothing if no record is committed yet, or in a forked child.
  [[nodiscard]] std::optional<RecordView> next(bool producer_dead) noexcept;

  Mark mark() const noexcept { return cursor_; }  // after the last record that next() returned
  Mark released() const noexcept { return released_; }
  void seek(const Mark& mark) noexcept { cursor_ = mark; }  // a mark not before released()

  /// Releases all records from `first` to `end` and counts the `torn` records among them, exactly once, even
  /// if this process is killed during the call. Throws std::logic_error if `first` is not where the last
  /// release ended, or if another consumer has attached since. Then this consumer must stop: its reads are
  /// void.
  void release(const Mark& first, const Mark& end, std::uint64_t torn = 0);

  /// Names published since the last call with the same cursor. Throws std::runtime_error (corrupt table).
  std::vector<Name> names(NameCursor& cursor) const {
    return usable() ? read_names(*memory(), cursor) : std::vector<Name>{};
  }

  bool usable() const noexcept { return memory()->here(); }
  bool closing() const noexcept;
  std::uint64_t epoch() const noexcept { return epoch_; }
  std::uint64_t pending_records() const noexcept;  // reserved and not released, including torn records
  std::uint64_t pending_bytes() const noexcept;
  std::uint64_t data_bytes() const noexcept;  // least of all lanes
  std::uint64_t slots() const noexcept;       // likewise
  double fill() const noexcept;               // used share of the fullest lane's bytes or slots: 0 to 1
  std::uint64_t early_commits() const noexcept;

  Counters counters() const noexcept { return usable() ? read_counters(memory()->control()) : Counters{}; }
  void count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept;

  /// Adds to the totals that the trainer reads, and updates the heartbeat. `error` counts as one error; an
  /// empty text means that the last error is over.
  /// busy_ns: time since the last report in which the sink had work. uploads: since the last report.
  void report(std::uint64_t records, std::uint64_t bytes, std::uint64_t rows, std::int64_t last_step,
              const std::string* error, std::uint64_t busy_ns = 0, const UploadTotals& uploads = {}) noexcept;

  /// Passes a stop request to the trainer. Later requests do not replace the first one. False if the text is
  /// empty or longer than kControlTextBytes.
  [[nodiscard]] bool request_stop(const std::string& text) noexcept;

  /// Passes a request of another kind to the trainer. False while the previous request has not been taken,
  /// and if the text is empty or longer than kControlTextBytes.
  [[nodiscard]] bool try_post_request(const std::string& text) noexcept;
  /// Copies of the oldest rows in the queue of times of steps, at most `most`. They stay in the queue.
  std::vector<StepTimeRow> step_times(std::size_t most) const;
  /// Number of rows in the queue, and its capacity (0 without a queue).
  std::uint64_t pending_step_times() const noexcept;
  std::uint64_t step_time_slots() const noexcept { return memory()->step_row_count(); }
  /// Removes the oldest `count` rows, at most those in the queue.
  void release_step_times(std::uint64_t count) noexcept;

  /// Number of these requests since the ring was created, including requests of earlier consumers.
  std::uint64_t requests_posted() const noexcept;

  const std::shared_ptr<RingMemory>& memory() const noexcept { return lanes_[0]; }  // memory of the main ring
  std::span<const std::byte* const> data() const noexcept { return data_; }         // data of each lane

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
  Mark released_;  // the last head that this consumer stored
};

}  // namespace tdcore
