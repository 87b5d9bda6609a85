#include "ring/consumer/drained_batches.hpp"

#include <algorithm>
#include <cstring>

namespace tdcore {
namespace {

bool has_payload(const Entry& entry) noexcept { return entry.payload_offset != kNoPayload; }

bool reason_is_known(const Entry& entry) noexcept {
  return entry.status == EntryStatus::kAbsent ? entry.absent < AbsentReason::kCount
                                              : entry.reason < DropReason::kCount;
}

/// Whether the payload size agrees with the entry's number of elements, and a whole tensor's with its shape.
bool sizes_agree(const Entry& entry) noexcept {
  const std::size_t size = dtype_bytes(entry.dtype);
  if (size == 0 || entry.elements > ~std::uint64_t{0} / size || entry.elements * size != entry.payload_bytes)
    return false;
  if (entry.parts > 1) return entry.part < entry.parts;
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < entry.ndim; ++i) {
    std::uint64_t product = 0;
    if (entry.shape[i] < 0 ||
        __builtin_mul_overflow(elements, static_cast<std::uint64_t>(entry.shape[i]), &product))
      return false;
    elements = product;
  }
  return elements == entry.elements;
}

/// Whether the entry is valid. `payload_end`: end of the previous payload, because the payloads of a batch
/// are in the order of its entries.
bool entry_is_sound(const Entry& entry, const BatchHeader& header, std::uint64_t& payload_end) noexcept {
  if (entry.ndim > kMaxDims || entry.dtype >= Dtype::kCount || entry.status > EntryStatus::kNoRow ||
      !reason_is_known(entry) || entry.parts == 0) {
    return false;
  }
  if (!has_payload(entry)) return entry.payload_bytes == 0;
  if (entry.payload_offset < payload_end || entry.payload_offset > header.payload_bytes ||
      entry.payload_bytes > header.payload_bytes - entry.payload_offset || !sizes_agree(entry)) {
    return false;
  }
  payload_end = entry.payload_offset + entry.payload_bytes;
  return true;
}

/// Adds the batch. False, with nothing added, if the batch is invalid.
bool take_batch(const RecordView& record, const std::byte* lane_data, DrainedBatches& into) {
  BatchHeader header{};
  if (record.bytes < sizeof(header)) return false;
  std::memcpy(&header, record.data, sizeof(header));
  if (!header_is_sound(header, record.bytes)) return false;
  if (header.entries == 0) into.whole_step = std::max(into.whole_step.value_or(header.step), header.step);

  Batch batch;
  batch.first_row = into.rows.size();
  batch.lane = record.lane;
  batch.location = static_cast<std::uint64_t>(record.data - lane_data) + header.payload_offset;
  batch.payload_bytes = header.payload_bytes;
  into.rows.resize(batch.first_row + header.entries);
  std::uint64_t payload_end = 0;
  std::uint64_t payload_bytes = 0;
  std::size_t next = batch.first_row;
  for (std::size_t i = 0; i < header.entries; ++i) {
    IndexRow& row = into.rows[next];
    std::memcpy(&row.entry, record.data + sizeof(header) + i * sizeof(Entry), sizeof(Entry));
    if (!entry_is_sound(row.entry, header, payload_end)) {
      into.rows.resize(batch.first_row);
      return false;
    }
    if (row.entry.status == EntryStatus::kNoRow) continue;
    ++next;
    row.step = header.step;
    row.mode_step = header.mode_step;
    row.time_ns = header.time_ns;
    row.ticket = record.ticket;
    row.segment_offset = kNoPayload;
    row.location = has_payload(row.entry) ? batch.location + row.entry.payload_offset : kNoPayload;
    row.mode = header.mode;
    row.crc32c = 0;
    payload_bytes += row.entry.payload_bytes;
  }
  into.rows.resize(next);
  batch.rows = next - batch.first_row;
  into.batches.push_back(batch);
  into.payload_bytes += payload_bytes;
  return true;
}

bool take_document(const RecordView& record, DrainedBatches& into) {
  std::uint32_t key_bytes = 0;
  if (record.bytes < sizeof(key_bytes)) return false;
  std::memcpy(&key_bytes, record.data, sizeof(key_bytes));
  if (key_bytes > record.bytes - sizeof(key_bytes)) return false;
  const char* const text = reinterpret_cast<const char*>(record.data) + sizeof(key_bytes);
  into.documents.emplace_back(std::string(text, key_bytes),
                              std::string(text + key_bytes, record.bytes - sizeof(key_bytes) - key_bytes));
  return true;
}

void take(const RecordView& record, const std::byte* lane_data, DrainedBatches& into) {
  if (!record.torn && record.kind == RecordKind::kAborted) return;
  const bool sound =
      !record.torn && ((record.kind == RecordKind::kBatch && take_batch(record, lane_data, into)) ||
                       (record.kind == RecordKind::kDocument && take_document(record, into)));
  ++(sound ? into.records : into.torn);
}

}  // namespace

DrainedBatches drain(Consumer& consumer, std::uint64_t max_bytes, std::uint64_t max_records,
                     bool producer_dead) {
  DrainedBatches drained;
  drained.first = consumer.mark();
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  try {
    for (;;) {
      const Mark before = consumer.mark();
      if (count > 0 && count >= max_records) break;
      const std::optional<RecordView> record = consumer.next(producer_dead);
      if (!record) break;
      if (count > 0 && bytes + record->bytes > max_bytes) {
        consumer.seek(before);
        break;
      }
      bytes += record->bytes;
      ++count;
      take(*record, consumer.data()[record->lane], drained);
    }
  } catch (...) {
    consumer.seek(drained.first);
    throw;
  }
  drained.end = consumer.mark();
  return drained;
}

void release(Consumer& consumer, const DrainedBatches& drained) {
  consumer.release(drained.first, drained.end, drained.torn);
}

}  // namespace tdcore
