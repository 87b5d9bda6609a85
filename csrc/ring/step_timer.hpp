// step_timer.hpp: the stopwatch of a training: the time of each step, divided into phases.
//
// At each moment the trainer is in one phase. Each method reads the clock once and adds the time since the
// last method to the phase that ends, so the phases of a row add up to its duration, and the rows follow one
// another without a gap.
//
// A row begins when the script begins to wait for the data of the step, or with begin() if it does not wait.
// Whether a wait belongs to the next step is known only when the next step begins: a wait can be followed by
// a further forward of the same step (gradient accumulation). So the row is copied at the first wait, and
// begin() splits the row there, unless a forward, backward or optimizer of the same step has followed.
//
// The time of the GPU is known only after the row has ended. A row that waits for this time (expect_gpu()),
// and all rows after it, are held back until set_gpu(), so rows leave in the order of their numbers. At most
// kHeldRows rows are held: the next row then publishes the oldest one without its time, so the queue in the
// shared memory is never more than kHeldRows steps late. Without expect_gpu() no row is held.
//
// Threads: all methods run under the GIL. Calls of threads other than the trainer's (the thread of the last
// begin()) have no effect, except begin(). Fork: in a child, rows are dropped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "ring/ring.hpp"
#include "ring/step_times.hpp"

namespace tdcore {

class StepTimer {
 public:
  explicit StepTimer(std::shared_ptr<Ring> ring) noexcept;

  struct Step {
    std::int64_t step = 0;
    std::int64_t mode_step = 0;
    std::int32_t mode = 0;
  };

  /// The step begins, or continues after another step, in `phase`. capture_ns: time in tdcore so far.
  void begin(const Step& step, Phase phase, std::int64_t capture_ns) noexcept;

  /// Ends the current phase. Returns this phase, for leave().
  Phase enter(Phase phase) noexcept;
  /// Ends the current phase, and continues a phase that was interrupted.
  void leave(Phase interrupted) noexcept;

  /// The optimizer begins or ends its work.
  void begin_optimizer() noexcept;
  void end_optimizer() noexcept;
  /// The forward of the model has ended, if it is the current phase.
  void end_forward() noexcept;
  /// A backward has ended, which had interrupted a phase.
  void end_backward(Phase interrupted) noexcept;
  /// A pause of the garbage collector begins or ends.
  void begin_gc() noexcept;
  void end_gc() noexcept;

  /// The current row will get the time of the GPU. Returns the number of the row, for set_gpu().
  std::uint64_t expect_gpu() noexcept;
  /// Stores the time of the GPU of a row; negative: the time is unknown. Later calls for the row, and calls
  /// for rows that were published without this time, have no effect.
  void set_gpu(std::uint64_t number, std::int64_t nanoseconds) noexcept;

  /// Ends the last row, and publishes all held rows. A last wait for data, or a last rest, is left out: the
  /// training is over.
  void finish(std::int64_t capture_ns) noexcept;

 private:
  static constexpr std::size_t kHeldRows = 16;

  /// A row that was not published yet.
  struct HeldRow {
    StepTimeRow row{};
    bool waits = false;  // set_gpu() is expected
  };

  bool has_no_effect() const noexcept { return !open_ || finished_ || std::this_thread::get_id() != owner_; }
  void switch_to(Phase phase, std::int64_t now) noexcept;
  void open(std::int64_t now) noexcept;
  void begin_wait() noexcept;
  void end_row(StepTimeRow row, std::int64_t capture_ns) noexcept;
  void publish_oldest() noexcept;
  void publish_known() noexcept;

  const std::shared_ptr<Ring> ring_;
  std::thread::id owner_;
  StepTimeRow row_{};                      // the current row
  StepTimeRow split_{};                    // the row when the wait began; its gpu_ns is not used
  std::array<HeldRow, kHeldRows> held_{};  // the oldest row is at oldest_
  std::size_t oldest_ = 0;
  std::size_t held_count_ = 0;
  std::int64_t split_time_ns_ = 0;  // CLOCK_REALTIME of this moment
  std::int64_t last_ = 0;           // CLOCK_MONOTONIC of the last change of the phase
  std::int64_t capture_seen_ = 0;   // capture_ns of the last begin()
  std::uint64_t next_number_ = 0;
  Phase phase_ = Phase::kRest;
  Phase before_gc_ = Phase::kRest;
  bool open_ = false;           // there is a row
  bool named_ = false;          // the row has the numbers of a step
  bool has_split_ = false;      // split_ is in use
  bool waits_for_gpu_ = false;  // the current row waits for set_gpu()
  bool in_gc_ = false;
  bool in_optimizer_ = false;
  bool finished_ = false;
};

}  // namespace tdcore
