// DeviceEngine, third part: pauses after the device has rejected work, and the end of rejected batches.
#include <algorithm>
#include <chrono>

#include "device/device_engine.hpp"

namespace tdcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestRetry{60'000};

}  // namespace

/// Pauses the engine, or turns it off if the device is lost. Returns false.
bool DeviceEngine::pause(const char* what) noexcept {
  if (device_->is_lost()) return fail(what);
  on_.store(false, std::memory_order_relaxed);
  const Clock::time_point next = Clock::now() + retry_pause_;
  retry_at_.store(next.time_since_epoch().count(), std::memory_order_relaxed);
  retry_pause_ = std::min(2 * retry_pause_, kLongestRetry);
  set_error(what, "; captures are tried again, with pauses of up to 60 s");
  return false;
}

bool DeviceEngine::is_retry_due() const noexcept {
  const std::int64_t at = retry_at_.load(std::memory_order_relaxed);
  return at != 0 && Clock::now().time_since_epoch().count() >= at;
}

/// Ends a pause if it is time. False if the engine stays paused.
bool DeviceEngine::resume() noexcept {
  if (!is_retry_due()) return false;
  if (device_->is_lost() || !fence()) return pause("the device rejected work");
  retry_at_.store(0, std::memory_order_relaxed);
  error_.clear();
  on_.store(true, std::memory_order_relaxed);
  return true;
}

/// Enqueues the events after work that was rejected in part. False if the device rejects them.
bool DeviceEngine::fence() noexcept {
  if (!unfenced_.any()) return true;
  const std::size_t tables = unfenced_.tables;
  const Allocation& table =
      table_allocations_.next(tables > 0 ? tables - 1 : 0);  // the last one has the event
  const Allocation& payload = payload_allocations_.next();
  if (tables > 0 && !device_->record_event(table.event, table.stream)) return false;
  if (unfenced_.payload && tables > 0 && !device_->wait_event(copies_, table.event)) return false;
  if (unfenced_.payload && !device_->record_event(payload.event, copies_)) return false;
  table_allocations_.push(tables);
  if (unfenced_.payload) payload_allocations_.push();
  unfenced_ = {};
  return true;
}

/// Drops records without an event after their work. The lane is not used any more.
void DeviceEngine::drop_rejected() noexcept {
  if (!unfenced_.any()) return;
  lost_track_ = true;
  for (std::size_t i = 0; i < unfenced_.tables; ++i) (void)lose(table_allocations_.next(i).record);
  if (unfenced_.payload) (void)lose(payload_allocations_.next().record);
  unfenced_ = {};
}

}  // namespace tdcore
