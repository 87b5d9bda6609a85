// The stopwatch of steps, and its queue between trainer and flusher.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/step_timer.hpp"
#include "rings.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::size_t kAll = kStepTimeRows;
constexpr std::int64_t kPause = 2'000'000;  // nanoseconds

RingConfig with_times() {
  RingConfig result = config();
  result.step_times = true;
  return result;
}

void pause() { std::this_thread::sleep_for(std::chrono::nanoseconds(kPause)); }

std::int64_t in(const StepTimeRow& row, Phase phase) { return row.phases[static_cast<std::size_t>(phase)]; }

std::int64_t duration(const StepTimeRow& row) {
  return std::accumulate(std::begin(row.phases), std::end(row.phases), std::int64_t{0});
}

/// A ring with a stopwatch and a consumer.
struct Rig {
  std::shared_ptr<Ring> ring = std::make_shared<Ring>(with_times());
  StepTimer timer{ring};
  Consumer consumer{ring->memory()};

  void begin(std::int64_t step, Phase phase = Phase::kForward) { timer.begin({step, step, 1}, phase, 0); }
  void wait_for_data() {
    const Phase before = timer.enter(Phase::kData);
    pause();
    timer.leave(before);
  }
  void backward() {
    const Phase before = timer.enter(Phase::kBackward);
    pause();
    timer.end_backward(before);
  }
  void update() {
    timer.begin_optimizer();
    pause();
    timer.end_optimizer();
  }
  std::vector<StepTimeRow> rows() const { return consumer.step_times(kAll); }
};

void phases() {
  it("a step has the time of each of its phases, and nothing else", [] {
    Rig rig;
    rig.wait_for_data();
    rig.begin(0);
    pause();
    rig.timer.end_forward();
    pause();
    rig.backward();
    rig.update();
    rig.timer.finish(7);
    const auto rows = rig.rows();
    REQUIRE(rows.size() == 1);
    for (const Phase phase :
         {Phase::kData, Phase::kForward, Phase::kLoss, Phase::kBackward, Phase::kOptimizer}) {
      REQUIRE(in(rows[0], phase) >= kPause);
    }
    for (const Phase phase : {Phase::kCompute, Phase::kCheckpoint, Phase::kCompile, Phase::kGc})
      REQUIRE(in(rows[0], phase) == 0);
    REQUIRE(rows[0].data_waits == 1 && rows[0].capture_ns == 7 && rows[0].gpu_ns == -1);
  });
  it("the rows of successive steps leave no time out", [] {
    Rig rig;
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < 20; ++step) {
      if (step % 2 == 0) rig.wait_for_data();
      rig.begin(step);
      rig.backward();
      rig.update();
    }
    rig.timer.finish(0);
    const auto passed =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);
    const auto rows = rig.rows();
    REQUIRE(rows.size() == 20);
    std::int64_t total = 0;
    for (const StepTimeRow& row : rows) total += duration(row);
    REQUIRE(total <= passed.count() && total >= 20 * 2 * kPause);
    for (std::size_t i = 1; i < rows.size(); ++i) {
      REQUIRE(rows[i].number == i && rows[i].step == static_cast<std::int64_t>(i));
      REQUIRE(rows[i].time_ns >= rows[i - 1].time_ns);
    }
  });
  it("a wait for data belongs to the step that begins after it", [] {
    Rig rig;
    rig.begin(0);
    rig.update();
    rig.wait_for_data();
    rig.wait_for_data();
    rig.begin(1);
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE(rows.size() == 2 && in(rows[0], Phase::kData) == 0 && in(rows[1], Phase::kData) >= 2 * kPause);
    REQUIRE(rows[1].data_waits == 2 && rows[0].data_waits == 0);
  });
  it("a wait for data before a further forward of a step belongs to that step", [] {
    Rig rig;
    rig.wait_for_data();
    rig.begin(0);
    rig.backward();
    rig.wait_for_data();
    (void)rig.timer.enter(Phase::kForward);
    rig.backward();
    rig.update();
    rig.begin(1);
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE(rows.size() == 2 && rows[0].data_waits == 2 && in(rows[0], Phase::kBackward) >= 2 * kPause);
  });
  it("before the first step only the last wait for data counts", [] {
    Rig rig;
    rig.wait_for_data();
    pause();
    rig.wait_for_data();
    rig.begin(0);
    rig.timer.finish(0);
    REQUIRE(rig.rows()[0].data_waits == 1 && in(rig.rows()[0], Phase::kRest) < kPause);
  });
  it("the time in tdcore is never more than the step", [] {
    Rig rig;
    rig.begin(0);
    rig.timer.finish(std::int64_t{1} << 50);
    REQUIRE(rig.rows()[0].capture_ns == duration(rig.rows()[0]));
  });
  it("the time after the last update is not part of the last step", [] {
    Rig rig;
    rig.begin(0);
    rig.update();
    pause();
    rig.timer.finish(0);
    Rig other;
    other.begin(0);
    other.update();
    other.wait_for_data();  // the end of the data
    other.timer.finish(0);
    REQUIRE(in(rig.rows()[0], Phase::kRest) < kPause && in(other.rows()[0], Phase::kData) == 0);
  });
  it("a pause of the garbage collector interrupts a phase", [] {
    Rig rig;
    rig.begin(0);
    rig.timer.begin_gc();
    rig.timer.begin_gc();  // has no effect
    pause();
    rig.timer.end_gc();
    pause();
    rig.begin(1);
    const auto rows = rig.rows();
    REQUIRE(in(rows[0], Phase::kGc) >= kPause && in(rows[0], Phase::kForward) >= kPause);
  });
  it("a backward inside an optimizer's closure or another backward returns to it", [] {
    Rig rig;
    rig.begin(0);
    rig.timer.begin_optimizer();
    const Phase outer = rig.timer.enter(Phase::kBackward);
    const Phase inner = rig.timer.enter(Phase::kBackward);
    rig.timer.end_backward(inner);
    pause();  // of the outer backward
    rig.timer.end_backward(outer);
    pause();  // of the optimizer
    rig.timer.end_optimizer();
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE(in(rows[0], Phase::kBackward) >= kPause && in(rows[0], Phase::kOptimizer) >= kPause);
  });
  it("checkpoints inside checkpoints, and compilations, are counted once", [] {
    Rig rig;
    rig.begin(0);
    const Phase outer = rig.timer.enter(Phase::kCheckpoint);
    const Phase inner = rig.timer.enter(Phase::kCheckpoint);
    rig.timer.leave(inner);
    rig.timer.leave(outer);
    rig.timer.leave(rig.timer.enter(Phase::kCompile));
    rig.timer.finish(0);
    REQUIRE(rig.rows()[0].checkpoints == 1 && rig.rows()[0].compiles == 1);
  });
  it("other threads have no effect", [] {
    Rig rig;
    rig.begin(0);
    std::thread([&] {
      rig.timer.leave(rig.timer.enter(Phase::kData));
      rig.timer.begin_optimizer();
      rig.timer.end_optimizer();
      rig.timer.begin_gc();
      rig.timer.end_gc();
    }).join();
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE(rows[0].data_waits == 0 && in(rows[0], Phase::kForward) == duration(rows[0]));
  });
}

/// Numbers of the steps of rows.
std::vector<std::int64_t> steps_of(const std::vector<StepTimeRow>& rows) {
  std::vector<std::int64_t> result;
  for (const StepTimeRow& row : rows) result.push_back(row.step);
  return result;
}

/// Times of the GPU of rows; -1: unknown.
std::vector<std::int64_t> gpu_of(const std::vector<StepTimeRow>& rows) {
  std::vector<std::int64_t> result;
  for (const StepTimeRow& row : rows) result.push_back(row.gpu_ns);
  return result;
}

using Numbers = std::vector<std::int64_t>;

void held_rows() {
  it("a row that waits for the time of the GPU is held back until the time is known", [] {
    Rig rig;
    rig.begin(0);
    const std::uint64_t number = rig.timer.expect_gpu();
    rig.update();
    rig.begin(1);
    REQUIRE(number == 0 && rig.rows().empty());
    rig.timer.set_gpu(number, 5);
    REQUIRE(gpu_of(rig.rows()) == Numbers{5});
    rig.timer.set_gpu(number, 6);  // has no effect
    rig.begin(2);
    REQUIRE((gpu_of(rig.rows()) == Numbers{5, -1}));
  });
  it("rows after a row that waits are published after it", [] {
    Rig rig;
    rig.begin(0);
    const std::uint64_t first = rig.timer.expect_gpu();
    rig.begin(1);
    rig.begin(2);
    const std::uint64_t third = rig.timer.expect_gpu();
    rig.begin(3);
    rig.timer.set_gpu(third, 7);
    REQUIRE(rig.rows().empty());
    rig.timer.set_gpu(first, 5);
    const auto rows = rig.rows();
    REQUIRE((steps_of(rows) == Numbers{0, 1, 2} && gpu_of(rows) == Numbers{5, -1, 7}));
    for (std::size_t i = 0; i < rows.size(); ++i) REQUIRE(rows[i].number == i);
  });
  it("a time that is known before the end of the step holds no row back", [] {
    Rig rig;
    rig.begin(0);
    rig.timer.set_gpu(rig.timer.expect_gpu(), 5);
    rig.begin(1);
    REQUIRE(gpu_of(rig.rows()) == Numbers{5});
  });
  it("a time that cannot be measured releases the row", [] {
    Rig rig;
    rig.begin(0);
    const std::uint64_t number = rig.timer.expect_gpu();
    rig.begin(1);
    rig.timer.set_gpu(number, -1);
    REQUIRE(gpu_of(rig.rows()) == Numbers{-1});
  });
  it("if 16 rows are held, the next row publishes the oldest one without its time", [] {
    Rig rig;
    for (int step = 0; step <= 16; ++step) {
      rig.begin(step);
      (void)rig.timer.expect_gpu();
    }
    REQUIRE(rig.rows().empty());  // 16 rows have ended
    rig.timer.set_gpu(2, 7);
    rig.begin(17);
    REQUIRE((steps_of(rig.rows()) == Numbers{0}));
    rig.begin(18);  // the row of step 17 is known: it waits for the rows before it
    REQUIRE((steps_of(rig.rows()) == Numbers{0, 1, 2} && gpu_of(rig.rows()) == Numbers{-1, -1, 7}));
    rig.timer.set_gpu(0, 9);  // has no effect
    rig.timer.set_gpu(99, 9);
    rig.timer.set_gpu(3, 8);
    REQUIRE((gpu_of(rig.rows()) == Numbers{-1, -1, 7, 8}));
  });
  it("times that come many steps late fill the rows in order", [] {
    Rig rig;
    constexpr std::int64_t kLate = 12;
    for (std::int64_t step = 0; step < 200; ++step) {
      rig.begin(step);
      REQUIRE(rig.timer.expect_gpu() == static_cast<std::uint64_t>(step));
      if (step >= kLate) rig.timer.set_gpu(static_cast<std::uint64_t>(step - kLate), step - kLate);
    }
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE(rows.size() == 200);
    for (std::int64_t step = 0; step < 200; ++step) {
      const StepTimeRow& row = rows[static_cast<std::size_t>(step)];
      REQUIRE(row.step == step && row.gpu_ns == (step < 200 - kLate ? step : -1));
    }
  });
  it("the end publishes held rows and the last row", [] {
    Rig rig;
    for (int step = 0; step < 4; ++step) {
      rig.begin(step);
      (void)rig.timer.expect_gpu();
      rig.update();
    }
    rig.timer.set_gpu(1, 7);
    rig.timer.set_gpu(3, 9);  // the current row
    rig.timer.finish(0);
    const auto rows = rig.rows();
    REQUIRE((steps_of(rows) == Numbers{0, 1, 2, 3} && gpu_of(rows) == Numbers{-1, 7, -1, 9}));
    (void)rig.timer.expect_gpu();
    rig.timer.set_gpu(0, 1);
    rig.begin(4);
    REQUIRE(rig.rows().size() == 4);
  });
  it("a wait for data splits a row whose time of the GPU is expected or known", [] {
    Rig rig;
    for (int step = 0; step < 3; ++step) {
      rig.begin(step);
      const std::uint64_t number = rig.timer.expect_gpu();
      rig.update();
      rig.wait_for_data();
      if (step == 1) rig.timer.set_gpu(number, 5);
    }
    rig.timer.set_gpu(0, 3);
    rig.timer.set_gpu(2, 7);
    rig.timer.finish(0);
    REQUIRE((gpu_of(rig.rows()) == Numbers{3, 5, 7}));
  });
  it("before the first step no time of the GPU is expected", [] {
    Rig rig;
    (void)rig.timer.expect_gpu();
    rig.begin(0);
    rig.begin(1);
    REQUIRE(rig.rows().size() == 1);
  });
}

void queue() {
  it("rows that do not fit leave a gap in the numbers", [] {
    Rig rig;
    for (std::uint64_t step = 0; step < kStepTimeRows + 10; ++step)
      rig.begin(static_cast<std::int64_t>(step));
    REQUIRE(rig.consumer.pending_step_times() == kStepTimeRows);
    rig.consumer.release_step_times(5);
    rig.begin(-1);
    const auto rows = rig.rows();
    REQUIRE(rows.front().number == 5 && rows[rows.size() - 2].number == kStepTimeRows - 1);
    REQUIRE(rows.back().number == kStepTimeRows + 9);
  });
  it("the next flusher gets the rows that a killed one has not released", [] {
    Rig rig;
    for (int step = 0; step < 4; ++step) rig.begin(step);
    REQUIRE(rig.rows().size() == 3);
    rig.consumer.release_step_times(1);
    Consumer next(rig.ring->memory());
    REQUIRE(next.step_times(kAll).front().step == 1 && next.step_times(1).size() == 1);
    next.release_step_times(100);
    REQUIRE(next.pending_step_times() == 0);
  });
  it("a ring without a queue drops all rows", [] {
    const auto ring = std::make_shared<Ring>(config());
    Consumer consumer(ring->memory());
    REQUIRE(!ring->put_step_time({}) && consumer.step_time_slots() == 0 && consumer.step_times(1).empty());
  });
  it("a forked child and a closed ring drop all rows", [] {
    Rig rig;
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(rig.ring->put_step_time({}) ? 1 : 0);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(rig.consumer.pending_step_times() == 0);
    rig.ring->close();
    rig.begin(0);
    rig.begin(1);
    rig.timer.finish(0);
    REQUIRE(!rig.ring->put_step_time({}));
  });
  it("a flusher in another thread gets each row once and whole", [] {
    Rig rig;
    constexpr std::uint64_t kRows = 200'000;
    std::thread reader([&] {
      std::uint64_t next = 0;
      while (next < kRows) {
        const auto rows = rig.consumer.step_times(97);
        for (const StepTimeRow& row : rows) {
          REQUIRE(row.number == next && row.step == static_cast<std::int64_t>(next));
          REQUIRE(std::all_of(std::begin(row.phases), std::end(row.phases),
                              [&](std::int64_t each) { return each == row.step; }));
          ++next;
        }
        rig.consumer.release_step_times(rows.size());
        if (rows.empty()) std::this_thread::yield();
      }
    });
    for (std::uint64_t number = 0; number < kRows; ++number) {
      StepTimeRow row{};
      row.number = number;
      row.step = static_cast<std::int64_t>(number);
      std::fill(std::begin(row.phases), std::end(row.phases), row.step);
      while (!rig.ring->put_step_time(row)) std::this_thread::yield();
    }
    reader.join();
  });
}

}  // namespace

int main() {
  phases();
  held_rows();
  queue();
  return tdcore::testing::result();
}
