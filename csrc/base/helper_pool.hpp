// helper_pool.hpp: threads that sleep until a capture has work to share.
//
// A job is a number of units. The caller takes units too, and helpers that wake up late find no units, so
// that run() waits only for units that a helper has begun. One job runs at a time: a second caller does its
// units alone. No thread exists before the first job.
//
// Why it is safe. word_ contains the job's number and the number of unclaimed units. Claiming is a
// compare-and-swap, so it succeeds only while the same job has units left. Until the claimed unit is counted
// in done_, run() does not return and no other job begins. Therefore only the holder of a unit may read the
// job.
//
// Fork: a child has no helpers. It must not call run() (captures do nothing in a child), and the destructor
// leaves the threads to the parent. Threads: run() from any thread; constructor and destructor while no run()
// is in progress.
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
  /// One unit of a job; `context` is the argument of run().
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
  std::vector<std::unique_ptr<std::thread>> threads_;  // never reallocated; under busy_
  bool started_ = false;                               // under busy_
  std::uint32_t job_ = 0;                              // under busy_

  Unit unit_ = nullptr;  // the job: written by run() before word_, read by holders of a unit
  void* context_ = nullptr;
  std::uint32_t count_ = 0;

  std::atomic<bool> busy_{false};       // acquire by run(), release at its end: one job at a time
  std::atomic<bool> stop_{false};       // relaxed: written before bell_, read after it
  std::atomic<std::uint64_t> word_{0};  // [job:32 | unclaimed:32]; release in run(), acquire in take_units()
  std::atomic<std::uint32_t> done_{0};  // ended units; release in take_units(), acquire in run()
  std::atomic<std::uint32_t> bell_{0};  // incremented for each job; release in run(), acquire in help()
};

}  // namespace tdcore
