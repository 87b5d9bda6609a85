#include "device/device_set.hpp"

#include <algorithm>
#include <exception>

#include "ring/ring.hpp"

namespace tdcore {

void Groups::clear() noexcept {
  host.clear();
  for (DeviceGroup& group : groups_) group.requests.clear();
  used_ = 0;
}

DeviceGroup& Groups::of(int device, StreamHandle stream) {
  const auto used = groups_.begin() + static_cast<std::ptrdiff_t>(used_);
  const auto found = std::find_if(groups_.begin(), used, [&](const DeviceGroup& group) {
    return group.device == device && group.stream == stream;
  });
  if (found != used) return *found;
  if (used_ == groups_.size()) groups_.emplace_back();
  DeviceGroup& group = groups_[used_++];
  group.device = device;
  group.stream = stream;
  return group;
}

DeviceSet::DeviceSet(Ring& main, DeviceFactory open)
    : main_(main),
      open_(std::move(open)),
      guard_(main.memory()->guard()),
      lane_slot_count_(std::min(main.lanes().size(), kMaxLaneSlots)) {}

DeviceSet::~DeviceSet() {
  close();
  if (guard_->here()) return;
  for (LaneSlot& slot : lane_slots_) (void)slot.capture.release();  // an object of the parent
  for (Loan& loan : loans_) (void)loan.borrowed.release();
}

bool DeviceSet::set_factory(int device, DeviceFactory factory) {
  const std::lock_guard lock(mutex_);
  if (find(device) != nullptr) return false;
  factories_.emplace_back(device, std::move(factory));
  return true;
}

void DeviceSet::redirect_host(int device) noexcept { redirect_.store(device, std::memory_order_relaxed); }

const DeviceSet::LaneSlot* DeviceSet::find(int device) const noexcept {
  for (const LaneSlot& slot : lane_slots()) {
    if (slot.device.load(std::memory_order_relaxed) == device) return &slot;
  }
  return nullptr;
}

DeviceCapture* DeviceSet::ready(int device) const noexcept {
  const LaneSlot* slot = find(device);
  // Acquire: pairs with the release in make().
  const bool made = slot != nullptr && slot->state.load(std::memory_order_acquire) == State::kReady;
  return made ? slot->capture.get() : nullptr;
}

bool DeviceSet::is_new(int device) const noexcept {
  if (const LaneSlot* slot = find(device); slot != nullptr)
    return slot->state.load(std::memory_order_relaxed) <= State::kPostponed;
  return lane_slot_count_ > 0 &&
         lane_slots_[lane_slot_count_ - 1].device.load(std::memory_order_relaxed) == kHostMemory;
}

bool DeviceSet::wish(int device, std::uint64_t lane_bytes, std::uint64_t arena_bytes) {
  if (!guard_->here()) return false;
  const std::lock_guard lock(mutex_);
  if (!is_new(device)) return false;
  wishes_.push_back({device, lane_bytes, arena_bytes});
  return true;
}

bool DeviceSet::prepare(int device, StreamHandle stream) noexcept {
  if (!guard_->here()) return false;
  try {
    const std::lock_guard lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return false;  // closed in this time
    for (std::size_t i = 0; i < lane_slot_count_; ++i) {
      LaneSlot& slot = lane_slots_[i];
      const int served = slot.device.load(std::memory_order_relaxed);
      if (served != device && served != kHostMemory) continue;
      slot.device.store(device, std::memory_order_relaxed);
      if (slot.state.load(std::memory_order_relaxed) <= State::kPostponed)
        make(slot, device, stream, main_.lanes()[i]);
      return slot.state.load(std::memory_order_relaxed) == State::kReady;
    }
    (void)why_not(device);
  } catch (const std::exception&) {  // no memory: the next call tries again
  }
  return false;
}

std::unique_ptr<Device> DeviceSet::open(int device, std::string& why) {
  const auto own = std::find_if(factories_.begin(), factories_.end(),
                                [&](const auto& entry) { return entry.first == device; });
  return own != factories_.end() ? own->second(device, why) : open_(device, why);
}

void DeviceSet::make(LaneSlot& slot, int device, StreamHandle stream, const std::shared_ptr<Ring>& lane) {
  if (slot.opened == nullptr) slot.opened = open(device, slot.why);
  if (slot.opened != nullptr && slot.opened->is_capturing(stream)) {
    slot.state.store(State::kPostponed, std::memory_order_relaxed);
    return;
  }
  if (slot.opened != nullptr) {
    DeviceCaptureConfig config{.arena_bytes = main_.device_arena_bytes()};
    for (const Wish& one : wishes_) {
      if (one.device != device) continue;
      (void)lane->raise_limit(one.lane_bytes);
      config.wanted_arena_bytes = one.arena_bytes;
    }
    slot.capture = std::make_unique<DeviceCapture>(std::move(slot.opened), lane, main_, config);
    slot.why = slot.capture->report().error;
  }
  const bool usable = slot.capture != nullptr && slot.why.empty();
  if (!usable) refused_.store(true, std::memory_order_relaxed);
  // Release: pairs with the acquire in ready().
  slot.state.store(usable ? State::kReady : State::kRefused, std::memory_order_release);
}

DropReason DeviceSet::why_not(int device) const noexcept {
  const LaneSlot* slot = find(device);
  if (slot == nullptr) {
    unserved_.store(device, std::memory_order_relaxed);
    refused_.store(true, std::memory_order_relaxed);
    return DropReason::kUnsupportedDevice;
  }
  if (slot->state.load(std::memory_order_relaxed) == State::kPostponed) return DropReason::kGraphCapture;
  refused_.store(true, std::memory_order_relaxed);  // the device may have failed meanwhile
  return DropReason::kDeviceError;
}

/// Reason why the device of a lane is not used. Under mutex_.
std::string DeviceSet::why(const LaneSlot& slot) const {
  return slot.why.empty() && slot.capture != nullptr ? slot.capture->report().error : slot.why;
}

std::string DeviceSet::refusals() const {
  // Without the mutex while no device is refused, because another thread may be setting up a device.
  if (!refused_.load(std::memory_order_relaxed) || !guard_->here()) return {};
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const LaneSlot& slot : lane_slots()) {
    if (slot.state.load(std::memory_order_relaxed) <= State::kPostponed) continue;
    const std::string error = why(slot);
    if (error.empty()) continue;
    const int device = slot.device.load(std::memory_order_relaxed);
    text += "cuda:" + std::to_string(device) + " cannot be used: " + error + "\n";
  }
  if (const int device = unserved_.load(std::memory_order_relaxed); device != kHostMemory) {
    text += "cuda:" + std::to_string(device) + " is not captured: all " + std::to_string(lane_slot_count_) +
            " device lanes are taken; raise RingConfig.device_lanes\n";
  }
  return text;
}

void DeviceSet::sort(std::span<const TensorRequest> requests, Groups& groups) const {
  groups.clear();
  // A device that has failed reads no more tensors, so nothing is kept for it.
  const auto is_served = [this](const TensorRequest& request) {
    const DeviceCapture* const capture =
        request.status == EntryStatus::kOk ? ready(device_of(request.tensor)) : nullptr;
    return capture != nullptr && capture->in_use();
  };
  // Rows without values are written with the other rows of their call; in the main ring they would be
  // earlier.
  const auto first = std::find_if(requests.begin(), requests.end(), is_served);
  for (const TensorRequest& request : requests) {
    const int device = device_of(request.tensor);
    if (request.status != EntryStatus::kOk) {
      const bool alone = first == requests.end();
      auto& rows = alone ? groups.host : groups.of(device_of(first->tensor), first->tensor.stream).requests;
      rows.push_back(request);
    } else if (is_served(request)) {
      groups.of(device, request.tensor.stream).requests.push_back(request);
    } else {
      groups.host.push_back(request);
      if (device == kHostMemory) continue;
      groups.host.back().status = EntryStatus::kSkipped;
      groups.host.back().reason = why_not(device);
    }
  }
}

CaptureResult DeviceSet::capture(const DeviceGroup& group, const StepContext& step_context,
                                 RoomWaiter waiter) {
  DeviceCapture* const capture = guard_->here() ? ready(group.device) : nullptr;
  if (capture == nullptr) return {};
  const CaptureResult result = capture->capture(group.requests, step_context, group.stream, waiter);
  if (!capture->in_use()) refused_.store(true, std::memory_order_relaxed);  // the device has failed meanwhile
  return result;
}

std::vector<int> DeviceSet::devices_with_graphs() const {
  std::vector<int> found;
  if (!guard_->here()) return found;
  for (const LaneSlot& slot : lane_slots()) {
    const int device = slot.device.load(std::memory_order_relaxed);
    const DeviceCapture* const capture = ready(device);
    if (capture != nullptr && capture->has_graphs()) found.push_back(device);
  }
  return found;
}

bool DeviceSet::arm_graphs(int device, StreamHandle stream) noexcept {
  DeviceCapture* const capture = guard_->here() ? ready(device) : nullptr;
  return capture != nullptr && capture->arm_graphs(stream);
}

CaptureResult DeviceSet::collect_graphs(int device, StreamHandle stream, const StepContext& step_context,
                                        RoomWaiter waiter) {
  DeviceCapture* const capture = guard_->here() ? ready(device) : nullptr;
  if (capture == nullptr) return {};
  const CaptureResult result = capture->collect_graphs(step_context, stream, waiter);
  if (!capture->in_use()) refused_.store(true, std::memory_order_relaxed);  // as in capture()
  return result;
}

bool DeviceSet::may_wait(int device) const noexcept {
  const DeviceCapture* const capture = guard_->here() ? ready(device) : nullptr;
  return capture != nullptr && capture->may_wait();
}

bool DeviceSet::may_wait() const noexcept {
  return std::any_of(lane_slots().begin(), lane_slots().end(), [this](const LaneSlot& slot) {
    return may_wait(slot.device.load(std::memory_order_relaxed));
  });
}

void DeviceSet::borrow(int device, std::unique_ptr<Borrowed> borrowed) {
  const DeviceCapture* capture = ready(device);
  if (capture == nullptr) return;
  const std::lock_guard lock(loans_mutex_);
  loans_.push_back({device, capture->enqueued(), std::move(borrowed)});
  loan_count_.store(loans_.size(), std::memory_order_relaxed);
}

std::vector<std::unique_ptr<Borrowed>> DeviceSet::take_read() {
  std::vector<std::unique_ptr<Borrowed>> read;
  if (loan_count_.load(std::memory_order_relaxed) == 0 || !guard_->here()) return read;
  const std::lock_guard lock(loans_mutex_);
  std::erase_if(loans_, [&](Loan& loan) {
    const DeviceCapture* capture = ready(loan.device);
    if (capture != nullptr && !capture->has_read(loan.up_to)) return false;
    read.push_back(std::move(loan.borrowed));
    return true;
  });
  loan_count_.store(loans_.size(), std::memory_order_relaxed);
  return read;
}

bool DeviceSet::mark_step_end(std::int64_t step) noexcept {
  if (!guard_->here()) return false;
  std::array<DeviceCapture*, kMaxLaneSlots> busy{};
  std::size_t count = 0;
  for (const LaneSlot& slot : lane_slots()) {
    DeviceCapture* capture = ready(slot.device.load(std::memory_order_relaxed));
    if (capture != nullptr && capture->busy()) busy[count++] = capture;
  }
  if (count == 0) return main_.mark_step_end(step);
  return busy[count - 1]->mark_step_end(step, {busy.data(), count - 1});
}

std::vector<NumberedReport> DeviceSet::reports() const {
  std::vector<NumberedReport> found;
  if (!guard_->here()) return found;
  const std::lock_guard lock(mutex_);
  for (const LaneSlot& slot : lane_slots()) {
    if (slot.state.load(std::memory_order_relaxed) <= State::kPostponed) continue;
    NumberedReport one{slot.device.load(std::memory_order_relaxed), {}};
    if (slot.capture != nullptr) one.report = slot.capture->report();
    if (one.report.error.empty()) one.report.error = slot.why;
    found.push_back(std::move(one));
  }
  return found;
}

void DeviceSet::close() noexcept {
  if (!guard_->here()) return;
  const std::lock_guard lock(mutex_);  // a second caller and the set-up of a device wait
  if (closed_.exchange(true, std::memory_order_relaxed)) return;
  for (const LaneSlot& slot : lane_slots()) {
    if (slot.capture != nullptr) slot.capture->close();
  }
}

}  // namespace tdcore
