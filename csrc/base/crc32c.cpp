#include "base/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace tdcore {
namespace {

// Polynomials are stored bit-reversed, as in the CRC instructions: bit 31 is the coefficient of x^0.
constexpr std::uint32_t kPolynomial = 0x82f63b78;
constexpr std::uint32_t kOne = 0x80000000;

/// a * b modulo the CRC polynomial.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (std::uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
    }
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

/// x^(8 * bytes) modulo the CRC polynomial: the factor by which `bytes` zero bytes multiply a CRC register.
constexpr std::uint32_t zeros_operator(std::uint64_t bytes) noexcept {
  std::uint32_t power = kOne >> 8;  // x^8
  std::uint32_t result = kOne;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) {
      result = multiply(power, result);
    }
    power = multiply(power, power);
  }
  return result;
}

using Slices8 = std::array<std::array<std::uint32_t, 256>, 8>;
using Slices4 = std::array<std::array<std::uint32_t, 256>, 4>;

/// kByteTables[k][v]: the register after byte v and k zero bytes.
constexpr Slices8 make_byte_tables() noexcept {
  Slices8 tables{};
  for (std::uint32_t value = 0; value < 256; ++value) {
    std::uint32_t crc = value;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    }
    tables[0][value] = crc;
  }
  for (std::size_t slice = 1; slice < 8; ++slice) {
    for (std::size_t value = 0; value < 256; ++value) {
      const std::uint32_t previous = tables[slice - 1][value];
      tables[slice][value] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Slices8 kByteTables = make_byte_tables();

/// Register after n bytes; registers are not inverted here.
std::uint32_t run_table(const unsigned char* at, std::uint64_t bytes, std::uint32_t crc) noexcept {
  for (; bytes >= 8; bytes -= 8, at += 8) {
    // Byte by byte, so that the code is also correct on a big-endian machine.
    crc ^= static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8 |
           static_cast<std::uint32_t>(at[2]) << 16 | static_cast<std::uint32_t>(at[3]) << 24;
    crc = kByteTables[7][crc & 0xff] ^ kByteTables[6][(crc >> 8) & 0xff] ^
          kByteTables[5][(crc >> 16) & 0xff] ^ kByteTables[4][crc >> 24] ^ kByteTables[3][at[4]] ^
          kByteTables[2][at[5]] ^ kByteTables[1][at[6]] ^ kByteTables[0][at[7]];
  }
  for (; bytes != 0; --bytes, ++at) {
    crc = (crc >> 8) ^ kByteTables[0][(crc ^ *at) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__) || defined(__aarch64__)
#define TDCORE_CRC_HARDWARE 1

#if defined(__x86_64__)
#if defined(__clang__) && __clang_major__ >= 14  // a separate feature there
#define TDCORE_CRC_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define TDCORE_CRC_TARGET __attribute__((target("sse4.2")))
#endif
TDCORE_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::uint64_t word) noexcept {
  return _mm_crc32_u64(crc, word);
}
TDCORE_CRC_TARGET inline std::uint64_t step1(std::uint64_t crc, unsigned char byte) noexcept {
  return _mm_crc32_u8(static_cast<std::uint32_t>(crc), byte);
}
bool has_hardware() noexcept {
  __builtin_cpu_init();  // not every run-time library calls it before constructors
  return __builtin_cpu_supports("sse4.2") != 0;
}
#else
#if defined(__clang__)
#define TDCORE_CRC_TARGET __attribute__((target("crc")))
#else
#define TDCORE_CRC_TARGET __attribute__((target("+crc")))
#endif
TDCORE_CRC_TARGET inline std::uint64_t step8(std::uint64_t crc, std::uint64_t word) noexcept {
  return __crc32cd(static_cast<std::uint32_t>(crc), word);
}
TDCORE_CRC_TARGET inline std::uint64_t step1(std::uint64_t crc, unsigned char byte) noexcept {
  return __crc32cb(static_cast<std::uint32_t>(crc), byte);
}
bool has_hardware() noexcept { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

inline std::uint64_t load8(const unsigned char* at) noexcept {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

/// kLong, kShort: bytes per stream when three streams run in parallel.
constexpr std::uint64_t kLong = 8192;
constexpr std::uint64_t kShort = 256;

/// Shift tables: multiplication by zeros_operator(bytes) in four look-ups.
constexpr Slices4 make_shift(std::uint64_t bytes) noexcept {
  Slices4 tables{};
  const std::uint32_t op = zeros_operator(bytes);
  for (std::size_t slice = 0; slice < 4; ++slice) {
    for (int bit = 0; bit < 8; ++bit) {  // multiplication is linear: first single bits, then their sums
      const std::size_t value = std::size_t{1} << bit;
      tables[slice][value] = multiply(op, static_cast<std::uint32_t>(value) << (8 * slice));
      for (std::size_t low = 1; low < value; ++low) {
        tables[slice][value + low] = tables[slice][value] ^ tables[slice][low];
      }
    }
  }
  return tables;
}

constexpr Slices4 kLongShift = make_shift(kLong);
constexpr Slices4 kShortShift = make_shift(kShort);

inline std::uint64_t shift(const Slices4& tables, std::uint64_t crc) noexcept {
  return tables[0][crc & 0xff] ^ tables[1][(crc >> 8) & 0xff] ^ tables[2][(crc >> 16) & 0xff] ^
         tables[3][(crc >> 24) & 0xff];
}

TDCORE_CRC_TARGET const unsigned char* run_three(const unsigned char* at, std::uint64_t& bytes,
                                                 std::uint64_t& crc, std::uint64_t stream,
                                                 const Slices4& tables) noexcept {
  for (; bytes >= 3 * stream; bytes -= 3 * stream, at += 3 * stream) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::uint64_t offset = 0; offset < stream; offset += 8) {
      crc = step8(crc, load8(at + offset));
      second = step8(second, load8(at + stream + offset));
      third = step8(third, load8(at + 2 * stream + offset));
    }
    crc = shift(tables, crc) ^ second;
    crc = shift(tables, crc) ^ third;
  }
  return at;
}

TDCORE_CRC_TARGET std::uint32_t run_hardware(const unsigned char* at, std::uint64_t bytes,
                                             std::uint32_t start) noexcept {
  std::uint64_t crc = start;
  at = run_three(at, bytes, crc, kLong, kLongShift);
  at = run_three(at, bytes, crc, kShort, kShortShift);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    crc = step8(crc, load8(at));
  }
  for (; bytes != 0; --bytes, ++at) {
    crc = step1(crc, *at);
  }
  return static_cast<std::uint32_t>(crc);
}
#endif

}  // namespace

std::uint32_t crc32c_table(const void* data, std::uint64_t bytes, std::uint32_t seed) noexcept {
  return ~run_table(static_cast<const unsigned char*>(data), bytes, ~seed);
}

std::uint32_t crc32c(const void* data, std::uint64_t bytes, std::uint32_t seed) noexcept {
#if defined(TDCORE_CRC_HARDWARE)
  static const bool kHardware = has_hardware();
  if (kHardware) {
    return ~run_hardware(static_cast<const unsigned char*>(data), bytes, ~seed);
  }
#endif
  return crc32c_table(data, bytes, seed);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) noexcept {
  return multiply(zeros_operator(bytes_b), crc_a) ^ crc_b;
}

}  // namespace tdcore
