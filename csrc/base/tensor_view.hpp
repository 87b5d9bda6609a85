// tensor_view.hpp: a tensor in the core: bytes, element type, shape, strides, device. Does not own the
// memory. Threads: plain data; the creator of a view keeps the memory and the shape alive while the view is
// used.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace tdcore {

/// TensorView::device for memory that the host may read immediately.
inline constexpr std::int16_t kHostMemory = -1;

struct TensorView {
  const void* data = nullptr;           // first element; may be null only when there are no elements
  const std::int64_t* shape = nullptr;  // ndim extents, all >= 0
  const std::int64_t* strides =
      nullptr;  // ndim strides in elements, which may be 0 or negative; null: C contiguous
  int ndim = 0;
  Dtype dtype = Dtype::kUnknown;
  std::int16_t device = kHostMemory;  // or the number of a CUDA device in its framework
  std::uintptr_t stream = 0;          // stream whose work computes the values; 0: the default stream
};

}  // namespace tdcore
