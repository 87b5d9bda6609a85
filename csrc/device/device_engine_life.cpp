// The life of what is in flight: how it ends, markers, rungs, close. device_engine.cpp has its beginning.
#include <array>
#include <chrono>
#include <cstring>

#include "base/kept_for_ever.hpp"
#include "base/quiet_thread.hpp"
#include "device/device_engine.hpp"

namespace tdcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollPause{1};
constexpr std::chrono::microseconds kClosePause{200};
constexpr std::chrono::seconds kCloseTimeout{5};

/// Whether the device has committed. Acquire, as the consumer.
bool is_committed(const DeviceCommit& commit) noexcept {
  return std::atomic_ref<std::uint64_t>(*commit.word).load(std::memory_order_acquire) == commit.value;
}

/// Release: pairs with the acquire of the consumer.
void commit_now(const DeviceCommit& commit) noexcept {
  std::atomic_ref<std::uint64_t>(*commit.word).store(commit.value, std::memory_order_release);
}

}  // namespace

/// Events behind all that is in flight: of each stream its latest. Two streams under one handle (CUDA's
/// per-thread stream in two threads) count as one: with several devices a step's mark may then come early.
struct DeviceEngine::Events {
  static constexpr std::size_t kMost = 64;
  std::array<EventHandle, kMost> events{};
  std::array<StreamHandle, kMost> streams{};
  std::size_t count = 0;

  /// Newest first. False when there is no room for one more stream.
  bool add(const Piece& piece, std::size_t from) noexcept {
    for (std::size_t i = from; i < count; ++i) {
      if (streams[i] == piece.stream) return true;
    }
    if (count == kMost) return false;
    events[count] = piece.event;
    streams[count++] = piece.stream;
    return true;
  }
};

// ---- rungs and the end of flights

/// A word came before its data: it is not trusted that way again.
void DeviceEngine::step_down() noexcept {
  const std::uint64_t seen = main_.early_commits();
  if (seen <= early_seen_) return;
  early_seen_ = seen;
  if (rung_ == CommitRung::kPoll) return;
  rung_ = static_cast<CommitRung>(static_cast<std::uint8_t>(rung_) + 1);
  if (commits_by_host() && !start_poller()) fail("no thread that asks events");
}

bool DeviceEngine::start_poller() noexcept {
  if (poller_ == nullptr) poller_ = start_quiet_thread([this] { poll(); });
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

void DeviceEngine::end_flight(Flight& flight) noexcept {
  if (flight.commit.word == nullptr) return;
  if (flight.by_host) {
    commit_now(flight.commit);
    --polled_;
  }
  flight.commit.word = nullptr;
  --in_flight_;
}

/// Of a record that nobody will commit: the consumer skips it. False when it was committed all the same.
bool DeviceEngine::lose(Flight& flight) noexcept {
  if (flight.commit.word == nullptr) return false;
  const bool lost = flight.by_host || !is_committed(flight.commit);
  if (lost) {
    Slot& slot = lane_memory_->slots()[flight.room.ticket & (lane_memory_->slot_count() - 1)];
    slot.kind = static_cast<std::uint32_t>(RecordKind::kAborted);
    commit_now(flight.commit);
    main_.count_drop(DropReason::kDeviceError, flight.tensors, flight.bytes);
  }
  if (flight.by_host) --polled_;
  flight.commit.word = nullptr;
  --in_flight_;
  return lost;
}

/// Whether the piece is done with. What the host commits is left to settle().
bool DeviceEngine::look(Piece& piece) noexcept {
  if (piece.done) return true;
  const EventState state = device_->query_event(piece.event);
  if (state == EventState::kPending) return false;
  if (state == EventState::kFailed) {
    fail("work on the device was lost");
    (void)lose(piece.flight);
  }
  piece.done = true;
  if (!piece.flight.by_host) end_flight(piece.flight);
  return true;
}

void DeviceEngine::pop_done() noexcept {
  while (table_pieces_.size() > 0 && table_pieces_[0].done) {
    scratch_space_.free_to(table_pieces_[0].memory.end);
    table_space_.free_to(table_pieces_[0].pinned.end);
    table_pieces_.pop();
  }
  while (payload_pieces_.size() > 0 && payload_pieces_[0].done) {
    arena_space_.free_to(payload_pieces_[0].memory.end);
    payload_pieces_.pop();
  }
}

/// Takes note of all that has ended. A marker's event stands behind all that was before it: copies, which end
/// in their order, and launches. So whoever asks for launches after the copies finds done what the marker
/// waits for, and may then commit the oldest first.
void DeviceEngine::settle() noexcept {
  if (device_ == nullptr) return;
  for (std::size_t i = 0; i < payload_pieces_.size() && look(payload_pieces_[i]); ++i) {
  }
  const Piece* waiting = nullptr;  // what is behind it on its stream is asked when this one has ended
  for (std::size_t i = 0; i < table_pieces_.size(); ++i) {
    Piece& piece = table_pieces_[i];
    const bool behind = waiting != nullptr && waiting->stream == piece.stream;
    if (!behind && !look(piece)) waiting = &piece;
  }
  for (PieceList* const list : {&table_pieces_, &payload_pieces_}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i].done) end_flight((*list)[i].flight);
    }
  }
  pop_done();
}

/// As settle(), for less: asks the oldest events only, until one has not happened. What is behind that one
/// may have ended, too, but as long as there is one something is in flight: a table's record ends with it or,
/// with a payload, after it.
void DeviceEngine::reclaim() noexcept {
  if (device_ == nullptr) return;
  if (polled_ > 0) return settle();
  for (std::size_t i = 0; i < table_pieces_.size() && look(table_pieces_[i]); ++i) {
  }
  for (std::size_t i = 0; i < payload_pieces_.size() && look(payload_pieces_[i]); ++i) {
  }
  pop_done();
}

// ---- markers and the end

/// False when there are too many streams, or when the host has to commit something first.
bool DeviceEngine::pending_events(Events& events) noexcept {
  const std::scoped_lock lock(mutex_);
  reclaim();
  if (polled_ > 0) return false;
  if (payload_pieces_.size() > 0 && !events.add(payload_pieces_[payload_pieces_.size() - 1], events.count))
    return false;
  const std::size_t from = events.count;
  for (std::size_t i = table_pieces_.size(); i > 0; --i) {
    if (!table_pieces_[i - 1].done && !events.add(table_pieces_[i - 1], from)) return false;
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
  if (!on()) return false;  // what was lost may still write into the lane
  const std::size_t from = events.count;
  for (std::size_t i = table_pieces_.size(); i > 0; --i) {
    if (!table_pieces_[i - 1].done && !events.add(table_pieces_[i - 1], from)) return false;
  }
  const bool nothing_before = in_flight_ == 0 && events.count == 0;
  if (!nothing_before && payload_pieces_.full()) return false;
  const Reservation room = lane_->try_reserve(RecordKind::kBatch, sizeof(BatchHeader), kTensorAlignBytes);
  if (!room) return false;
  const BatchHeader header = marker_header(step, realtime_ns());
  std::memcpy(room.data, &header, sizeof header);
  if (!nothing_before) return commit_marker(room, events);
  lane_->commit(room);
  return true;
}

/// Behind all copies and the events.
bool DeviceEngine::commit_marker(const Reservation& room, const Events& events) noexcept {
  Piece& piece = payload_pieces_.next();
  piece.start(copies_);
  piece.memory = arena_space_.place(0);
  const DeviceCommit commit = lane_->hand_over(room);
  if (commit.word == nullptr) return fail("the ring was closed");
  keep_flight(piece, {.room = room, .size = {}, .table = {}, .items = {}, .guard = 0, .stream = copies_},
              commit);
  bool sent = true;
  for (std::size_t i = 0; i < events.count && sent; ++i)
    sent = device_->wait_event(copies_, events.events[i]);
  sent = sent && (commits_by_host() || device_->write_word(copies_, commit.word, commit.value, rung_)) &&
         device_->record_event(piece.event, copies_);
  if (!sent) {
    lost_track_ = true;
    (void)lose(piece.flight);
    return fail("the device refused");
  }
  payload_pieces_.push();
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

/// Its table is the last that a batch leaves on the training's stream, behind the kernels that read.
bool DeviceEngine::has_read(std::uint64_t batches) noexcept {
  if (!here()) return false;
  const std::scoped_lock lock(mutex_);
  reclaim();
  return !lost_track_ && launched_ - table_pieces_.size() >= batches;
}

DeviceReport DeviceEngine::report() noexcept {
  DeviceReport report;
  if (!here()) return report;
  const std::scoped_lock lock(mutex_);
  settle();
  try {
    report.info = info_;
    report.error = error_;
  } catch (const std::exception&) {  // no memory for words
  }
  report.rung = rung_;
  report.arena_bytes = arena_ == nullptr ? 0 : arena_space_.size();
  report.early_commits = main_.early_commits();
  report.in_flight = in_flight_;
  return report;
}

void DeviceEngine::close() noexcept {
  if (!here()) return;
  const Clock::time_point deadline = Clock::now() + kCloseTimeout;
  std::unique_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  on_.store(false, std::memory_order_relaxed);
  for (;;) {
    settle();
    if (table_pieces_.size() + payload_pieces_.size() == 0 || Clock::now() >= deadline) break;
    lock.unlock();
    std::this_thread::sleep_for(kClosePause);
    lock.lock();
  }
  stop_polling_ = true;
  poll_wanted_.notify_one();
  lock.unlock();
  if (poller_ != nullptr) poller_->join();
  lock.lock();
  poller_.reset();
  if (table_pieces_.size() + payload_pieces_.size() > 0 || lost_track_) {
    // The device may still read and write: its memory and the ring's stay for as long as the process.
    keep_for_ever(std::move(device_));
    keep_for_ever(std::move(lane_memory_));
  }
  device_.reset();
  lane_memory_.reset();
}

}  // namespace tdcore
