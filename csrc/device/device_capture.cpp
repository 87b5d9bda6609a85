#include "device/device_capture.hpp"

#include <array>
#include <cstring>
#include <new>
#include <vector>

#include "device/device_engine.hpp"
#include "device/device_graph_capture.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

constexpr std::size_t kMostDevices = 64;

/// Plan for rows without values, in the main ring.
class RowPlan final : public CapturePlan {
 public:
  RowPlan(Ring& ring, const StepContext& step_context, RoomWaiter waiter,
          std::vector<PlannedTensor>& items) noexcept
      : CapturePlan(ring, ring, step_context, waiter, {.record_bytes = ring.max_record_bytes()}, items) {}

 private:
  void make(const Reservation& room, const BatchSize& size) noexcept override {
    (void)write_rows(room.data, size, 0);
    records().commit(room);
  }
};

/// Plan for tensors on a device.
class DevicePlan final : public CapturePlan {
 public:
  DevicePlan(DeviceEngine& engine, Ring& main, const StepContext& step_context, RoomWaiter waiter,
             StreamHandle stream, std::vector<PlannedTensor>& items) noexcept
      : CapturePlan(engine.lane(), main, step_context, waiter, engine.limits(), items),
        engine_(engine),
        stream_(stream) {}

 private:
  void prepare() noexcept override;
  void make(const Reservation& room, const BatchSize& size) noexcept override;
  bool fit(TableSize& table) noexcept;
  BatchSize size_now() noexcept { return batch_size(items().size(), payload(), kGuardBytes); }

  DeviceEngine& engine_;
  const StreamHandle stream_;
};

/// Removes the items from the batch for which the device has no room, and measures the table of the others.
/// Locked. False if no item is left.
bool DevicePlan::fit(TableSize& table) noexcept {
  for (;;) {
    table = engine_.measure(items(), size_now().payload_bytes);
    switch (engine_.find_room(table, size_now().payload_bytes, stream_)) {
      case DeviceEngine::Fit::kFits:
        return !items().empty();
      case DeviceEngine::Fit::kArenaFull:
        if (records().policy() == FullPolicy::kDegrade) {
          degrade();
        } else {
          drop_some(DropReason::kArenaFull, [](const PlannedTensor& item) { return is_packed(item); });
        }
        break;
      case DeviceEngine::Fit::kTablesFull:
        drop_some(DropReason::kArenaFull,
                  [](const PlannedTensor& item) { return is_packed(item) || is_reduced(item); });
        break;
      case DeviceEngine::Fit::kOff:
        drop(DropReason::kDeviceError);
        items().clear();
        return false;
    }
  }
}

/// Called before room in the ring is requested, so that no room in the ring is taken for payloads that do not
/// fit into the arena.
void DevicePlan::prepare() noexcept {
  if (records().policy() == FullPolicy::kBlock && engine_.on()) return;  // the stream waits, if necessary
  const std::scoped_lock lock(engine_.mutex());
  TableSize table;
  (void)fit(table);
}

void DevicePlan::make(const Reservation& room, const BatchSize&) noexcept {
  const std::scoped_lock lock(engine_.mutex());
  TableSize table;
  if (!fit(table)) return records().abort(room);  // other threads were faster
  const BatchSize size = size_now();
  const std::uint64_t guard = table.empty() ? 0 : engine_.next_guard();
  Entry* const entries = write_rows(room.data, size, guard);
  for (std::size_t i = 0; i < items().size(); ++i) {
    const PlannedTensor& item = items()[i];
    if (item.stats && !is_reduced(item)) entries[i].stats = empty_stats();
  }
  if (size.payload_bytes > 0) {  // so that guards of an earlier lap do not match
    std::byte* const payload = room.data + size.payload_offset;
    std::memset(payload - kGuardBytes, 0, kGuardBytes);
    std::memset(payload + size.payload_bytes, 0, kGuardBytes);
  }
  if (table.empty()) return records().commit(room);
  if (engine_.launch(
          {.room = room, .size = size, .table = table, .items = items(), .guard = guard, .stream = stream_}))
    return;
  uncount();
  drop(DropReason::kDeviceError);
}

bool is_captured_into_a_graph(DeviceEngine& engine, StreamHandle stream) noexcept {
  const std::scoped_lock lock(engine.mutex());
  return engine.on() && engine.is_capturing(stream);
}

}  // namespace

DeviceCapture::DeviceCapture(std::unique_ptr<Device> device, std::shared_ptr<Ring> lane, Ring& main,
                             const DeviceCaptureConfig& config) noexcept
    : main_(main),
      engine_(new(std::nothrow) DeviceEngine(std::move(device), std::move(lane), main, config)) {}

DeviceCapture::~DeviceCapture() {
  if (engine_ != nullptr && !engine_->here())
    (void)engine_.release();  // a forked child, which does not have the threads
}

CaptureResult DeviceCapture::capture(std::span<const TensorRequest> requests, const StepContext& step_context,
                                     StreamHandle stream, RoomWaiter waiter) {
  if (!main_.usable()) return {};
  thread_local std::vector<PlannedTensor> items;  // keeps its capacity between calls
  if (engine_ == nullptr || !engine_->on()) {
    (void)busy();  // the device has just failed: counts the lost records
    return RowPlan(main_, step_context, waiter, items).skip_all(requests, DropReason::kDeviceError);
  }
  if (is_captured_into_a_graph(*engine_, stream))
    return capture_into_graph(*engine_, main_, requests, step_context.call, stream);
  note_captured(*engine_, requests);
  return DevicePlan(*engine_, main_, step_context, waiter, stream, items).run(requests);
}

bool DeviceCapture::has_graphs() const noexcept { return engine_ != nullptr && engine_->has_graphs(); }

bool DeviceCapture::arm_graphs(StreamHandle stream) noexcept {
  return has_graphs() && main_.usable() && engine_->arm_graphs(stream);
}

CaptureResult DeviceCapture::collect_graphs(const StepContext& step_context, StreamHandle stream,
                                            RoomWaiter waiter) {
  if (!has_graphs() || !main_.usable()) return {};
  return tdcore::collect_graphs(*engine_, main_, step_context, stream, waiter);
}

bool DeviceCapture::mark_step_end(std::int64_t step, std::span<DeviceCapture* const> others) noexcept {
  std::array<DeviceEngine*, kMostDevices> engines{};
  std::size_t count = 0;
  if (engine_ == nullptr || others.size() > engines.size()) return false;
  for (DeviceCapture* const other : others) {
    if (other->engine_ != nullptr) engines[count++] = other->engine_.get();
  }
  return engine_->mark_step_end(step, {engines.data(), count});
}

std::uint64_t DeviceCapture::enqueued() const noexcept {
  return engine_ != nullptr ? engine_->launched() : 0;
}

bool DeviceCapture::has_read(std::uint64_t records) const noexcept {
  return engine_ == nullptr || engine_->has_read(records);
}

bool DeviceCapture::may_wait() const noexcept { return engine_ != nullptr && engine_->may_wait(); }

bool DeviceCapture::in_use() const noexcept { return engine_ != nullptr && engine_->on(); }

bool DeviceCapture::busy() const noexcept { return engine_ != nullptr && engine_->busy(); }

DeviceReport DeviceCapture::report() const {
  if (engine_ != nullptr) return engine_->report();
  DeviceReport report;
  report.error = "no host memory for the capture of the device";
  return report;
}

void DeviceCapture::close() noexcept {
  if (engine_ != nullptr) engine_->close();
}

}  // namespace tdcore
