// file_writer.hpp: writes one new file from pieces of memory, past the page cache where that works.
//
// O_DIRECT takes only pages: aligned pieces go to the kernel from where they lie, others through an aligned
// buffer, and a tail that is not a page is written as a page and cut off. A file system that refuses (EINVAL)
// gets ordinary writes. The file is made in place and must not exist; renaming it and syncing its folder are
// the caller's. After an error no file is left. Threads: pure function. It blocks for as long as the disk
// takes: never call it with the GIL or from the training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "segment/segment.hpp"

namespace tdcore {

/// True when O_DIRECT was used to the end. Throws std::system_error with errno and the path.
bool write_file(const std::string& path, std::span<const SegmentPiece> pieces, bool direct, bool sync);

}  // namespace tdcore
