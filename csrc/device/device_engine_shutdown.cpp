// DeviceEngine, second part: the end of records in flight, markers, commit modes, close. device_engine.cpp
// has the first part.
#include <array>
#include <chrono>
#include <cstring>

#include "base/leak.hpp"
#include "base/signal_free_thread.hpp"
#include "device/device_engine.hpp"

namespace tdcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollPause{1};
constexpr std::chrono::microseconds kClosePause{200};
constexpr std::chrono::seconds kEngineCloseTimeout{5};

/// Whether the device has committed. Acquire, like the consumer.
bool is_committed(const DeviceCommit& commit) noexcept {
  return std::atomic_ref<std::uint64_t>(*commit.word).load(std::memory_order_acquire) == commit.value;
}

/// Release: pairs with the acquire of the consumer.
void commit_now(const DeviceCommit& commit) noexcept {
  std::atomic_ref<std::uint64_t>(*commit.word).store(commit.value, std::memory_order_release);
}

}  // namespace

/// Events after all work in flight: the latest event of each stream. Two streams with one handle (CUDA's
/// per-thread stream in two threads) count as one stream. With several devices, a step's marker may then be
/// early.
struct DeviceEngine::Events {
  static constexpr std::size_t kMost = 64;
  std::array<EventHandle, kMost> events{};
  std::array<StreamHandle, kMost> streams{};
  std::size_t count = 0;

  /// Adds the event of an allocation; the newest must be added first. False if there are too many streams.
  bool add(const Allocation& allocation, std::size_t from) noexcept {
    for (std::size_t i = from; i < count; ++i) {
      if (streams[i] == allocation.stream) return true;
    }
    if (count == kMost) return false;
    events[count] = allocation.awaited;
    streams[count++] = allocation.stream;
    return true;
  }
};

// ---- commit modes and the end of records in flight

/// Uses the next commit mode, because a commit word was visible before its data.
void DeviceEngine::fall_back() noexcept {
  const std::uint64_t seen = main_.early_commits();
  if (seen <= early_seen_) return;
  early_seen_ = seen;
  if (commit_mode_ == CommitMode::kPoll) return;
  commit_mode_ = static_cast<CommitMode>(static_cast<std::uint8_t>(commit_mode_) + 1);
  if (commits_by_host() && !start_poller()) fail("no thread that polls events");
}

bool DeviceEngine::start_poller() noexcept {
  if (poller_ == nullptr) poller_ = start_signal_free_thread([this] { poll(); });
  return poller_ != nullptr;
}

void DeviceEngine::poll() noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_polling_) {
    settle();
    if (polled_ > 0) {
      lock.unlock();
      std::this_thread::sleep_for(kPollPause);
      lock.lock();
    } else {
      poll_wanted_.wait(lock, [this] { return stop_polling_ || polled_ > 0; });
    }
  }
}

void DeviceEngine::end_record(InFlightRecord& record) noexcept {
  if (record.commit.word == nullptr) return;
  if (record.by_host) {
    commit_now(record.commit);
    --polled_;
  }
  if (record.outcome != nullptr) count_collected(record);
  record.commit.word = nullptr;
  --in_flight_;
}

/// Marks a record that will never be committed, so that the consumer skips it. False if it was committed.
bool DeviceEngine::lose(InFlightRecord& record) noexcept {
  if (record.commit.word == nullptr) return false;
  const bool lost = record.by_host || !is_committed(record.commit);
  if (lost) {
    Slot& slot = lane_memory_->slots()[record.room.ticket & (lane_memory_->slot_count() - 1)];
    slot.kind = static_cast<std::uint32_t>(RecordKind::kAborted);
    commit_now(record.commit);
    main_.count_drop(DropReason::kDeviceError, record.tensors, record.bytes);
  } else if (record.outcome != nullptr) {
    count_collected(record);
  }
  if (record.by_host) --polled_;
  record.commit.word = nullptr;
  --in_flight_;
  return lost;
}

/// Whether the work of the allocation has ended. settle() makes the commits of the host.
bool DeviceEngine::look(Allocation& allocation) noexcept {
  if (allocation.done) return true;
  const EventState state = device_->query_event(allocation.awaited);
  if (state == EventState::kPending) return false;
  if (state == EventState::kFailed) fail("work on the device was lost");
  if (state == EventState::kFailed || allocation.record.incomplete) (void)lose(allocation.record);
  allocation.done = true;
  if (!allocation.record.by_host) end_record(allocation.record);
  return true;
}

void DeviceEngine::pop_done() noexcept {
  while (table_allocations_.size() > 0 && table_allocations_[0].done) {
    scratch_space_.free_to(table_allocations_[0].memory.end);
    table_space_.free_to(table_allocations_[0].pinned.end);
    table_allocations_.pop();
  }
  while (payload_allocations_.size() > 0 && payload_allocations_[0].done) {
    arena_space_.free_to(payload_allocations_[0].memory.end);
    payload_allocations_.pop();
  }
}

/// Processes all work that has ended. A marker's event is after all earlier work: copies, which end in their
/// order, and launches. So if the launches are checked after the copies, the work before a marker is found to
/// be done, and the oldest record may be committed first.
void DeviceEngine::settle() noexcept {
  if (device_ == nullptr) return;
  for (std::size_t i = 0; i < payload_allocations_.size() && look(payload_allocations_[i]); ++i) {
  }
  const Allocation* waiting = nullptr;  // later events of its stream are queried when this one has happened
  for (std::size_t i = 0; i < table_allocations_.size(); ++i) {
    Allocation& allocation = table_allocations_[i];
    const bool behind = waiting != nullptr && waiting->stream == allocation.stream;
    if (!behind && !look(allocation)) waiting = &allocation;
  }
  for (AllocationList* const list : {&table_allocations_, &payload_allocations_}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i].done) end_record((*list)[i].record);
    }
  }
  pop_done();
}

/// A cheaper settle(): queries only the oldest events, until one has not happened. Later work may have ended
/// too, but until that event there is work in flight: the record of a table ends with the table's event or,
/// with a payload, after it.
void DeviceEngine::reclaim() noexcept {
  if (device_ == nullptr) return;
  if (polled_ > 0) return settle();
  for (std::size_t i = 0; i < table_allocations_.size() && look(table_allocations_[i]); ++i) {
  }
  for (std::size_t i = 0; i < payload_allocations_.size() && look(payload_allocations_[i]); ++i) {
  }
  pop_done();
}

// ---- markers and the end

/// Collects the events of all work in flight. False if there are too many streams, or if the host must commit
/// a record first.
bool DeviceEngine::pending_events(Events& events) noexcept {
  const std::scoped_lock lock(mutex_);
  reclaim();
  if (polled_ > 0) return false;
  if (payload_allocations_.size() > 0 &&
      !events.add(payload_allocations_[payload_allocations_.size() - 1], events.count))
    return false;
  const std::size_t from = events.count;
  for (std::size_t i = table_allocations_.size(); i > 0; --i) {
    if (!table_allocations_[i - 1].done && !events.add(table_allocations_[i - 1], from)) return false;
  }
  return true;
}

bool DeviceEngine::mark_step_end(std::int64_t step, std::span<DeviceEngine* const> others) noexcept {
  if (!here()) return false;
  Events events;
  for (DeviceEngine* const other : others) {
    if (other != this && !other->pending_events(events)) return false;
  }
  const std::scoped_lock lock(mutex_);
  if (closed_ || lane_ == nullptr) return false;
  reclaim();
  if (!on_.load(std::memory_order_relaxed)) return false;  // rejected work may still write into the lane
  const std::size_t from = events.count;
  for (std::size_t i = table_allocations_.size(); i > 0; --i) {
    if (!table_allocations_[i - 1].done && !events.add(table_allocations_[i - 1], from)) return false;
  }
  const bool nothing_before = in_flight_ == 0 && events.count == 0;
  if (!nothing_before && payload_allocations_.full()) return false;
  const Reservation room = lane_->try_reserve(RecordKind::kBatch, sizeof(BatchHeader), kTensorAlignBytes);
  if (!room) return false;
  const BatchHeader header = marker_header(step, realtime_ns());
  std::memcpy(room.data, &header, sizeof header);
  if (!nothing_before) return commit_marker(room, events);
  lane_->commit(room);
  return true;
}

/// Commits a marker after all copies and the events.
bool DeviceEngine::commit_marker(const Reservation& room, const Events& events) noexcept {
  Allocation& allocation = payload_allocations_.next();
  allocation.start(copies_);
  allocation.memory = arena_space_.place(0);
  const DeviceCommit commit = lane_->hand_over(room);
  if (commit.word == nullptr) return fail("the ring was closed");
  keep_record(allocation, {.room = room, .size = {}, .table = {}, .items = {}, .guard = 0, .stream = copies_},
              commit);
  bool sent = true;
  for (std::size_t i = 0; i < events.count && sent; ++i)
    sent = device_->wait_event(copies_, events.events[i]);
  sent = sent &&
         (commits_by_host() || device_->write_word(copies_, commit.word, commit.value, commit_mode_)) &&
         device_->record_event(allocation.event, copies_);
  if (!sent) {
    allocation.record.incomplete = true;
    unfenced_ = {.tables = 0, .payload = true};
    (void)pause("the device rejected work");
    (void)fence();
    return false;
  }
  payload_allocations_.push();
  return true;
}

bool DeviceEngine::busy() noexcept {
  if (!here()) return false;
  const std::scoped_lock lock(mutex_);
  reclaim();
  return in_flight_ > 0;
}

std::uint64_t DeviceEngine::launched() noexcept {
  const std::scoped_lock lock(mutex_);
  return launched_;
}

/// The event of a batch's table is after the kernels that read its tensors on the training's stream.
bool DeviceEngine::has_read(std::uint64_t batches) noexcept {
  if (!here()) return false;
  const std::scoped_lock lock(mutex_);
  reclaim();
  return !lost_track_ && read_batches() >= batches;
}

/// Number of batches whose kernels have ended. Locked.
std::uint64_t DeviceEngine::read_batches() const noexcept {
  return launched_ - table_allocations_.size() - unfenced_.tables;
}

DeviceReport DeviceEngine::report() noexcept {
  DeviceReport report;
  if (!here()) return report;
  const std::scoped_lock lock(mutex_);
  settle();
  try {
    report.info = info_;
    report.error = error_;
  } catch (const std::exception&) {  // no memory for the text
  }
  report.commit_mode = commit_mode_;
  report.arena_bytes = arena_ == nullptr ? 0 : arena_space_.size();
  report.ring_bytes = arena_ == nullptr ? 0 : lane_->limit_bytes();
  report.arena_waits = arena_waits_;
  report.early_commits = main_.early_commits();
  report.in_flight = in_flight_;
  return report;
}

void DeviceEngine::close() noexcept {
  if (!here()) return;
  const Clock::time_point deadline = Clock::now() + kEngineCloseTimeout;
  std::unique_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  on_.store(false, std::memory_order_relaxed);
  retry_at_.store(0, std::memory_order_relaxed);
  if (!fence()) drop_rejected();
  for (;;) {
    settle();
    if (table_allocations_.size() + payload_allocations_.size() == 0 || Clock::now() >= deadline) break;
    lock.unlock();
    std::this_thread::sleep_for(kClosePause);
    lock.lock();
  }
  const bool replayed = device_ != nullptr && graphs_.close(*device_);
  stop_polling_ = true;
  poll_wanted_.notify_one();
  lock.unlock();
  if (poller_ != nullptr) poller_->join();
  lock.lock();
  poller_.reset();
  if (table_allocations_.size() + payload_allocations_.size() > 0 || lost_track_ || replayed) {
    // The device may still read and write, so its memory and the memory of the ring are not freed. Graphs
    // that may be replayed contain kernels of the device.
    leak_on_purpose(std::move(device_));
    leak_on_purpose(std::move(lane_memory_));
  }
  device_.reset();
  lane_memory_.reset();
}

}  // namespace tdcore
