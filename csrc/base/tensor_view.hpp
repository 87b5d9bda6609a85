// tensor_view.hpp: a tensor in the core: bytes, element type, shape, strides, device. Owns nothing.
// Threads: plain data; the creator of a view keeps the memory and the shape alive while the view is used.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace tdcore {

/// TensorView::device of memory that the host may read immediately.
inline constexpr std::int16_t kHostMemory = -1;

struct TensorView {
  const void* data = nullptr;           // first element; may be null only when there are no elements
  const std::int64_t* shape = nullptr;  // ndim extents, all >= 0
  const std::int64_t* strides =
      nullptr;  // ndim strides in elements (0 and negative are real), or null: C contiguous
  int ndim = 0;
  Dtype dtype = Dtype::kUnknown;
  std::int16_t device = kHostMemory;  // or the number of a CUDA device, as its framework counts them
  std::uintptr_t stream = 0;  // of a device: behind whose work the values are there; 0: the default one
};

}  // namespace tdcore
