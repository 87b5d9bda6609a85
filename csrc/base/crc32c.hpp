// crc32c.hpp: CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum stored for each tensor.
//
// Uses the CRC instructions of SSE4.2 or Armv8 when the machine has them (three streams at a time),
// tables otherwise; all ways give the same value.
// Threads: pure functions, callable from any thread. Never allocates or throws.
#pragma once

#include <cstdint>

namespace tdcore {

/// CRC-32C of `bytes` bytes. `seed` continues an earlier one: crc32c(b, n, crc32c(a, m)) is that of a then b.
std::uint32_t crc32c(const void* data, std::uint64_t bytes, std::uint32_t seed = 0) noexcept;

/// CRC-32C of a then b from the values of both and the length of b, without reading either again.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) noexcept;

/// The table way, for tests and for machines without the instructions.
std::uint32_t crc32c_table(const void* data, std::uint64_t bytes, std::uint32_t seed = 0) noexcept;

}  // namespace tdcore
