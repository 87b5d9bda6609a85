// dtype.hpp: the element types of tensors, with the numbers that records contain.
// Plain code without host-only headers, so that it also compiles for a device. Threads: constants.
#pragma once

#include "base/fixed_types.hpp"

namespace tdcore {

/// Element types, numbered as stored. Append only. The names are those of safetensors, where it has the type.
enum class Dtype : std::uint8_t {
  kUnknown = 0,
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
  kC64 = 16,
  kC128 = 17,  // no safetensors type: stored as F64 with a trailing dimension of 2
  kCount = 18,
};

/// Bytes per element; 0 for kUnknown.
TDCORE_HD constexpr std::size_t dtype_bytes(Dtype dtype) noexcept {
  // One octal digit per type, kUnknown last: 0, or one more than log2 of the bytes. On a device, an array
  // would be copied to the stack of every thread.
  constexpr std::uint64_t kDigits = 0541143224433221110;
  static_assert(static_cast<int>(Dtype::kCount) == 18);
  const unsigned digit = static_cast<unsigned>(kDigits >> (3 * static_cast<unsigned>(dtype))) & 7;
  return (std::size_t{1} << digit) / 2;
}

}  // namespace tdcore
