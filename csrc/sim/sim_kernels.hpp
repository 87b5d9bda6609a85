// sim_kernels.hpp: the work of the simulated device: copies, statistics, packing; slowly and in pieces, so
// that a reader that reads too early gets half of it.
//
// Statistics are those of the CPU path over a tensor's elements in C order, bit for bit. Threads: any; each
// brings a pace of its own.
#pragma once

#include <cstdint>

#include "device/launch.hpp"
#include "sim/sim_pace.hpp"

namespace tdcore {

void copy_in_pieces(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept;
/// A record's way to the host: the first and the last word come after all between them. Guards find a copy
/// that is late as a whole or at an end; so late it may be here.
void copy_out(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept;

/// False when the counters that must be zero at the start were not, or no tile count agrees with the items.
bool run_stats(SimPace& pace, const device::Launch& launch) noexcept;
bool run_pack(SimPace& pace, const device::Launch& launch) noexcept;

/// The bits of `value` as a float of that many exponent and mantissa bits, rounded to nearest, ties to even.
std::uint16_t narrow_float(double value, int exponent_bits, int mantissa_bits) noexcept;

}  // namespace tdcore
