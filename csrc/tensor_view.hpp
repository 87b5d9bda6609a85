// tensor_view.hpp: a tensor as the core sees it: bytes, element type, shape, strides. Owns nothing.
// Threads: plain data; whoever made it keeps the memory and the shape alive for as long as it is used.
#pragma once

#include <cstdint>

#include "record.hpp"

namespace tdcore {

struct TensorView {
  const void* data = nullptr;           // first element; may be null only when there are no elements
  const std::int64_t* shape = nullptr;  // ndim extents, all >= 0
  const std::int64_t* strides =
      nullptr;  // ndim strides in elements (0 and negative are real), or null: C contiguous
  int ndim = 0;
  Dtype dtype = Dtype::kUnknown;
};

}  // namespace tdcore
