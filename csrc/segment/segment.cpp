#include "segment/segment.hpp"

#include <charconv>
#include <cstring>
#include <new>
#include <stdexcept>
#include <unordered_map>

#include "base/crc32c.hpp"
#include "ring/record_names.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors rejects longer headers
constexpr std::size_t kUsualKeyBytes = 160;

void append_number(std::string& text, std::uint64_t value) {
  char digits[20];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, result.ptr);
}

void append_signed(std::string& text, std::int64_t value) {
  if (value < 0) text.push_back('-');
  append_number(text, value < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(value)
                                : static_cast<std::uint64_t>(value));
}

/// Appends JSON string contents (RFC 8259), escaped where necessary. The text is UTF-8.
void append_escaped(std::string& text, std::string_view raw) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text.push_back('\\');
      text.push_back(c);
    } else if (byte < 0x20) {
      text.append("\\u00");
      text.push_back(kHex[byte >> 4]);
      text.push_back(kHex[byte & 15]);
    } else {
      text.push_back(c);
    }
  }
}

/// Writer of the JSON header: tensors in file order, and the gaps between them.
class HeaderWriter {
 public:
  explicit HeaderWriter(std::size_t tensors) { text_.reserve(kUsualKeyBytes * (tensors + 1)); }

  /// Adds the id of the run. Must be called first.
  void add_run(std::string_view run_id) {
    text_.append("{\"__metadata__\":{\"run_id\":\"");
    append_escaped(text_, run_id);
    text_.append("\"}");
  }

  void add_row(const IndexRow& row, std::span<const std::string> names, std::uint64_t begin) {
    pad_to(begin);
    const std::uint64_t end = begin + row.entry.payload_bytes;
    const bool pairs = row.entry.dtype == Dtype::kC128;  // not in safetensors: stored as pairs of F64
    open(key_of(row, names), pairs ? "F64" : dtype_name(row.entry.dtype));
    bool first = true;
    const auto add_extent = [&](std::uint64_t extent) {
      if (!first) text_.push_back(',');
      first = false;
      append_number(text_, extent);
    };
    if (row.entry.parts > 1) {
      add_extent(row.entry.elements);
    } else {
      for (std::size_t i = 0; i < row.entry.ndim; ++i)
        add_extent(static_cast<std::uint64_t>(row.entry.shape[i]));
    }
    if (pairs) add_extent(2);
    close(begin, end);
  }

  /// Declares the gap between the last tensor and `offset`.
  void pad_to(std::uint64_t offset) {
    if (offset == end_) return;
    open("__pad__" + std::to_string(pads_++), "U8");  // not the key of a row, because those contain '@'
    append_number(text_, offset - end_);
    close(end_, offset);
  }

  PageBuffer finish() {
    text_.push_back(text_.empty() ? '{' : '}');
    if (text_.size() == 1) text_.push_back('}');
    const std::uint64_t total = round_up(sizeof(std::uint64_t) + text_.size(), kPageBytes);
    const std::uint64_t json_bytes = total - sizeof(std::uint64_t);
    if (json_bytes > kMaxHeaderBytes) {
      throw std::length_error("a segment's header would have " + std::to_string(json_bytes) +
                              " bytes, safetensors allows " + std::to_string(kMaxHeaderBytes) +
                              "; drain fewer records at a time");
    }
    PageBuffer buffer(total);
    std::memset(buffer.data(), ' ', total);
    for (unsigned i = 0; i < 8; ++i)
      buffer.data()[i] = static_cast<std::byte>((json_bytes >> (8 * i)) & 0xff);  // little-endian
    std::memcpy(buffer.data() + sizeof(std::uint64_t), text_.data(), text_.size());
    return buffer;
  }

 private:
  std::string key_of(const IndexRow& row, std::span<const std::string> names) {
    const Entry& entry = row.entry;
    std::string key;
    if (entry.name < names.size() && !names[entry.name].empty()) {
      key = names[entry.name];
    } else {
      key.push_back('?');
      append_number(key, entry.name);
    }
    key.push_back('@');
    append_signed(key, row.step);
    if (entry.call > 0) {
      key.push_back(':');
      append_number(key, entry.call);
    }
    if (entry.parts > 1) {
      key.push_back('+');
      append_number(key, entry.part);
    }
    return unique(std::move(key));
  }

  std::string unique(std::string key) {
    auto [seen, added] = keys_.try_emplace(key, 1);
    while (!added) {
      const std::uint64_t copy = ++seen->second;
      std::string other = key + "~" + std::to_string(copy);
      if (keys_.try_emplace(other, 1).second) return other;
      seen = keys_.find(key);  // try_emplace may have moved it
    }
    return key;
  }

  void open(std::string_view key, std::string_view dtype) {
    text_.append(text_.empty() ? "{\"" : ",\"");
    append_escaped(text_, key);
    text_.append("\":{\"dtype\":\"").append(dtype).append("\",\"shape\":[");
  }

  void close(std::uint64_t begin, std::uint64_t end) {
    text_.append("],\"data_offsets\":[");
    append_number(text_, begin);
    text_.push_back(',');
    append_number(text_, end);
    text_.append("]}");
    end_ = end;
  }

  std::string text_;
  std::unordered_map<std::string, std::uint64_t> keys_;  // number of uses of each name
  std::uint64_t end_ = 0;                                // end of the last tensor, from the data's start
  std::uint64_t pads_ = 0;
};

std::span<IndexRow> rows_of(std::span<IndexRow> rows, const Batch& batch) {
  return rows.subspan(batch.first_row, batch.rows);
}

bool saved(const IndexRow& row) noexcept { return row.location != kNoPayload; }

}  // namespace

PageBuffer::PageBuffer(std::uint64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);
}

std::vector<SegmentPiece> Segment::pieces() const {
  std::vector<SegmentPiece> all;
  if (file_bytes == 0) return all;
  all.push_back({header.data(), header.size()});
  all.insert(all.end(), direct.begin(), direct.end());
  if (gathered.size() > 0) all.push_back({gathered.data(), gathered.size()});
  return all;
}

Segment plan_segment(std::span<IndexRow> rows, std::span<const Batch> batches,
                     std::span<const std::byte* const> lane_data, std::span<const std::string> names,
                     std::string_view run_id) {
  Segment segment;
  HeaderWriter header(rows.size());
  if (!run_id.empty()) header.add_run(run_id);
  std::uint64_t offset = 0;  // from the data's start
  bool any = false;

  for (const Batch& batch : batches) {
    if (!batch.direct()) continue;
    for (IndexRow& row : rows_of(rows, batch)) {
      if (!saved(row)) continue;
      row.segment_offset = offset + row.entry.payload_offset;
      header.add_row(row, names, row.segment_offset);
      any = true;
    }
    segment.direct.push_back({lane_data[batch.lane] + batch.location, batch.payload_bytes});
    offset += batch.payload_bytes;
    header.pad_to(offset);
  }

  const std::uint64_t gathered_begin = offset;
  for (const Batch& batch : batches) {
    if (batch.direct()) continue;
    for (IndexRow& row : rows_of(rows, batch)) {
      if (!saved(row)) continue;
      offset = round_up(offset, kTensorAlignBytes);
      row.segment_offset = offset;
      header.add_row(row, names, offset);
      offset += row.entry.payload_bytes;
      any = true;
    }
  }
  if (!any) return Segment{};
  header.pad_to(round_up(offset, kPageBytes));
  segment.gathered = PageBuffer(round_up(offset, kPageBytes) - gathered_begin);
  segment.header = header.finish();

  for (const Batch& batch : batches) {
    for (IndexRow& row : rows_of(rows, batch)) {
      if (!saved(row)) continue;
      const std::byte* payload = lane_data[batch.lane] + row.location;
      if (row.segment_offset >= gathered_begin && row.entry.payload_bytes > 0) {
        std::byte* const copy = segment.gathered.data() + (row.segment_offset - gathered_begin);
        std::memcpy(copy, payload, row.entry.payload_bytes);
        payload = copy;
      }
      row.crc32c = crc32c(payload, row.entry.payload_bytes);
      row.segment_offset += segment.header.size();
    }
  }
  segment.file_bytes = segment.header.size() + gathered_begin + segment.gathered.size();
  return segment;
}

}  // namespace tdcore
