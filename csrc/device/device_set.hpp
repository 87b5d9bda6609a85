// device_set.hpp: the devices of one ring: the lane of each device, and the path of a capture's tensors to
// it.
//
// A device gets a lane at its first use, in the order in which they come; where there are more devices than
// lanes the late ones are not served (kUnsupportedDevice). One that cannot be used keeps its lane and says
// why (kDeviceError). Captures of host memory come nowhere near here. Threads: any may call anything.
// prepare() may last (memory is taken and pinned, kernels are compiled) and holds a mutex meanwhile, so it
// must not be called with the GIL; what tells of devices and close() take it, too, captures look at atomics.
// Fork: in a child nothing is done, and nothing of the parent's is touched.
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

/// Opens a device; null, with the reason in `why`, when it cannot be used.
using DeviceFactory = std::function<std::unique_ptr<Device>(int device, std::string& why)>;

/// What a device may still read, so that its owner must not have it back yet. Destroyed where that may run
/// foreign code (Python's, with the GIL).
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

/// One call's requests by where they lie. Reused from call to call: its vectors keep their room.
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

/// DeviceReport, and which device it is of.
struct NumberedReport {
  int device = 0;
  DeviceReport report;
};

class DeviceSet {
 public:
  /// For the lanes that `main` has; it outlives this. `open` opens a device for which set_factory() gave
  /// nothing.
  DeviceSet(Ring& main, DeviceFactory open);
  ~DeviceSet();
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  /// What opens a device in place of the constructor's factory. False when the device was used already.
  bool set_factory(int device, DeviceFactory factory);
  /// From now on tensors in host memory are captured like tensors on that device (tests).
  void redirect_host(int device) noexcept;
  bool redirects_host() const noexcept { return redirect_.load(std::memory_order_relaxed) >= 0; }
  /// The device that captures a tensor; kHostMemory when none does.
  int device_of(const TensorView& view) const noexcept {
    return view.device != kHostMemory ? view.device : redirect_.load(std::memory_order_relaxed);
  }

  /// Sets the device up, unless that was tried already; not while `stream` of it is being captured into a
  /// graph. Whether it can be used.
  bool prepare(int device, StreamHandle stream = 0) noexcept;
  /// Whether prepare() would set the device up.
  bool is_new(int device) const noexcept;
  /// Why requested devices are not used: one line each; empty if all are used.
  std::string refusals() const;

  /// Sorts a call's requests. Those on a device that is not served are in `host` then, as skipped.
  void sort(std::span<const TensorRequest> requests, Groups& groups) const;
  /// As DeviceCapture::capture(). The device must have been prepared.
  CaptureResult capture(const DeviceGroup& group, const StepContext& step_context, RoomWaiter waiter);

  /// Keeps `borrowed` until what was captured on the device before this call has been read.
  void borrow(int device, std::unique_ptr<Borrowed> borrowed);
  /// What has been read meanwhile; after close() all that is safe to give back. Cheap when there is none.
  std::vector<std::unique_ptr<Borrowed>> take_read();

  /// Ring::mark_step_end() behind everything that is on its way from devices.
  [[nodiscard]] bool mark_step_end(std::int64_t step) noexcept;

  std::vector<NumberedReport> reports() const;
  /// Waits for what is in flight, a few seconds at most per device.
  void close() noexcept;

 private:
  enum class State : std::uint8_t {
    kUnmade,
    kPostponed,  // opened, but its first stream was being captured into a graph
    kReady,
    kRefused,
  };
  /// A lane and the device that it serves.
  struct LaneSlot {
    std::atomic<int> device{kHostMemory};  // relaxed: found or not, `state` decides
    // Release in make(); pairs with the acquire in ready(): `capture` is constant from then on.
    std::atomic<State> state{State::kUnmade};
    std::unique_ptr<Device> opened;  // kPostponed; under mutex_
    std::unique_ptr<DeviceCapture> capture;
    std::string why;  // not ready: the reason; under mutex_
  };
  struct Loan {
    int device;
    std::uint64_t up_to;  // DeviceCapture::enqueued() then
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
  mutable std::mutex mutex_;                              // of making
  std::vector<std::pair<int, DeviceFactory>> factories_;  // under mutex_
  std::mutex loans_mutex_;
  std::vector<Loan> loans_;                         // under loans_mutex_
  std::atomic<std::size_t> loan_count_{0};          // relaxed: a hint for take_read()
  mutable std::atomic<int> unserved_{kHostMemory};  // relaxed: a device that came too late
  mutable std::atomic<bool> refused_{false};        // relaxed: refusals() has something to say
  std::atomic<int> redirect_{kHostMemory};          // relaxed: set by tests before they capture
  std::atomic<bool> closed_{false};                 // relaxed: a late capture finds its lane closed
};

}  // namespace tdcore
