// record.hpp: the layout of one record in the ring, byte for byte.
//
// A capture call becomes one *batch* record, or several if one is too small:
//
//     BatchHeader | Entry[entries] | padding | payload
//
// The trainer writes the record in place, and the flusher reads it in place. Both are built from this header,
// and layout_hash() (control_page.hpp) covers its sizes, so that a mismatch is rejected at attach.
// Only plain data: no pointers, no virtual functions, the same bytes in every process.
// Threads: a record belongs to the thread that reserved it until its commit, then to the consumer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/limits.hpp"
#include "stats/stats.hpp"

namespace tdcore {

inline constexpr std::uint32_t kBatchMagic = 0x31424454;  // "TDB1"
inline constexpr std::uint64_t kNoPayload = ~std::uint64_t{0};

// Payloads of records this large start on a page (kPageBytes), so that the flusher can write them with
// O_DIRECT.
inline constexpr std::size_t kDirectPayloadBytes = 256 * 1024;
// Guard bytes before and after the payload of a batch that a device writes. They contain BatchHeader::guard
// when the payload has arrived.
inline constexpr std::size_t kGuardBytes = 64;

/// Kind of record in a slot of the ring.
enum class RecordKind : std::uint32_t {
  kBatch = 1,     // BatchHeader and entries
  kDocument = 2,  // u32 key_bytes | key | bytes: a small file of the run; the last record with a key counts
  kAborted = 3,   // reserved, then dropped by its producer: no contents
};

/// Reason why a tensor was not stored as requested. Counted once per tensor, in the ring's control page.
/// drop_reason_name() has the names for users. Append only.
enum class DropReason : std::uint8_t {
  kNone = 0,
  kRingFull = 1,            // no room (policy drop, or block timed out)
  kTooLarge = 2,            // cannot fit even when split (metadata larger than the ring allows)
  kUnsupportedDtype = 3,    // no statistics and no payload defined for the dtype
  kSparse = 4,              // layout without strides
  kNoStorage = 5,           // meta, fake or sharded tensor: no local storage
  kUnreadable = 6,          // the object could not be read as a tensor (an exception in its export)
  kNamesFull = 7,           // the table of names is full
  kDegraded = 8,            // policy degrade: statistics kept, payload left out
  kTorn = 9,                // producer died between reserve and commit (counted by the consumer)
  kIoError = 10,            // the sink rejected the bytes (counted by the consumer)
  kUnsupportedDevice = 11,  // neither in host memory nor on a supported device
  kGraphCapture = 12,       // the device's stream was being captured into a graph
  kArenaFull = 13,          // no room in the device's arena (policy drop)
  kDeviceError = 14,        // the device returned an error, or cannot be used
  kUnfitName = 15,          // readers reject the name
  kCount = 16,
};

/// Reason why a tensor had no value. absent_reason_name() has the names for users. Append only.
enum class AbsentReason : std::uint8_t {
  kNone = 0,           // the producer gave no reason
  kNoBackward = 1,     // no backward reached the parameter in this step
  kNotStepped = 2,     // the optimizer of the parameter did not step in this step
  kCleared = 3,        // the gradient was cleared before it was used
  kAccumulated = 4,    // a later step has the gradient: no optimizer stepped before the next saved step
  kScalerSkipped = 5,  // the gradient scaler skipped the optimizer's step
  kUnknown = 6,        // a code that this version does not define
  kCount = 7,
};

/// Status of a row's tensor.
enum class EntryStatus : std::uint8_t {
  kOk = 0,
  kAbsent = 1,   // no value, such as a parameter without gradient; not an error. `absent` has the reason
  kSkipped = 2,  // not captured; `reason` has the reason
  kNoRow = 3,    // a tensor of a CUDA graph that was not replayed: the consumer passes over the entry
};

struct BatchHeader {
  std::uint32_t magic;           // kBatchMagic
  std::uint32_t entries;         // number of Entry after this header
  std::uint32_t entry_bytes;     // sizeof(Entry) of the writer
  std::uint32_t mode;            // 1 train, 2 eval, 3 predict, 4 global
  std::int64_t step;             // global step
  std::int64_t mode_step;        // step within the mode
  std::int64_t time_ns;          // CLOCK_REALTIME when the capture began
  std::uint64_t payload_offset;  // from the start of the record; kPageBytes-aligned when payload_bytes >=
                                 // kDirectPayloadBytes
  std::uint64_t
      payload_bytes;  // padded to kTensorAlignBytes (to kPageBytes when page-aligned); 0 when no payload
  // 0, except in a batch whose values a device writes. When the payload has arrived, the first 8 bytes of the
  // kGuardBytes before it, and of the kGuardBytes after it, have this value. Without payload: when the values
  // have arrived, each entry with statistics has stats.count == elements.
  std::uint64_t guard;
};

struct Entry {
  TensorStats stats;             // valid when has_stats
  std::uint64_t payload_offset;  // from the record's payload start, kTensorAlignBytes-aligned; kNoPayload
                                 // when not saved
  std::uint64_t payload_bytes;   // bytes of this part, C order; 0 when not saved
  std::uint64_t element_offset;  // first element of this part within the tensor, C order
  std::uint64_t elements;        // elements in this part
  std::int64_t shape[kMaxDims];  // of the whole tensor
  std::uint32_t name;            // id in the table of names
  std::uint32_t call;            // n-th call of a reused module within the step
  std::uint32_t seq;             // order of execution within the step
  std::uint32_t part;            // part index of a tensor that was split over records
  std::uint32_t parts;           // 1 when whole
  Dtype dtype;
  std::uint8_t ndim;
  EntryStatus status;
  union {                 // one byte, read according to `status`
    DropReason reason;    // with kSkipped; kDegraded with kOk when the payload was left out
    AbsentReason absent;  // with kAbsent
  };
  std::uint8_t has_stats;
  std::uint8_t padding[7];
};

static_assert(std::is_trivially_copyable_v<BatchHeader> && sizeof(BatchHeader) == 64);

/// A record that marks `step` and all earlier steps as complete; -1 announces that steps will be marked.
/// time_ns: CLOCK_REALTIME. If markers wait in several lanes, the consumer takes the oldest first. May be 0
/// if there is one lane.
constexpr BatchHeader marker_header(std::int64_t step, std::int64_t time_ns) noexcept {
  return {.magic = kBatchMagic,
          .entries = 0,
          .entry_bytes = sizeof(Entry),
          .mode = 0,
          .step = step,
          .mode_step = 0,
          .time_ns = time_ns,
          .payload_offset = 0,
          .payload_bytes = 0,
          .guard = 0};
}
static_assert(std::is_trivially_copyable_v<Entry> && sizeof(Entry) % 8 == 0);

/// Bits of the per-tensor flags that a capture call takes. The upper four bits hold an AbsentReason, which is
/// used only for a tensor without a value.
enum CaptureFlags : std::uint8_t {
  kWantPayload = 1,
  kWantStats = 2,
};
inline constexpr unsigned kAbsentReasonShift = 4;

/// The absent reason in a byte of flags; kUnknown for a code that is not defined.
constexpr AbsentReason absent_reason(std::uint8_t flags) noexcept {
  const auto reason = static_cast<AbsentReason>(flags >> kAbsentReasonShift);
  return reason < AbsentReason::kCount ? reason : AbsentReason::kUnknown;
}

}  // namespace tdcore
