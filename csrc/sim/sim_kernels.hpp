// sim_kernels.hpp: the work of the simulated device: copies, statistics, packing. The work is slow and in
// pieces, so that a reader that reads too early gets incomplete results.
//
// Statistics are bit for bit those of the CPU code over a tensor's elements in C order. Threads: any, each
// with its own SimPace.
#pragma once

#include <array>
#include <cstdint>

#include "device/launch.hpp"
#include "sim/sim_pace.hpp"

namespace tdcore {

void copy_in_pieces(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept;
/// Copies a record to the host. The first and the last word are written after all bytes between them, because
/// guards detect a copy that is late as a whole or at an end.
void copy_out(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept;

/// Runs the statistics kernel. False if counters were not zero at the start, or if the number of tiles does
/// not agree with the items.
bool run_stats(SimPace& pace, const device::Launch& launch) noexcept;
bool run_pack(SimPace& pace, const device::Launch& launch) noexcept;
/// Runs the statistics kernel with a table in its parameters.
bool run_inline(SimPace& pace, const device::InlineLaunch& launch) noexcept;

/// By entry of a record: the result to copy, or null.
using CollectedResults = std::array<const TensorStats*, device::kCollectedEntries>;

/// First part of a record of a collection: decides which batches count. Writes the claims, the outcome, the
/// kind, and the status of entries without a row.
CollectedResults choose_results(const device::Collection& collection,
                                const device::CollectedRecord& record) noexcept;
/// Second part. Each count is stored last, with release.
void copy_results(SimPace& pace, const device::Collection& collection, const device::CollectedRecord& record,
                  const CollectedResults& results) noexcept;

/// The bits of `value` as a float with these numbers of exponent and mantissa bits, rounded to nearest, ties
/// to even.
std::uint16_t narrow_float(double value, int exponent_bits, int mantissa_bits) noexcept;

}  // namespace tdcore
