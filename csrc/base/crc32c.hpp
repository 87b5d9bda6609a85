// crc32c.hpp: CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum stored for each tensor.
//
// Uses the CRC instructions of SSE4.2 or Armv8 if the machine has them (three streams at a time), and tables
// otherwise; all methods compute the same value.
// Threads: pure functions, callable from any thread. Never allocates or throws.
#pragma once

#include <cstdint>

namespace tdcore {

/// CRC-32C of `bytes` bytes. `seed` continues an earlier CRC: crc32c(b, n, crc32c(a, m)) is the CRC of a
/// followed by b.
std::uint32_t crc32c(const void* data, std::uint64_t bytes, std::uint32_t seed = 0) noexcept;

/// CRC-32C of a followed by b, from the CRCs of both and the length of b, without reading the data again.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) noexcept;

/// CRC-32C by tables, for tests and for machines without the instructions.
std::uint32_t crc32c_table(const void* data, std::uint64_t bytes, std::uint32_t seed = 0) noexcept;

}  // namespace tdcore
