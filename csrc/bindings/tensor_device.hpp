// bindings/tensor_device.hpp: the device and the stream of a tensor on a device, for the readers of
// TensorReader. Threads: any, with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/dlpack.hpp"

namespace tdcore {

// The number of the default stream in CUDA, DLPack and __cuda_array_interface__. It waits for the other
// (blocking) streams of the process. tdcore reads on this stream, and names it to producers.
inline constexpr long kDefaultStream = 1;

/// The handle of a stream of a framework or a producer.
inline std::uintptr_t stream_handle(std::uintptr_t stream) noexcept {
  return stream == kDefaultStream ? 0 : stream;
}

/// Result of __dlpack_device__(); type -1 if there is none. Clears errors, except interrupts.
dlpack::Device device_by_dlpack(PyObject* object);

/// Device of an object with __cuda_array_interface__, which does not contain the device; -1 if no attribute
/// has it. A wrong device would break the CUDA context of the training.
std::int64_t device_of_interface(PyObject* object);

}  // namespace tdcore
