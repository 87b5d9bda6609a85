// tiles.hpp: the tiles into which the kernels of a device split a tensor. The plan of a batch for a device
// also counts tiles. Plain code without host-only headers, so that it also compiles for a device. Threads:
// constants.
#pragma once

#include "base/fixed_types.hpp"

namespace tdcore::device {

inline constexpr std::uint32_t kTileElements = 16384;

/// Number of tiles of a range of elements. An empty range has one tile, so that its result is written too.
TDCORE_HD constexpr std::uint64_t tiles_of(std::uint64_t elements) noexcept {
  return elements == 0 ? 1 : (elements - 1) / kTileElements + 1;
}

}  // namespace tdcore::device
