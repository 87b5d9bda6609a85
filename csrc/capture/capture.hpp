// capture.hpp: a list of tensors becomes batch records in the ring: planned, copied and reduced in one pass.
//
// A call makes as few records as it can: all tensors share one, as long as it stays within
// ring.max_record_bytes(). A tensor that does not fit in a record of its own goes as several parts,
// flat ranges of its elements in C order, each with statistics of its own. Values that are only to be
// described (statistics alone) are never split. Strided input is gathered on the way, without a copy of the
// whole.
//
// A tensor that is not stored as requested is counted once, in the ring, with a reason:
//   skipped (reason in the request, or found here) -> a row with the reason, and the count
//   ring full -> no row; the parts after a lost part are dropped too
//   ring full under policy degrade -> a row with statistics, reason kDegraded, and the count
//   no name (kNoName, kUnfitName) -> no row
// Threads: any number may call capture() on one ring. It waits only in `waiter`, and never while it holds a
// reservation. It allocates only while its per-thread plan grows to its working size, runs no Python and
// throws nothing of its own (a waiter may unwind the thread: Python does that to daemon threads at exit).
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor_view.hpp"
#include "ring/record.hpp"
#include "ring/ring.hpp"

namespace tdcore {

/// The id of a tensor whose name did not fit into the table of names.
inline constexpr std::uint32_t kNoName = 0xFFFFFFFF;       // the table of names is full
inline constexpr std::uint32_t kUnfitName = kUnfitNameId;  // readers refuse the name (names.hpp)
constexpr bool has_name(std::uint32_t name) noexcept { return name < kUnfitName; }

/// One tensor of a capture call.
struct TensorRequest {
  TensorView tensor;                          // read only with kOk; must have passed check_view()
  std::uint32_t name = kNoName;               // id in the table of names
  std::uint8_t flags = 0;                     // CaptureFlags; none: a row with dtype and shape alone
  EntryStatus status = EntryStatus::kOk;      // kAbsent: there is no value
  DropReason reason = DropReason::kNone;      // with kSkipped
  AbsentReason absent = AbsentReason::kNone;  // with kAbsent
};

/// Where in the training the values belong; the same for all tensors of a call.
struct StepContext {
  std::int64_t step = 0;
  std::int64_t mode_step = 0;
  std::uint32_t mode = 0;
  std::uint32_t call = 0;
};

struct CaptureResult {
  std::uint64_t kept = 0;           // tensors with a row that holds their values or statistics
  std::uint64_t not_kept = 0;       // tensors not kept as asked: skipped, dropped or degraded
  std::uint64_t payload_bytes = 0;  // committed
};

/// How to wait for room: ring.wait_for_room(), or that with the GIL released. May unwind the thread, see
/// above.
struct RoomWaiter {
  bool (*wait)(Ring& ring, std::uint64_t bytes, void* context);
  void* context;
};

bool wait_plainly(Ring& ring, std::uint64_t bytes, void* context);

/// kNone when the core can read the view; else why not: kUnsupportedDtype, kTooLarge (more than kMaxDims
/// dimensions, or sizes that overflow), kUnreadable (negative extent), kNoStorage (null address with elements
/// behind it).
DropReason check_view(const TensorView& view) noexcept;

/// Bytes of all elements of a checked view.
std::uint64_t view_bytes(const TensorView& view) noexcept;

/// Captures all requests. Does nothing on a ring that is not usable (a forked child).
/// Does not call ring.count_capture(): the caller does, with the time of its own work included.
CaptureResult capture(Ring& ring, std::span<const TensorRequest> requests, const StepContext& step_context,
                      RoomWaiter waiter = {wait_plainly, nullptr});

}  // namespace tdcore
