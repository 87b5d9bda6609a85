// tiles.hpp: how the kernels of a device split a tensor into tiles. The plan of a batch for a device counts
// tiles too. Plain code without host-only headers, so that it compiles for a device. Threads: constants.
#pragma once

#include "base/fixed_types.hpp"

namespace tdcore::device {

inline constexpr std::uint32_t kTileElements = 16384;

/// Tiles of a range of elements; an empty one has one tile, so that its result is written too.
TDCORE_HD constexpr std::uint64_t tiles_of(std::uint64_t elements) noexcept {
  return elements == 0 ? 1 : (elements - 1) / kTileElements + 1;
}

}  // namespace tdcore::device
