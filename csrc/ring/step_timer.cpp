#include "ring/step_timer.hpp"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <numeric>
#include <utility>

namespace tdcore {
namespace {

std::int64_t read_clock_ns(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int64_t monotonic() noexcept { return read_clock_ns(CLOCK_MONOTONIC); }

/// The times and counts that were added to `row` after the copy `earlier`.
StepTimeRow since(const StepTimeRow& row, const StepTimeRow& earlier) noexcept {
  StepTimeRow later = row;
  for (std::size_t i = 0; i < kPhases; ++i) later.phases[i] -= earlier.phases[i];
  later.data_waits -= earlier.data_waits;
  later.checkpoints -= earlier.checkpoints;
  later.compiles -= earlier.compiles;
  later.gpu_ns = -1;
  return later;
}

}  // namespace

StepTimer::StepTimer(std::shared_ptr<Ring> ring) noexcept
    : ring_(std::move(ring)), owner_(std::this_thread::get_id()) {}

void StepTimer::begin(const Step& step, Phase phase, std::int64_t capture_ns) noexcept {
  if (finished_) return;
  if (std::this_thread::get_id() != owner_) in_gc_ = false;  // the end of the pause would have no effect
  owner_ = std::this_thread::get_id();
  const std::int64_t now = monotonic();
  if (!open_) {
    open(now);
    capture_seen_ = capture_ns;
  }
  switch_to(phase, now);
  if (named_ && has_split_) {
    split_.gpu_ns = row_.gpu_ns;
    end_row(split_, capture_ns);
    row_ = since(row_, split_);
    row_.time_ns = split_time_ns_;
  } else if (named_) {
    end_row(row_, capture_ns);
    open(now);
  }
  row_.step = step.step;
  row_.mode_step = step.mode_step;
  row_.mode = step.mode;
  named_ = true;
  has_split_ = false;  // in_optimizer_ stays: a closure can begin a step
}

Phase StepTimer::enter(Phase phase) noexcept {
  const Phase before = phase_;
  // A compiler works before a step, and also in the middle of one.
  const bool waits = phase == Phase::kData || (phase == Phase::kCompile && phase_ == Phase::kRest);
  if (!open_ && waits && !finished_ && std::this_thread::get_id() == owner_) open(monotonic());
  if (has_no_effect()) return before;
  const std::int64_t now = monotonic();
  if (!named_ && phase == Phase::kData && before != Phase::kData)
    open(now);  // the first row begins with the last wait for data
  switch_to(phase, now);
  if (waits) begin_wait();
  if (phase != before) {  // not a part of itself
    row_.data_waits += phase == Phase::kData;
    row_.checkpoints += phase == Phase::kCheckpoint;
    row_.compiles += phase == Phase::kCompile;
  }
  if (phase == Phase::kForward || phase == Phase::kBackward || phase == Phase::kCompute) has_split_ = false;
  return before;
}

void StepTimer::leave(Phase interrupted) noexcept {
  if (has_no_effect()) return;
  // After a wait for data, no forward or loss of the step before it continues.
  const bool is_over = interrupted == Phase::kForward || interrupted == Phase::kLoss;
  switch_to(phase_ == Phase::kData && is_over ? Phase::kRest : interrupted, monotonic());
}

void StepTimer::begin_optimizer() noexcept {
  if (std::this_thread::get_id() == owner_) in_optimizer_ = true;  // its closure can begin the first step
  if (has_no_effect()) return;
  has_split_ = false;
  switch_to(Phase::kOptimizer, monotonic());
}

void StepTimer::end_optimizer() noexcept {
  if (std::this_thread::get_id() == owner_) in_optimizer_ = false;
  if (has_no_effect()) return;
  switch_to(Phase::kRest, monotonic());
}

void StepTimer::end_forward() noexcept {
  if (phase_ != Phase::kForward || has_no_effect()) return;
  switch_to(Phase::kLoss, monotonic());
}

void StepTimer::end_backward(Phase interrupted) noexcept {
  if (has_no_effect()) return;
  Phase next = in_optimizer_ ? Phase::kOptimizer : Phase::kRest;  // a closure has called it
  if (interrupted == Phase::kBackward || interrupted == Phase::kCompute) next = interrupted;
  switch_to(next, monotonic());
}

void StepTimer::begin_gc() noexcept {
  if (in_gc_ || has_no_effect()) return;
  in_gc_ = true;
  before_gc_ = phase_;
  switch_to(Phase::kGc, monotonic());
}

void StepTimer::end_gc() noexcept {
  if (!in_gc_ || std::this_thread::get_id() != owner_) return;
  in_gc_ = false;
  if (!has_no_effect()) switch_to(before_gc_, monotonic());
}

std::uint64_t StepTimer::expect_gpu() noexcept {
  waits_for_gpu_ = open_ && !finished_;
  return next_number_;
}

void StepTimer::set_gpu(std::uint64_t number, std::int64_t nanoseconds) noexcept {
  if (number == next_number_ && waits_for_gpu_) {  // the current row
    row_.gpu_ns = nanoseconds;
    waits_for_gpu_ = false;
    return;
  }
  if (held_count_ == 0) return;
  const std::uint64_t first = held_[oldest_].row.number;  // held rows have successive numbers
  if (number < first || number - first >= held_count_) return;
  HeldRow& held = held_[(oldest_ + (number - first)) % kHeldRows];
  if (!held.waits) return;
  held.row.gpu_ns = nanoseconds;
  held.waits = false;
  publish_known();
}

void StepTimer::finish(std::int64_t capture_ns) noexcept {
  if (finished_) return;
  finished_ = true;
  if (open_ && named_) {
    if (has_split_) {
      split_.gpu_ns = row_.gpu_ns;
      row_ = split_;
    } else if (phase_ != Phase::kRest) {
      switch_to(Phase::kRest, monotonic());
    }
    end_row(row_, capture_ns);
  }
  while (held_count_ > 0) publish_oldest();
}

void StepTimer::switch_to(Phase phase, std::int64_t now) noexcept {
  row_.phases[static_cast<std::size_t>(phase_)] += now - last_;
  last_ = now;
  phase_ = phase;
}

void StepTimer::open(std::int64_t now) noexcept {
  row_ = StepTimeRow{};
  row_.gpu_ns = -1;
  row_.time_ns = read_clock_ns(CLOCK_REALTIME);
  last_ = now;
  open_ = true;
  has_split_ = false;
}

/// Copies the row, if this is the first wait after the last forward, backward or optimizer.
void StepTimer::begin_wait() noexcept {
  if (has_split_ || !named_) return;
  split_ = row_;
  split_time_ns_ = read_clock_ns(CLOCK_REALTIME);
  has_split_ = true;
}

/// Numbers the row, and publishes it, unless this row or an earlier one waits for the time of the GPU.
void StepTimer::end_row(StepTimeRow row, std::int64_t capture_ns) noexcept {
  // Before the first row, the hook can have worked longer than the step.
  const std::int64_t duration =
      std::accumulate(std::begin(row.phases), std::end(row.phases), std::int64_t{0});
  row.capture_ns = std::min(capture_ns - capture_seen_, duration);
  row.number = next_number_++;
  capture_seen_ = capture_ns;
  const bool waits = waits_for_gpu_;
  waits_for_gpu_ = false;
  if (!waits && held_count_ == 0) {
    (void)ring_->put_step_time(row);
    return;
  }
  if (held_count_ == kHeldRows) {
    publish_oldest();
    publish_known();
  }
  held_[(oldest_ + held_count_) % kHeldRows] = {row, waits};
  ++held_count_;
  publish_known();
}

void StepTimer::publish_oldest() noexcept {
  (void)ring_->put_step_time(held_[oldest_].row);
  oldest_ = (oldest_ + 1) % kHeldRows;
  --held_count_;
}

/// Publishes held rows up to the first one that waits for the time of the GPU.
void StepTimer::publish_known() noexcept {
  while (held_count_ > 0 && !held_[oldest_].waits) publish_oldest();
}

}  // namespace tdcore
