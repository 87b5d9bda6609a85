#include "capture/capture.hpp"

#include <cstring>
#include <limits>
#include <vector>

#include "capture/capture_plan.hpp"
#include "capture/capture_values.hpp"
#include "ring/control_page.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

/// Plan for tensors in host memory.
class HostPlan final : public CapturePlan {
 public:
  HostPlan(Ring& ring, const StepContext& step_context, RoomWaiter waiter,
           std::vector<PlannedTensor>& items) noexcept
      : CapturePlan(ring, ring, step_context, waiter, {.record_bytes = ring.max_record_bytes()}, items) {}

 private:
  void make(const Reservation& room, const BatchSize& size) noexcept override;
};

void HostPlan::make(const Reservation& room, const BatchSize& size) noexcept {
  Entry* const entries = write_rows(room.data, size, 0);
  std::byte* const payload = room.data + size.payload_offset;
  std::uint64_t end = 0;
  for (const PlannedTensor& item : items()) {
    if (item.payload_bytes == 0) continue;
    const std::uint64_t last = item.payload_offset + item.payload_bytes;
    end = round_up(last, kTensorAlignBytes);
    std::memset(payload + last, 0, end - last);  // no stale bytes between tensors
  }
  if (size.payload_bytes > end) std::memset(payload + end, 0, size.payload_bytes - end);
  write_values(records(), items(), entries, payload);
  records().commit(room);
}

/// Whether |stride| * (extent - 1), summed over all dimensions, in elements, is at most `limit`.
bool span_fits(const TensorView& view, std::uint64_t limit) noexcept {
  std::uint64_t span = 1;
  for (int i = 0; i < view.ndim; ++i) {
    const auto steps = static_cast<std::uint64_t>(view.shape[i] - 1);
    const std::int64_t stride = view.strides[i];
    const std::uint64_t size = stride < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
                                          : static_cast<std::uint64_t>(stride);
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(steps, size, &reach) || __builtin_add_overflow(span, reach, &span) ||
        span > limit)
      return false;
  }
  return true;
}

}  // namespace

bool wait_plainly(Ring& ring, std::uint64_t bytes, void*) { return ring.wait_for_room(bytes); }

std::uint64_t view_bytes(const TensorView& view) noexcept {
  return element_count(view) * dtype_bytes(view.dtype);
}

DropReason check_view(const TensorView& view) noexcept {
  const std::uint64_t item_bytes = view.dtype < Dtype::kCount ? dtype_bytes(view.dtype) : 0;
  if (item_bytes == 0) return DropReason::kUnsupportedDtype;
  if (view.ndim < 0 || view.ndim > static_cast<int>(kMaxDims)) return DropReason::kTooLarge;
  const std::uint64_t limit = kMaxBytes / item_bytes;
  std::uint64_t elements = 1;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] < 0) return DropReason::kUnreadable;
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(view.shape[i]), &elements))
      return DropReason::kTooLarge;
  }
  if (elements == 0) return DropReason::kNone;
  if (elements > limit || (view.strides != nullptr && !span_fits(view, limit))) return DropReason::kTooLarge;
  return view.data == nullptr ? DropReason::kNoStorage : DropReason::kNone;
}

CaptureResult capture(Ring& ring, std::span<const TensorRequest> requests, const StepContext& step_context,
                      RoomWaiter waiter) {
  if (!ring.usable()) return {};
  thread_local std::vector<PlannedTensor> items;  // keeps its capacity between calls
  return HostPlan(ring, step_context, waiter, items).run(requests);
}

}  // namespace tdcore
