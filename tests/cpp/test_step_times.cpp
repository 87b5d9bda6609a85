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
  queue();
  return tdcore::testing::result();
}
