// device_engine.hpp: the memory, the work in flight, the commits and the shutdown of one device.
//
// There are three memories: the arena for payloads, freed when they have arrived in the ring; the scratch for
// launch tables and partial statistics, freed when the kernels have run; and the pinned memory from which the
// tables are uploaded, freed with the scratch. A record in flight belongs to the allocation whose event
// follows its commit.
//
// Errors: an error after which the device is lost turns it off permanently. Records that will never be
// committed are dropped (the consumer skips them) and counted as kDeviceError. No further records are written
// to the lane, so late writes of the device are harmless.
//
// If the device rejects work and is not lost, the engine pauses, and tries again with exponential backoff. A
// part of the work of a rejected batch may be enqueued, and may still write into the record. Therefore the
// record is dropped only after an event that follows this work. While the device also rejects the event, the
// engine stays paused.
//
// Threads: functions marked "locked" are called with the mutex held, all others from any thread. kPoll has
// its own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "capture/capture_plan.hpp"
#include "device/device_allocations.hpp"
#include "device/device_capture.hpp"
#include "device/device_graphs.hpp"
#include "device/device_small.hpp"
#include "device/device_table.hpp"
#include "ring/ring_memory.hpp"

namespace tdcore {

/// A batch that is written, except for its values.
struct DeviceBatch {
  Reservation room;
  BatchSize size;
  TableSize table;
  std::span<const PlannedTensor> items;
  std::uint64_t guard;
  StreamHandle stream;
};

/// A record for results of graphs, written except for the statistics. Pointers are addresses of the host.
struct GraphRecord {
  Reservation room;
  Entry* entries = nullptr;
  device::CollectedBatch* batches = nullptr;  // behind the entries
  device::CollectedEntry* sources = nullptr;
  std::uint32_t count = 0;  // number of entries, each of a different tensor
  std::uint32_t batch_count = 0;
};

class DeviceEngine {
 public:
  /// Never throws; report().error has the error, if any.
  DeviceEngine(std::unique_ptr<Device> device, std::shared_ptr<Ring> lane, Ring& main,
               const DeviceCaptureConfig& config) noexcept;
  ~DeviceEngine() { close(); }
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  /// False in a forked child.
  bool here() const noexcept { return fork_guard_ != nullptr && fork_guard_->here(); }
  /// Whether the device is used: not lost, not closed, not paused, or paused and due for the next attempt.
  bool on() const noexcept { return on_.load(std::memory_order_relaxed) || is_retry_due(); }
  /// Whether the next batch may wait in the driver, because a recent batch did.
  bool may_wait() const noexcept { return quick_to_go_.load(std::memory_order_relaxed) > 0; }
  const BatchLimits& limits() const noexcept { return limits_; }
  /// Locked, because close() destroys the device.
  bool is_capturing(StreamHandle stream) noexcept { return device_->is_capturing(stream); }
  Ring& lane() noexcept { return *lane_; }

  std::mutex& mutex() noexcept { return mutex_; }
  enum class Fit { kFits, kArenaFull, kTablesFull, kOff };
  /// Locked. payload_bytes: of the batch, padded.
  TableSize measure(std::span<const PlannedTensor> items, std::uint64_t payload_bytes) noexcept;
  /// Locked. Processes work that has ended, and returns whether a batch can be enqueued.
  Fit find_room(const TableSize& table, std::uint64_t payload_bytes, StreamHandle stream) noexcept;
  /// Locked, after kFits. False if the device rejected the work; the record is not committed.
  bool launch(const DeviceBatch& batch) noexcept;
  std::uint64_t next_guard() noexcept;  // locked; never 0

  // ---- graphs (device_engine_graphs.cpp)
  /// The batches of graphs; locked.
  DeviceGraphs& graphs() noexcept { return graphs_; }
  Device& device() noexcept { return *device_; }  // locked, while on()
  /// Whether there are graphs with batches.
  bool has_graphs() const noexcept { return has_graphs_.load(std::memory_order_relaxed); }
  /// Locked. Frees memory of graphs that have ended.
  void sweep_graphs() noexcept;
  bool arm_graphs(StreamHandle stream) noexcept;
  /// False without an epoch, and if the stream is being captured: then the epoch ends, and the tensors of all
  /// graphs are counted. Otherwise end_collection() must follow.
  bool begin_collection(std::vector<std::shared_ptr<const GraphBatch>>& batches,
                        StreamHandle stream) noexcept;
  /// Ends the collection and the epoch.
  void end_collection(StreamHandle stream) noexcept;
  /// Locked. Like find_room(), for a launch of collect().
  Fit find_collection_room(std::size_t records) noexcept;
  /// Locked, after kFits: one launch for at most device::kCollectedRecords records. False if the device
  /// rejected it; the records are not committed.
  bool collect(std::span<const GraphRecord> records, StreamHandle stream) noexcept;

  bool mark_step_end(std::int64_t step, std::span<DeviceEngine* const> others) noexcept;
  bool busy() noexcept;
  std::uint64_t launched() noexcept;
  /// Whether the tensors of the first `batches` batches have been read.
  bool has_read(std::uint64_t batches) noexcept;
  DeviceReport report() noexcept;
  void close() noexcept;

 private:
  struct Events;  // events after all work in flight

  bool set_up(const DeviceCaptureConfig& config);
  bool pin_lane() noexcept;
  std::uint64_t make_arena(const DeviceCaptureConfig& config) noexcept;
  bool fail(const char* what) noexcept;
  void set_error(const char* what, const char* then) noexcept;
  bool pause(const char* what) noexcept;
  bool is_retry_due() const noexcept;
  bool resume() noexcept;
  bool fence() noexcept;
  void drop_rejected() noexcept;
  void fall_back() noexcept;
  bool start_poller() noexcept;
  void poll() noexcept;
  void settle() noexcept;
  void reclaim() noexcept;
  bool look(Allocation& allocation) noexcept;
  void end_record(InFlightRecord& record) noexcept;
  bool lose(InFlightRecord& record) noexcept;
  void pop_done() noexcept;
  bool pending_events(Events& events) noexcept;
  bool fill_gaps(const DeviceBatch& batch, std::byte* payload) noexcept;
  enum class Sent { kAll, kPart, kNothing };
  Sent send(const DeviceBatch& batch, Allocation& table, Allocation& payload,
            const DeviceCommit& commit) noexcept;
  Sent send_inline(const DeviceBatch& batch, Allocation& table, Allocation& payload,
                   const DeviceCommit& commit) noexcept;
  bool send_values(const DeviceBatch& batch, Allocation& table, Allocation& payload,
                   const DeviceCommit& commit) noexcept;
  void note_duration(std::chrono::steady_clock::duration duration) noexcept;
  bool commit_marker(const Reservation& room, const Events& events) noexcept;
  std::uint64_t read_batches() const noexcept;
  void count_collected(const InFlightRecord& record) noexcept;
  void start_record(InFlightRecord& record, const Reservation& room, const DeviceCommit& commit) noexcept;
  void keep_record(Allocation& allocation, const DeviceBatch& batch, const DeviceCommit& commit) noexcept;
  bool commits_by_host() const noexcept { return commit_mode_ == CommitMode::kPoll; }

  std::unique_ptr<const ForkGuard> fork_guard_;
  std::unique_ptr<Device> device_;  // null after close(), and without a device
  const std::shared_ptr<Ring> lane_;
  Ring& main_;
  std::shared_ptr<RingMemory> lane_memory_;  // keeps the pinned pages as long as the device
  BatchLimits limits_{};
  std::atomic<bool> on_{false};  // relaxed: a hint outside of the mutex
  // steady_clock's time of the next attempt while the engine is paused; 0: not paused. Relaxed: a hint
  // outside of the mutex.
  std::atomic<std::int64_t> retry_at_{0};
  // Number of quick batches until may_wait() is false; written under the mutex. Relaxed: a hint.
  std::atomic<std::uint32_t> quick_to_go_{0};

  std::atomic<bool> has_graphs_{false};  // relaxed: a hint outside of the mutex

  std::mutex mutex_;  // guards all following members
  DeviceGraphs graphs_;
  DeviceInfo info_;
  std::string error_;
  bool closed_ = false;
  bool lost_track_ = false;  // work was enqueued without an event after it
  // Work that the device has rejected in part, together with the events after it. The allocations of the work
  // are the next ones of the lists.
  struct Unfenced {
    std::size_t tables = 0;
    bool payload = false;
    bool any() const noexcept { return tables > 0 || payload; }
  } unfenced_;
  const std::chrono::milliseconds first_retry_;
  std::chrono::milliseconds retry_pause_;
  CommitMode commit_mode_ = CommitMode::kPoll;
  std::uint64_t early_seen_ = 0;
  std::uint64_t guards_ = 0;
  std::uint64_t launched_ = 0;  // number of batches
  std::uint64_t arena_waits_ = 0;
  std::uint64_t in_flight_ = 0;  // number of records
  std::uint64_t polled_ = 0;     // number of records in flight that the host must commit
  StreamHandle copies_ = 0;
  std::byte* arena_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::byte* tables_ = nullptr;  // pinned
  FifoSpace arena_space_{1};
  FifoSpace scratch_space_{1};
  FifoSpace table_space_{1};
  AllocationList payload_allocations_;  // events on copies_
  AllocationList table_allocations_;    // events on the training's streams
  InlineLimits inline_limits_;
  CounterPool counters_;  // a slot for each place of table_allocations_
  bool stop_polling_ = false;
  std::condition_variable poll_wanted_;
  std::unique_ptr<std::thread> poller_;  // only close() joins it
};

}  // namespace tdcore
