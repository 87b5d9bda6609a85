// device_capture.hpp: writes a list of tensors on one device, as batch records, into the ring of the device.
//
// The host plans a record, writes everything except the values, and enqueues the work for the values:
// statistics are computed by a kernel on the training's stream, directly into the record. Payloads are packed
// into an arena on the training's stream, copied into the record on a separate stream of the device, and
// committed in the order of that stream. Small captures are one launch that writes the whole record
// (device_small.hpp).
//
// The host never waits for the device, allocates nothing after warm-up, and keeps none of the training's
// memory: the reads are enqueued on the training's stream, so they run before its later work.
//
// capture.hpp has the reasons with which a tensor that is not kept is counted. Further reasons:
//   the stream is being captured into a CUDA graph -> the tensors become a batch of the graph
//     (device_graphs.hpp), and collect_graphs() captures their statistics. Without room for the batch, or
//     without statistics of the dtype: kGraphCapture, no row. Requested values: kGraphCapture, and a row with
//     statistics and the reason at each collection
//   the arena is full, policy drop -> kArenaFull, and a row with the reason; degrade -> kDegraded with
//     statistics; block -> the training's stream (not the host) waits until there is room, or chunks follow
//     each other
//   more work in progress than tables or events -> kArenaFull under every policy, because the host would
//     have to wait
//   the device has failed -> kDeviceError; later tensors have a row with the reason in the main ring. If the
//     error may pass (a lack of memory), captures are tried again, with exponential backoff
//
// A tensor with more tiles than the scratch has partial results is split into parts, also without payload.
// Threads: any number may call capture(); a mutex is held while a thread enqueues. This takes microseconds,
// or longer while the queue of the driver is full (may_wait).
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "capture/capture.hpp"
#include "device/device.hpp"

namespace tdcore {

class DeviceEngine;

/// An arena that is larger than configured takes at most 1 / kArenaShareOfFree of the device's free memory.
inline constexpr std::uint64_t kArenaShareOfFree = 50;

struct DeviceCaptureConfig {
  std::uint64_t arena_bytes = std::uint64_t{64} << 20;  // device memory for payloads in flight
  std::uint64_t wanted_arena_bytes = 0;                 // larger arena, within kArenaShareOfFree
  std::uint64_t scratch_bytes = std::uint64_t{16}
                                << 20;                  // device memory for launch tables and partial results
  std::uint64_t table_bytes = std::uint64_t{8} << 20;   // pinned memory for the upload of launch tables
  std::uint64_t graph_bytes = std::uint64_t{64} << 20;  // limit of device memory for batches of CUDA graphs
  std::uint32_t max_items = 8192;                       // maximum number of items of one launch
  std::uint32_t in_flight = 1024;                       // maximum number of launches in progress
  std::chrono::milliseconds first_retry{100};           // pause after the device has rejected work
  std::uint64_t direct_bytes = 64 * 1024;  // maximum of a payload that a kernel writes into the record
  bool inline_tables = true;               // false: all tables are uploaded
};

/// State of a device, for `tdcore doctor` and for the end of a run.
struct DeviceReport {
  DeviceInfo info;
  CommitMode commit_mode = CommitMode::kPoll;  // the mode in use
  std::uint64_t arena_bytes = 0;
  std::uint64_t ring_bytes = 0;     // data of the lane, in pinned host memory
  std::uint64_t arena_waits = 0;    // records for which the training's stream waited for earlier copies
  std::uint64_t early_commits = 0;  // found by the consumer; after each the engine has fallen back
  std::uint64_t in_flight = 0;      // records enqueued and not committed yet
  std::string error;                // reason why the device is not used; may be empty
};

class DeviceCapture {
 public:
  /// Allocates the memory and pins `lane`, the ring for the records. `main` numbers the order of execution
  /// and counts tensors that are not kept. Both rings must outlive this object. Never throws: with a device
  /// that cannot be used, all tensors are counted as kDeviceError, and report() has the reason.
  DeviceCapture(std::unique_ptr<Device> device, std::shared_ptr<Ring> lane, Ring& main,
                const DeviceCaptureConfig& config) noexcept;
  /// Waits at most 5 s for work in flight. Memory that the device may still write stays mapped.
  ~DeviceCapture();
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceCapture& operator=(const DeviceCapture&) = delete;

  /// Like capture() of capture.hpp, for requests whose `tensor.data` is on the device. stream: the stream of
  /// the training.
  CaptureResult capture(std::span<const TensorRequest> requests, const StepContext& step_context,
                        StreamHandle stream, RoomWaiter waiter = {wait_plainly, nullptr});

  /// Whether there are graphs whose tensors may be collected.
  bool has_graphs() const noexcept;
  /// Makes replays of graphs compute the statistics of their tensors: replays that follow on the stream, or
  /// on streams that wait for it. False without graphs. False also if the stream is itself being
  /// captured; then the tensors of all graphs are counted as kGraphCapture.
  bool arm_graphs(StreamHandle stream) noexcept;
  /// Captures the statistics that replays have computed since arm_graphs(), and ends the computation. The
  /// replays must be earlier on the stream, or the stream must wait for them. Of several replays of a graph,
  /// the last one counts. Of several graphs with the same names in one capture call, the one that was
  /// recorded last counts. A tensor that was captured outside of a graph since arm_graphs() is left out.
  /// Tensors of graphs that were not replayed have no row. If the stream is being captured, nothing is
  /// collected, and the tensors of all graphs are counted as kGraphCapture. Kept tensors are counted later,
  /// when the work has ended.
  CaptureResult collect_graphs(const StepContext& step_context, StreamHandle stream,
                               RoomWaiter waiter = {wait_plainly, nullptr});

  /// Like Ring::mark_step_end(), after all earlier records of this device and of `others`.
  [[nodiscard]] bool mark_step_end(std::int64_t step, std::span<DeviceCapture* const> others) noexcept;

  /// Number of records that were enqueued so far; and whether the tensors of the first `records` of them have
  /// been read, committed or not.
  std::uint64_t enqueued() const noexcept;
  bool has_read(std::uint64_t records) const noexcept;

  /// Whether the device captures: it has neither failed nor been closed.
  bool in_use() const noexcept;
  /// Whether the next capture may wait in the driver, because the queue of the device was full recently.
  bool may_wait() const noexcept;
  /// Whether there are enqueued records that are not committed yet.
  bool busy() const noexcept;
  DeviceReport report() const;
  void close() noexcept;

 private:
  Ring& main_;
  std::unique_ptr<DeviceEngine> engine_;  // null if there was no memory for it
};

}  // namespace tdcore
