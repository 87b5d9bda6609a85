// device_set.hpp: the devices of one ring: the lane of each device, and the distribution of a capture's
// tensors to the devices.
//
// A device gets a lane at its first use. If there are more devices than lanes, the last devices get none
// (kUnsupportedDevice). A device that cannot be used keeps its lane, and refusals() has the reason
// (kDeviceError). Captures of host memory do not use this class.
//
// Threads: any thread may call any function. prepare() may take seconds (memory is allocated and pinned,
// kernels are compiled) and holds a mutex meanwhile, so it must not be called with the GIL. close() and the
// functions that report on devices also take the mutex; captures read atomics. Fork: in a child every
// function does nothing, and does not access the parent's objects.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture.hpp"
#include "device/device.hpp"
#include "device/device_capture.hpp"

namespace tdcore {

/// Function that opens a device; returns null, with the reason in `why`, if the device cannot be used.
using DeviceFactory = std::function<std::unique_ptr<Device>(int device, std::string& why)>;

/// Objects that a device may still read, and that are released later. Destroyed where code of other libraries
/// may run (Python code, with the GIL).
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  virtual ~Borrowed() = default;
};

/// The requests of one call on one device and stream, in their order.
struct DeviceGroup {
  int device = kHostMemory;
  StreamHandle stream = 0;
  std::vector<TensorRequest> requests;
};

/// The requests of one call, grouped by device. Reused for later calls: its vectors keep their capacity.
class Groups {
 public:
  std::vector<TensorRequest> host;  // in host memory, or without values

  void clear() noexcept;
  DeviceGroup& of(int device, StreamHandle stream);
  std::span<const DeviceGroup> on_devices() const noexcept { return {groups_.data(), used_}; }

 private:
  std::vector<DeviceGroup> groups_;
  std::size_t used_ = 0;
};

/// DeviceReport with the number of the device.
struct NumberedReport {
  int device = 0;
  DeviceReport report;
};

class DeviceSet {
 public:
  /// main: the ring with the lanes, which must outlive this object. open: opens devices for which
  /// set_factory() was not called.
  DeviceSet(Ring& main, DeviceFactory open);
  ~DeviceSet();
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  /// Sets the function that opens a device, in place of the function that the constructor got. False if the
  /// device is already in use.
  bool set_factory(int device, DeviceFactory factory);
  /// For tests: captures later tensors in host memory as if they were on the device.
  void redirect_host(int device) noexcept;
  bool redirects_host() const noexcept { return redirect_.load(std::memory_order_relaxed) >= 0; }
  /// The device that captures a tensor; kHostMemory if no device does.
  int device_of(const TensorView& view) const noexcept {
    return view.device != kHostMemory ? view.device : redirect_.load(std::memory_order_relaxed);
  }

  /// Sizes for a device that is not set up yet, if they were not configured: data of its lane, and arena.
  /// Each is only a wish (Ring::raise_limit(), DeviceCaptureConfig::wanted_arena_bytes). False if the device
  /// is set up already, or has no lane: then the call has no effect.
  bool wish(int device, std::uint64_t lane_bytes, std::uint64_t arena_bytes);
  /// Sets up the device, unless this was tried before, or its `stream` is being captured into a CUDA graph.
  /// Returns whether the device can be used.
  bool prepare(int device, StreamHandle stream = 0) noexcept;
  /// Whether prepare() would set the device up.
  bool is_new(int device) const noexcept;
  /// Why requested devices are not used: one line each; empty if all are used.
  std::string refusals() const;

  /// Sorts the requests of a call. Requests on a device without a lane are added to `host`, as skipped.
  void sort(std::span<const TensorRequest> requests, Groups& groups) const;
  /// Like DeviceCapture::capture(). The device must have been prepared.
  CaptureResult capture(const DeviceGroup& group, const StepContext& step_context, RoomWaiter waiter);

  /// Devices with graphs whose tensors may be collected. Cheap if there are none.
  std::vector<int> devices_with_graphs() const;
  /// DeviceCapture::arm_graphs() and DeviceCapture::collect_graphs() of a device.
  bool arm_graphs(int device, StreamHandle stream) noexcept;
  CaptureResult collect_graphs(int device, StreamHandle stream, const StepContext& step_context,
                               RoomWaiter waiter);

  /// Whether the next capture on the device, or on any device, may wait in its driver. Such a call must be
  /// made without the GIL.
  bool may_wait(int device) const noexcept;
  bool may_wait() const noexcept;

  /// Keeps `borrowed` until the device has read all tensors that were captured before this call.
  void borrow(int device, std::unique_ptr<Borrowed> borrowed);
  /// Takes the objects that the device has read; after close() all objects that are safe to release. Cheap if
  /// there are none.
  std::vector<std::unique_ptr<Borrowed>> take_read();

  /// Ring::mark_step_end(), after all records in flight of all devices.
  [[nodiscard]] bool mark_step_end(std::int64_t step) noexcept;

  std::vector<NumberedReport> reports() const;
  /// Waits for work in flight, at most a few seconds per device.
  void close() noexcept;

 private:
  enum class State : std::uint8_t {
    kUnmade,
    kPostponed,  // opened, but its first stream was being captured into a CUDA graph
    kReady,
    kRefused,
  };
  /// A lane and its device.
  struct LaneSlot {
    std::atomic<int> device{kHostMemory};  // relaxed, because `state` is checked too
    // Release in make(); pairs with the acquire in ready(), after which `capture` is constant.
    std::atomic<State> state{State::kUnmade};
    std::unique_ptr<Device> opened;  // kPostponed; under mutex_
    std::unique_ptr<DeviceCapture> capture;
    std::string why;  // not ready: the reason; under mutex_
  };
  struct Wish {
    int device;
    std::uint64_t lane_bytes;
    std::uint64_t arena_bytes;
  };
  struct Loan {
    int device;
    std::uint64_t up_to;  // DeviceCapture::enqueued() at the call of borrow()
    std::unique_ptr<Borrowed> borrowed;
  };

  const LaneSlot* find(int device) const noexcept;
  DeviceCapture* ready(int device) const noexcept;
  std::span<const LaneSlot> lane_slots() const noexcept { return {lane_slots_.data(), lane_slot_count_}; }
  void make(LaneSlot& slot, int device, StreamHandle stream, const std::shared_ptr<Ring>& lane);
  DropReason why_not(int device) const noexcept;
  std::string why(const LaneSlot& slot) const;
  std::unique_ptr<Device> open(int device, std::string& why);

  Ring& main_;
  const DeviceFactory open_;
  const std::shared_ptr<const ForkGuard> guard_;
  static constexpr std::size_t kMaxLaneSlots = 8;
  const std::size_t lane_slot_count_;  // lanes
  std::array<LaneSlot, kMaxLaneSlots> lane_slots_;
  mutable std::mutex mutex_;                              // guards the set-up of devices
  std::vector<std::pair<int, DeviceFactory>> factories_;  // under mutex_
  std::vector<Wish> wishes_;                              // under mutex_
  std::mutex loans_mutex_;
  std::vector<Loan> loans_;                         // under loans_mutex_
  std::atomic<std::size_t> loan_count_{0};          // relaxed: a hint for take_read()
  mutable std::atomic<int> unserved_{kHostMemory};  // relaxed: a device without a lane
  mutable std::atomic<bool> refused_{false};        // relaxed: refusals() is not empty
  std::atomic<int> redirect_{kHostMemory};          // relaxed: set by tests before they capture
  std::atomic<bool> closed_{false};                 // relaxed: a late capture fails in its closed lane
};

}  // namespace tdcore
