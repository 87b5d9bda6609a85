// device_capture.hpp: a list of tensors on one device becomes batch records in a ring of that device's own.
//
// The host plans and writes everything of a record but the values, and enqueues the rest: statistics by a
// kernel on the training's stream, straight into the record; payloads packed into an arena on the training's
// stream, copied into the record on a stream of the device's own, then committed in the order of that
// stream. The host never waits for the device, allocates nothing after warm-up, and keeps nothing of the
// training's memory: whatever is enqueued on the training's stream reads before anything that comes after.
// What a tensor is counted as when it is not kept is as in capture.hpp; besides:
//   the stream is being captured into a graph -> kGraphCapture, no row
//   the arena is full, policy drop -> kArenaFull, a row that says so; degrade -> kDegraded with statistics;
//     block -> the training's stream (not the host) waits until there is room, or chunks follow each other
//   more in progress than there are tables or events -> kArenaFull under every policy, because the host would
//     have to wait
//   the device has failed -> kDeviceError, and a row in the main ring that says so for what comes later
// A tensor of more tiles than the scratch has partial results for goes in parts, too, also without payload.
// Threads: any number may call capture(); a mutex is held while one enqueues (microseconds, no waiting).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "capture/capture.hpp"
#include "device/device.hpp"

namespace tdcore {

class DeviceEngine;

struct DeviceCaptureConfig {
  std::uint64_t arena_bytes = std::uint64_t{64} << 20;  // of device memory, for payloads on their way
  std::uint64_t scratch_bytes = std::uint64_t{16}
                                << 20;  // of device memory, for launch tables and partial results
  std::uint64_t table_bytes = std::uint64_t{8} << 20;  // of pinned memory, for launch tables to upload
  std::uint32_t max_items = 8192;                      // of one launch
  std::uint32_t in_flight = 1024;                      // maximum number of launches in progress
};

/// State of a device, for doctor and the end of a run.
struct DeviceReport {
  DeviceInfo info;
  CommitMode commit_mode = CommitMode::kPoll;  // in use
  std::uint64_t arena_bytes = 0;
  std::uint64_t early_commits = 0;  // seen by the consumer; each made the engine fall back
  std::uint64_t in_flight = 0;      // records enqueued and not committed yet
  std::string error;                // why the device is not used; empty
};

class DeviceCapture {
 public:
  /// Takes the memory and pins `lane`, whose records it makes; `main` numbers the order of execution and
  /// counts what is not kept. Both outlive it. Never throws: a device that cannot be used counts everything
  /// as kDeviceError and says why in report().
  DeviceCapture(std::unique_ptr<Device> device, std::shared_ptr<Ring> lane, Ring& main,
                const DeviceCaptureConfig& config) noexcept;
  /// Waits for what is in flight, at most 5 s; memory that the device may still write stays mapped.
  ~DeviceCapture();
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceCapture& operator=(const DeviceCapture&) = delete;

  /// Like capture() of capture.hpp, for requests whose `tensor.data` is on the device. stream: the stream of
  /// the training.
  CaptureResult capture(std::span<const TensorRequest> requests, const StepContext& step_context,
                        StreamHandle stream, RoomWaiter waiter = {wait_plainly, nullptr});

  /// As Ring::mark_step_end(), behind all that was captured here before. After `others`' records too.
  [[nodiscard]] bool mark_step_end(std::int64_t step, std::span<DeviceCapture* const> others) noexcept;

  /// How many records were enqueued so far, and whether the first `records` of them are through: their
  /// tensors have been read, whatever became of the records.
  std::uint64_t enqueued() const noexcept;
  bool has_read(std::uint64_t records) const noexcept;

  /// Whether the device still captures: it has not failed, and was not closed.
  bool in_use() const noexcept;
  /// Whether records are enqueued that were not committed yet.
  bool busy() const noexcept;
  DeviceReport report() const;
  void close() noexcept;

 private:
  Ring& main_;
  std::unique_ptr<DeviceEngine> engine_;  // null when there was no memory for it
};

}  // namespace tdcore
