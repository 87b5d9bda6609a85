// helper_pool.hpp: threads that sleep until a capture has work to share.
//
// A job is a number of units; the caller takes units too, and helpers that wake up late find none left, so
// that run() waits for nothing but units that a helper has begun. One job at a time: a second caller
// meanwhile does its units alone. No thread exists before the first job.
//
// Why it is safe. word_ holds the job's number and how many units are unclaimed. Claiming is a
// compare-and-swap, so it succeeds only while that very job has units left; until the claimed unit is counted
// in done_, run() does not return and no other job begins. So the holder of a unit, and no one else, may read
// the job. Fork: a child has no helpers; it must not call run() (captures do nothing there), and the
// destructor then leaves the threads to the parent. Threads: run() from any thread; constructor and
// destructor alone, no run() in progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"

namespace tdcore {

class HelperPool {
 public:
  /// One unit of a job; `context` is the job's.
  using Unit = void (*)(void* context, std::uint32_t index) noexcept;

  HelperPool(int helpers, std::shared_ptr<const ForkGuard> guard);  // throws std::bad_alloc
  ~HelperPool();
  HelperPool(const HelperPool&) = delete;
  HelperPool& operator=(const HelperPool&) = delete;

  /// Calls unit(context, i) once for each i in [0, count), in any order and thread; returns when all have
  /// ended. Allocates when it starts the helpers, at the first job.
  void run(Unit unit, void* context, std::uint32_t count) noexcept;

 private:
  void start() noexcept;
  void help() noexcept;
  void take_units() noexcept;

  const std::shared_ptr<const ForkGuard> guard_;
  std::vector<std::unique_ptr<std::thread>> threads_;  // room for all from the start; under busy_
  bool started_ = false;                               // under busy_
  std::uint32_t job_ = 0;                              // under busy_

  Unit unit_ = nullptr;  // of the job: written by run() before word_, read by holders of a unit
  void* context_ = nullptr;
  std::uint32_t count_ = 0;

  std::atomic<bool> busy_{false};       // acquire by run(), release at its end: one job at a time
  std::atomic<bool> stop_{false};       // relaxed: written before bell_, read after it
  std::atomic<std::uint64_t> word_{0};  // [job:32 | unclaimed:32]; release in run(), acquire in take_units()
  std::atomic<std::uint32_t> done_{0};  // ended units; release in take_units(), acquire in run()
  std::atomic<std::uint32_t> bell_{0};  // rung for each job; release in run(), acquire in help()
};

}  // namespace tdcore
