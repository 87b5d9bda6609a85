// drained_batches.hpp: records that one drain of the ring returned: rows, places of payloads, documents.
//
// drain() takes committed records up to its limits, and checks and copies every entry into one array of
// IndexRow. A batch with impossible sizes, offsets, shapes or types is counted as torn, and its contents are
// not used. Payloads stay in the ring until release(), so that they can be hashed and written from there.
// Threads: as for Consumer. A DrainedBatches is plain data; its payload places are valid until its release.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ring/consumer/consumer.hpp"
#include "ring/record.hpp"

namespace tdcore {

/// One entry with the fields of its batch, in the layout that Python reads (ROW_DTYPE).
struct IndexRow {
  Entry entry;
  std::int64_t step;
  std::int64_t mode_step;
  std::int64_t time_ns;
  std::uint64_t ticket;          // ticket of the record, full count
  std::uint64_t segment_offset;  // byte in the planned segment file; kNoPayload without payload
  std::uint64_t location;  // byte of the payload in the data of the batch's lane; kNoPayload without payload
  std::uint32_t mode;
  std::uint32_t crc32c;  // CRC of the payload, set by plan_segment(); 0 without payload
};
static_assert(std::is_trivially_copyable_v<IndexRow> && sizeof(IndexRow) % 8 == 0);

/// One batch: its rows, and the range of its payload in the data of a lane.
struct Batch {
  std::size_t first_row = 0;
  std::size_t rows = 0;
  std::uint32_t lane = 0;      // index in Consumer::data()
  std::uint64_t location = 0;  // first byte in the lane's data
  std::uint64_t payload_bytes = 0;

  /// Whether the payload is long enough and page-aligned, so that it can be written directly from the ring.
  bool direct() const noexcept {
    return payload_bytes >= kDirectPayloadBytes && location % kPageBytes == 0 &&
           payload_bytes % kPageBytes == 0;
  }
};

struct DrainedBatches {
  Mark first;
  Mark end;
  std::uint64_t records = 0;               // batches and documents
  std::uint64_t torn = 0;                  // uncommitted at the producer's death, or corrupt
  std::uint64_t payload_bytes = 0;         // sum over rows
  std::optional<std::int64_t> whole_step;  // the highest step that a marker marks as complete
  std::vector<IndexRow> rows;
  std::vector<Batch> batches;
  std::vector<std::pair<std::string, std::string>> documents;  // key, bytes
};

/// Takes at most max_records records with at most max_bytes in total, but at least one record if there is
/// one. Stops when no lane has a committed record; see consumer.hpp for producer_dead. Takes nothing if it
/// throws std::bad_alloc.
DrainedBatches drain(Consumer& consumer, std::uint64_t max_bytes, std::uint64_t max_records,
                     bool producer_dead);

/// Releases the space and counts the torn records. Throws like Consumer::release().
void release(Consumer& consumer, const DrainedBatches& drained);

}  // namespace tdcore
