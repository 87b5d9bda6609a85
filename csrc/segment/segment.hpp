// segment.hpp: layout of the payloads of one drain as a safetensors file.
//
//     u64 header bytes | JSON, padded with spaces to a page | payloads on pages of the ring | small payloads
//
// Payloads of direct batches (drained_batches.hpp) are not copied: they are written from the ring, page by
// page, so that O_DIRECT can be used. Other payloads are gathered into one page-aligned buffer. safetensors
// allows no gaps, so every gap is declared as a U8 tensor "__pad__N". Every piece and the file itself are
// multiples of a page. Keys: name@step, ":call" if call > 0, "+part" if the tensor was split into parts,
// "~2", "~3"... for repetitions.
//
// Threads: pure functions of their input. The ring's payloads must not be released before the file is
// written.
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

/// A buffer on a page boundary.
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
  PageBuffer gathered;               // after the direct pieces
  std::uint64_t file_bytes = 0;      // 0: there is no payload, and no file

  std::vector<SegmentPiece> pieces() const;  // the whole file, in file order
};

/// Plans a file, and sets segment_offset and crc32c of every row with a payload. lane_data: Consumer::data().
/// names: by id; a row whose id is missing is named "?<id>". run_id: stored in the metadata, so that readers
/// reject a segment of another run; may be empty. Throws std::bad_alloc, or std::length_error above
/// safetensors' header limit (100 MB).
Segment plan_segment(std::span<IndexRow> rows, std::span<const Batch> batches,
                     std::span<const std::byte* const> lane_data, std::span<const std::string> names,
                     std::string_view run_id = {});

}  // namespace tdcore
