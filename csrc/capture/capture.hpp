// capture.hpp: writes a list of tensors into the ring as batch records: planned, copied and reduced in one
// pass.
//
// A call writes as few records as possible: all tensors share one record, as long as it stays within
// ring.max_record_bytes(). A tensor that does not fit into one record is written as several parts, flat
// ranges of its elements in C order, each with its own statistics. Tensors whose values are not requested
// are never split. Strided input is gathered in blocks, without a copy of the whole tensor.
//
// A tensor that is not stored as requested is counted once, in the ring, with a reason:
//   skipped (reason in the request, or detected here) -> a row with the reason, and the count
//   ring full -> no row; the parts after a lost part are dropped too
//   ring full under policy degrade -> a row with statistics, reason kDegraded, and the count
//   no name (kNoName, kUnfitName) -> no row
// Threads: any number may call capture() on one ring. capture() waits only in `waiter`, and never while it
// holds a reservation. It allocates only while its per-thread plan grows to its working size, runs no Python,
// and throws no exceptions itself (a waiter may unwind the thread: Python does this to daemon threads at
// exit).
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor_view.hpp"
#include "ring/record.hpp"
#include "ring/ring.hpp"

namespace tdcore {

/// The id of a tensor whose name did not fit into the table of names.
inline constexpr std::uint32_t kNoName = 0xFFFFFFFF;       // the table of names is full
inline constexpr std::uint32_t kUnfitName = kUnfitNameId;  // readers reject the name (names.hpp)
constexpr bool has_name(std::uint32_t name) noexcept { return name < kUnfitName; }

/// One tensor of a capture call.
struct TensorRequest {
  TensorView tensor;                          // used only with kOk; must have passed check_view()
  std::uint32_t name = kNoName;               // id in the table of names
  std::uint8_t flags = 0;                     // CaptureFlags; 0: a row with only dtype and shape
  EntryStatus status = EntryStatus::kOk;      // kAbsent: there is no value
  DropReason reason = DropReason::kNone;      // with kSkipped
  AbsentReason absent = AbsentReason::kNone;  // with kAbsent
};

/// The step of the training to which the values belong; the same for all tensors of a call.
struct StepContext {
  std::int64_t step = 0;
  std::int64_t mode_step = 0;
  std::uint32_t mode = 0;
  std::uint32_t call = 0;
};

struct CaptureResult {
  std::uint64_t kept = 0;           // tensors with a row that has their values or statistics
  std::uint64_t not_kept = 0;       // tensors not kept as requested: skipped, dropped or degraded
  std::uint64_t payload_bytes = 0;  // committed
};

/// Function that waits for room: ring.wait_for_room(), possibly with the GIL released. May unwind the thread,
/// see above.
struct RoomWaiter {
  bool (*wait)(Ring& ring, std::uint64_t bytes, void* context);
  void* context;
};

bool wait_plainly(Ring& ring, std::uint64_t bytes, void* context);

/// kNone if the core can read the view, otherwise the reason: kUnsupportedDtype, kTooLarge (more than
/// kMaxDims dimensions, or sizes that overflow), kUnreadable (negative extent), kNoStorage (elements at a
/// null address).
DropReason check_view(const TensorView& view) noexcept;

/// Size of all elements of a checked view, in bytes.
std::uint64_t view_bytes(const TensorView& view) noexcept;

/// Captures all requests. Has no effect on a ring that is not usable (in a forked child). The caller must
/// call ring.count_capture(), with a time that includes its own work.
CaptureResult capture(Ring& ring, std::span<const TensorRequest> requests, const StepContext& step_context,
                      RoomWaiter waiter = {wait_plainly, nullptr});

}  // namespace tdcore
