#include "base/helper_pool.hpp"

#include <utility>

#include "base/signal_free_thread.hpp"

namespace tdcore {

HelperPool::HelperPool(int helpers, std::shared_ptr<const ForkGuard> guard) : guard_(std::move(guard)) {
  threads_.resize(static_cast<std::size_t>(helpers));
}

HelperPool::~HelperPool() {
  if (!guard_->here()) {
    for (auto& thread : threads_) (void)thread.release();  // a thread of the parent
    return;
  }
  stop_.store(true, std::memory_order_relaxed);
  bell_.fetch_add(1, std::memory_order_release);  // pairs with help()
  bell_.notify_all();
  for (auto& thread : threads_) {
    if (thread) thread->join();
  }
}

void HelperPool::start() noexcept {
  started_ = true;
  for (auto& thread : threads_) {
    thread = start_signal_free_thread([this] { help(); });
    if (!thread) return;  // the running helpers share the work
  }
}

void HelperPool::help() noexcept {
  for (;;) {
    const std::uint32_t heard = bell_.load(std::memory_order_acquire);  // pairs with run() and the destructor
    if (stop_.load(std::memory_order_relaxed)) return;
    take_units();
    bell_.wait(heard, std::memory_order_acquire);  // returns at once if bell_ has changed since
  }
}

void HelperPool::take_units() noexcept {
  for (;;) {
    std::uint64_t word = word_.load(std::memory_order_acquire);  // pairs with run(): the job is visible
    const auto unclaimed = static_cast<std::uint32_t>(word);
    if (unclaimed == 0) return;
    if (!word_.compare_exchange_weak(word, word - 1, std::memory_order_acquire)) continue;
    const std::uint32_t count = count_;
    unit_(context_, count - unclaimed);
    // Release: pairs with the acquire in run(). After the last unit the job must not be read any more.
    if (done_.fetch_add(1, std::memory_order_release) + 1 == count) done_.notify_one();
  }
}

void HelperPool::run(Unit unit, void* context, std::uint32_t count) noexcept {
  if (count < 2 || busy_.exchange(true, std::memory_order_acquire)) {
    for (std::uint32_t i = 0; i < count; ++i) unit(context, i);
    return;
  }
  if (!started_) start();
  unit_ = unit;
  context_ = context;
  count_ = count;
  done_.store(0, std::memory_order_relaxed);
  word_.store(std::uint64_t{++job_} << 32 | count, std::memory_order_release);  // pairs with take_units()
  bell_.fetch_add(1, std::memory_order_release);                                // pairs with help()
  bell_.notify_all();
  take_units();
  for (;;) {
    const std::uint32_t done = done_.load(std::memory_order_acquire);  // pairs with take_units()
    if (done == count) break;
    done_.wait(done, std::memory_order_acquire);
  }
  busy_.store(false, std::memory_order_release);
}

}  // namespace tdcore
