// capture_plan.hpp: the plan of a capture call for host and device tensors: batches, parts, rows, drops.
// The classes that fill records with values, for the CPU (capture.cpp) and a device (device_capture.cpp),
// derive from CapturePlan. capture.hpp has the counters of tensors that are not stored.
//
// Threads: one plan per call. A plan waits only in the waiter, and never while it holds a reservation
// (before_wait() hands over those of earlier batches).
#pragma once

#include <ctime>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/tiles.hpp"
#include "capture/capture.hpp"
#include "capture/capture_values.hpp"
#include "ring/control_page.hpp"
#include "ring/record.hpp"
#include "ring/ring.hpp"

namespace tdcore {

/// Sizes of a batch. The payload of each tensor is padded to kTensorAlignBytes.
struct BatchSize {
  std::uint64_t align;
  std::uint64_t payload_offset;
  std::uint64_t payload_bytes;  // padded
  std::uint64_t bytes;          // size of the record
};

/// guard_bytes: number of bytes before the payload, and again after it.
inline BatchSize batch_size(std::uint64_t entries, std::uint64_t payload,
                            std::uint64_t guard_bytes) noexcept {
  const std::uint64_t head = sizeof(BatchHeader) + entries * sizeof(Entry);
  if (payload == 0) return {kTensorAlignBytes, head, 0, head};
  const std::uint64_t align = payload >= kDirectPayloadBytes ? kPageBytes : kTensorAlignBytes;
  const std::uint64_t offset = round_up(head + guard_bytes, align);
  const std::uint64_t padded = round_up(payload, align);
  return {align, offset, padded, offset + padded + guard_bytes};
}

/// If entries * sizeof(Entry) + payload is at most this number, the batch fits: everything that batch_size()
/// may add by rounding up is subtracted.
inline std::uint64_t sure_bytes(std::uint64_t record_bytes, std::uint64_t guard_bytes) noexcept {
  const std::uint64_t most = sizeof(BatchHeader) + 2 * (guard_bytes + kPageBytes);
  return record_bytes > most ? record_bytes - most : 0;
}

/// CLOCK_REALTIME.
inline std::int64_t realtime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Limits of one record.
struct BatchLimits {
  std::uint64_t record_bytes;
  std::uint64_t guard_bytes = 0;
  std::uint64_t entries = std::numeric_limits<std::uint64_t>::max();
  // Tiles (base/tiles.hpp) that are read. A tensor with more tiles is split into parts, also if only its
  // statistics are requested. prepare() is called for batches with this limit.
  std::uint64_t tiles =
      std::numeric_limits<std::uint64_t>::max();  // without this limit, there are no other limits or tails
  // For each entry, behind the entries of records without payload: what the device reads. The caller adds
  // only as many requests as fit into a record with their tails.
  std::uint64_t tail_bytes = 0;
};

class CapturePlan {
 public:
  /// Plans all requests and writes their records.
  CaptureResult run(std::span<const TensorRequest> requests);
  /// Writes a row without values for each tensor, with the reason.
  CaptureResult skip_all(std::span<const TensorRequest> requests, DropReason reason);

 protected:
  /// records: the ring for the records. counts: the ring that counts drops and stores the order of execution.
  CapturePlan(Ring& records, Ring& counts, const StepContext& step_context, RoomWaiter waiter,
              const BatchLimits& limits, std::vector<PlannedTensor>& items) noexcept
      : records_(records),
        counts_(counts),
        step_context_(step_context),
        waiter_(waiter),
        limits_(limits),
        sure_bytes_(sure_bytes(limits.record_bytes, limits.guard_bytes)),
        limited_(limits.tiles != std::numeric_limits<std::uint64_t>::max()),
        items_(items),
        time_ns_(realtime_ns()) {
    items_.clear();
  }
  ~CapturePlan() = default;

  /// Degrades or drops tensors that cannot be captured now, before room is requested. May remove all items.
  virtual void prepare() noexcept {}
  /// Called before the plan waits for room in the ring.
  virtual void before_wait() noexcept {}
  /// Writes and commits the record of items(), or drops it.
  virtual void make(const Reservation& room, const BatchSize& size) noexcept = 0;

  std::vector<PlannedTensor>& items() noexcept { return items_; }
  std::uint64_t payload() const noexcept { return payload_; }
  Ring& records() const noexcept { return records_; }

  /// Writes header and entries without values. Counts the kept tensors.
  Entry* write_rows(std::byte* record, const BatchSize& size, std::uint64_t guard) noexcept;
  /// Corrects the counts of write_rows(): these tensors are not kept.
  void uncount() noexcept;
  /// Removes the payloads from the batch: statistics are kept, and the rows have the reason.
  void degrade() noexcept;
  /// Counts the tensors of the batch that were not counted yet as not kept.
  void drop(DropReason reason) noexcept;
  /// Removes the items for which `which` is true from the batch. For a whole tensor, a row with the reason
  /// remains; for a part, the later parts are removed too.
  template <typename Which>
  void drop_some(DropReason reason, Which&& which) noexcept;

 private:
  void add_request(const TensorRequest& request, std::uint64_t index);
  void flush();
  void add_tensor(const TensorRequest& request, std::uint64_t index);
  void add_parts(PlannedTensor item, std::uint64_t item_bytes, std::uint64_t per_part);
  bool fits(std::uint64_t entries, std::uint64_t payload) const noexcept;
  bool is_over_limits(const PlannedTensor& item) const noexcept;
  void add(const PlannedTensor& item);
  void skip(PlannedTensor item, DropReason reason);
  void skip_in_place(PlannedTensor& item, DropReason reason) noexcept;
  void lose(const PlannedTensor& item, DropReason reason) noexcept;
  void give_up(std::uint64_t index, DropReason reason, std::uint64_t bytes) noexcept;
  void add_up() noexcept;
  Reservation reserve(const BatchSize& size);
  Reservation reserve_later(const BatchSize& size);
  void write_entry(const PlannedTensor& item, std::uint32_t seq, bool stats_follow,
                   Entry& entry) const noexcept;

  static constexpr std::uint64_t kNoRequest = std::numeric_limits<std::uint64_t>::max();

  Ring& records_;
  Ring& counts_;
  const StepContext& step_context_;
  const RoomWaiter waiter_;
  const BatchLimits limits_;
  const std::uint64_t sure_bytes_;
  const bool limited_;                 // whether entries and tiles are limited
  std::vector<PlannedTensor>& items_;  // the batch that is being planned
  const std::int64_t time_ns_;
  std::uint64_t payload_ = 0;           // payload bytes of items_, each padded
  std::uint64_t tiles_ = 0;             // tiles of items_, if limited
  std::uint64_t counted_ = kNoRequest;  // last request that was counted as not kept
  std::uint64_t lost_ = kNoRequest;     // last request that lost a part
  DropReason lost_reason_ = DropReason::kNone;
  CaptureResult result_;
};

template <typename Which>
void CapturePlan::drop_some(DropReason reason, Which&& which) noexcept {
  std::size_t left = 0;
  for (PlannedTensor& item : items_) {
    const bool named = which(item);
    if (named && item.parts > 1) {
      lose(item, reason);
      continue;
    }
    if (named) skip_in_place(item, reason);
    items_[left++] = item;
  }
  items_.resize(left);
  add_up();
}

}  // namespace tdcore
