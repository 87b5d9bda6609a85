// record_names.hpp: names, for users, of the numbers in record.hpp. Threads: constants.
#pragma once

#include <cstddef>

#include "ring/record.hpp"

namespace tdcore {

/// "ring_full", ...; nullptr for kNone and numbers out of range.
constexpr const char* drop_reason_name(DropReason reason) noexcept {
  constexpr const char* kNames[] = {nullptr,         "ring_full",  "too_large",    "unsupported_dtype",
                                    "sparse",        "no_storage", "unreadable",   "names_full",
                                    "degraded",      "torn",       "io_error",     "unsupported_device",
                                    "graph_capture", "arena_full", "device_error", "unfit_name"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<std::size_t>(DropReason::kCount));
  return reason < DropReason::kCount ? kNames[static_cast<std::size_t>(reason)] : nullptr;
}

/// "no_backward", ...; nullptr for kNone and numbers out of range.
constexpr const char* absent_reason_name(AbsentReason reason) noexcept {
  constexpr const char* kNames[] = {nullptr,       "no_backward",    "not_stepped", "cleared",
                                    "accumulated", "scaler_skipped", "unknown"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<std::size_t>(AbsentReason::kCount));
  return reason < AbsentReason::kCount ? kNames[static_cast<std::size_t>(reason)] : nullptr;
}

/// The safetensors name of an element type ("C128" is tdcore's); nullptr for kUnknown and numbers out of
/// range.
constexpr const char* dtype_name(Dtype dtype) noexcept {
  constexpr const char* kNames[] = {nullptr, "BOOL", "U8",      "I8",      "U16", "I16",
                                    "U32",   "I32",  "U64",     "I64",     "F16", "BF16",
                                    "F32",   "F64",  "F8_E4M3", "F8_E5M2", "C64", "C128"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<std::size_t>(Dtype::kCount));
  return dtype < Dtype::kCount ? kNames[static_cast<std::size_t>(dtype)] : nullptr;
}

}  // namespace tdcore
