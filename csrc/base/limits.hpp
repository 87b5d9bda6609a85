// limits.hpp: sizes that are common to memory, records and files. Threads: constants.
#pragma once

#include <cstddef>

namespace tdcore {

/// Maximum number of dimensions of a tensor.
inline constexpr std::size_t kMaxDims = 16;
/// Size of a memory page in bytes, and the alignment of direct writes to a disk.
inline constexpr std::size_t kPageBytes = 4096;
/// Alignment of a tensor's values within a payload, in bytes.
inline constexpr std::size_t kTensorAlignBytes = 64;

}  // namespace tdcore
