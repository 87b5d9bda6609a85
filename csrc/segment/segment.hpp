// segment.hpp: lays out the payloads of one drain as a safetensors file.
//
//     u64 header bytes | JSON, padded with spaces to a page | payloads on pages of the ring | small payloads
//
// Payloads of direct batches (drained_batches.hpp) are not copied: the file takes them from the ring, page
// for page, so O_DIRECT works. The others are gathered into one owned, page-aligned buffer. safetensors
// allows no gaps, so every gap is declared as a U8 tensor "__pad__N". Every piece and the file itself are
// multiples of a page. Keys: name@step, ":call" when call > 0, "+part" when the tensor came in parts, "~2",
// "~3"... for repetitions. Threads: pure functions of their input. The ring's payloads must not be released
// before the file is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ring/consumer/drained_batches.hpp"

namespace tdcore {

/// Bytes on a page boundary, owned.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::uint64_t bytes);  // zeroed, bytes a multiple of a page; throws std::bad_alloc
  std::byte* data() const noexcept { return data_.get(); }
  std::uint64_t size() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::uint64_t bytes_ = 0;
};

struct SegmentPiece {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

struct Segment {
  PageBuffer header;                 // length word, JSON, spaces
  std::vector<SegmentPiece> direct;  // in the ring, in file order, after the header
  PageBuffer gathered;               // after them
  std::uint64_t file_bytes = 0;      // 0: there is no payload, and no file

  std::vector<SegmentPiece> pieces() const;  // all of it, in file order
};

/// Fills segment_offset and crc32c of every row with a payload. lane_data: as Consumer::data(). `names` by
/// id; a row whose id has no name there is called "?<id>". `run_id`: for the metadata, so that readers refuse
/// a segment of another run; none when empty. Throws std::bad_alloc, or std::length_error above
/// safetensors' header limit (100 MB).
Segment plan_segment(std::span<IndexRow> rows, std::span<const Batch> batches,
                     std::span<const std::byte* const> lane_data, std::span<const std::string> names,
                     std::string_view run_id = {});

}  // namespace tdcore
