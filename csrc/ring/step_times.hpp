// step_times.hpp: the queue of times of steps in the shared memory of a ring, from one trainer to its
// flusher.
//
// The queue is a part of the ring's memfd (control_page.hpp). It has its own numbers, next to the records of
// the ring, because a row is written for each step, also for steps that save nothing. A row stays in the
// queue until the flusher has written it to the run, so the rows of a killed trainer, and rows that a killed
// flusher had read, are not lost. If the queue is full, a row is dropped; its number is missing then.
//
// Threads: one producer (StepTimer, under the GIL) and one consumer. Why it is correct: the producer writes
// the row, then `step_head` (release); the consumer loads `step_head` (acquire) and reads rows below it. The
// consumer stores `step_tail` (release) after its reads; the producer loads it (acquire) before it writes a
// row again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tdcore {

/// Activity of a trainer at a moment. The order is that of tdcore/format/step_times.py.
enum class Phase : std::uint32_t {
  kRest,        // none of the others
  kData,        // the script waits for its next batch
  kForward,     // the forward, until it ends or the backward begins
  kLoss,        // from the end of the forward to the backward
  kBackward,    //
  kOptimizer,   //
  kCompute,     // a step function that contains all of them
  kCheckpoint,  // a checkpoint is saved
  kCompile,     // a compiler works
  kGc,          // Python's garbage collector works
  kCount,
};
inline constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::kCount);

/// The times of one step, or of a part of it. Written by the producer, plain, before step_head.
struct StepTimeRow {
  std::uint64_t number;  // rows of this trainer before it, including those that were dropped
  std::int64_t step;
  std::int64_t mode_step;
  std::int64_t time_ns;          // CLOCK_REALTIME at the beginning
  std::int64_t phases[kPhases];  // nanoseconds; their sum is the duration
  std::int64_t capture_ns;       // time in tdcore, which is also in the phases
  std::int64_t gpu_ns;           // time of the accelerator; -1: unknown
  std::int32_t mode;             // ModeKeys value
  std::int32_t data_waits;       // how often the step entered these phases
  std::int32_t checkpoints;
  std::int32_t compiles;
};
static_assert(sizeof(StepTimeRow) == 144);

inline constexpr std::uint64_t kStepTimeRows = 2048;  // a power of two

}  // namespace tdcore
