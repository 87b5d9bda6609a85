// bindings/counters.hpp: totals and texts of the control page as Python objects, for both sides of the ring.
// Threads: any, with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "ring/counters.hpp"
#include "ring/record_names.hpp"

namespace tdcore {

/// Text from shared memory: bytes that are not UTF-8 become U+FFFD.
inline pybind11::object decode_utf8(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(decoded);
}

inline pybind11::dict counters_dict(const Counters& counters) {
  pybind11::dict drops;
  for (std::size_t i = 0; i < counters.drops.size(); ++i) {
    const char* const name = drop_reason_name(static_cast<DropReason>(i));
    if (name == nullptr || (counters.drops[i].tensors == 0 && counters.drops[i].bytes == 0)) continue;
    pybind11::dict drop;
    drop["tensors"] = counters.drops[i].tensors;
    drop["bytes"] = counters.drops[i].bytes;
    drops[name] = drop;
  }
  pybind11::dict result;
  result["captures"] = counters.captures;
  result["tensors"] = counters.tensors;
  result["payload_bytes"] = counters.payload_bytes;
  result["capture_ns"] = counters.capture_ns;
  result["drops"] = drops;
  return result;
}

}  // namespace tdcore
