// limits.hpp: sizes that memory, records and files have in common. Threads: constants.
#pragma once

#include <cstddef>

namespace tdcore {

/// The most dimensions of a tensor.
inline constexpr std::size_t kMaxDims = 16;
/// Bytes of a page of memory, and the alignment of direct writes to a disk.
inline constexpr std::size_t kPageBytes = 4096;
/// The alignment of a tensor's values within a payload.
inline constexpr std::size_t kTensorAlignBytes = 64;

}  // namespace tdcore
