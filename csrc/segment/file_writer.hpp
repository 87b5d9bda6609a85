// file_writer.hpp: writes one new file from pieces of memory, without the page cache if possible.
//
// O_DIRECT accepts only pages: aligned pieces are written directly from their memory, other pieces through an
// aligned buffer, and a partial page at the end is written as a full page and cut off. If the file system
// rejects O_DIRECT (EINVAL), ordinary writes are used. The file is created at its final path and must not
// exist; the caller renames it and syncs its folder. After an error no file is left.
//
// Threads: pure function. It blocks while the disk writes, so never call it with the GIL or from the
// training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "segment/segment.hpp"

namespace tdcore {

/// Writes the file. True if O_DIRECT was used to the end. Throws std::system_error with errno and the path.
bool write_file(const std::string& path, std::span<const SegmentPiece> pieces, bool direct, bool sync);

}  // namespace tdcore
