// capture_values.hpp: copies or reduces the values of a planned batch into its record, or both in one pass.
//
// Large batches are shared with the ring's helper threads (RingConfig::threads): whole tensors, and large
// tensors by chunks of kChunkElements, whose statistics are merged in order. The results are bit for bit
// those of one thread. Threads: any number may call, each with its own record. Allocates only while its
// per-thread list of units grows to its working size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "capture/capture.hpp"

namespace tdcore {

/// One entry of a batch: a request, or one part of it.
struct PlannedTensor {
  const TensorRequest* request = nullptr;
  std::uint64_t index = 0;  // index of the request
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  std::uint64_t payload_offset = kNoPayload;  // kNoPayload: not saved
  std::uint64_t payload_bytes = 0;
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
  bool stats = false;
  EntryStatus status = EntryStatus::kOk;
  DropReason reason = DropReason::kNone;
};

/// Fills entries[i].stats, which are zeros so far, and the payload of items[i]. Returns when all is written.
void write_values(Ring& ring, std::span<const PlannedTensor> items, Entry* entries,
                  std::byte* payload) noexcept;

}  // namespace tdcore
