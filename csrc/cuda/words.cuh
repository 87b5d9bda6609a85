// words.cuh: reads of a tensor's elements: 16 bytes at a time from contiguous memory, one by one through
// strides.
//
// A *vector* is 16 bytes: 16 / kBytes consecutive elements in C order. The elements of a thread do not depend
// on the memory layout, so the results do not depend on it either. Threads: pure functions of the calling
// thread.
#pragma once

#include "base/scalar_elements.hpp"
#include "device/launch.hpp"

#if defined(__CUDACC__)
#if defined(__CUDA_FTZ) && __CUDA_FTZ
#error "compile without -ftz=true: subnormal values are counted and summed as they are"
#endif
#define TDCORE_DEVICE __device__ __forceinline__
// Placed before a loop. Macros instead of pragmas, because a compiler for CPUs would warn about the pragmas.
#define TDCORE_UNROLL _Pragma("unroll")
#define TDCORE_UNROLL_4 _Pragma("unroll 4")
#define TDCORE_NO_UNROLL _Pragma("unroll 1")
#define TDCORE_SHARED(Type, name) __shared__ Type name
#define TDCORE_NOTE_ACCESS(pointer)  // of the calling thread, or null; the tests count sectors
#define TDCORE_ASSUME_GLOBAL(pointer) __builtin_assume(__isGlobal(pointer))  // avoids a check at every access
#elif !defined(TDCORE_DEVICE)
#error "for nvcc and NVRTC; on a CPU, include tests/cpp/gpu_emulation.hpp before"
#endif

// Whether the device has few units for float64: 2 or 4 per multiprocessor instead of 32 or 64. PTX for
// several architectures (of compute_75) is compiled for these devices.
#if !defined(TDCORE_FEW_FLOAT64_UNITS)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 700 || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || \
    __CUDA_ARCH__ == 1000
#define TDCORE_FEW_FLOAT64_UNITS 0
#else
#define TDCORE_FEW_FLOAT64_UNITS 1
#endif
#endif

namespace tdcore::device {

inline constexpr bool kFewFloat64Units = TDCORE_FEW_FLOAT64_UNITS != 0;

#if defined(__CUDACC__)
/// Stores a word with release for the whole system, including the host. Pairs with the acquire load in look()
/// (lane_reader.cpp).
TDCORE_DEVICE void store_release_system(u64* word, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
#endif

struct Words {
  u32 word[4];
};

template <u32 kBytes>
inline constexpr u32 kPerVector = 16 / kBytes;

/// Source of the elements of an item.
struct ElementSource {
  const u8* data;            // contiguous: address of element 0 of the range; strided: of the tensor
  const ItemLayout* layout;  // null: contiguous
  u64 first;                 // strided: position in C order of element 0
};

/// The source of elements [first_element, ...) of an item.
TDCORE_DEVICE ElementSource element_source(const ItemLayout* layouts, const Item& item, u64 first_element,
                                           u32 bytes) {
  const u8* data = static_cast<const u8*>(item.data);
  if (item.layout == kContiguous) return {data + first_element * bytes, nullptr, 0};
  return {data, layouts + item.layout, item.first_element + first_element};
}

// ---- strides --------------------------------------------------------------------------------------------

struct StridedPosition {
  i64 offset;  // in elements
  u64 left;    // elements from here to the end of the innermost dimension
};

TDCORE_DEVICE u64 divide(u64 value, u64 by) {
  const bool narrow = ((value | by) >> 32) == 0;  // 32-bit division is several times faster on every GPU
  return narrow ? static_cast<u32>(value) / static_cast<u32>(by) : value / by;
}

TDCORE_DEVICE StridedPosition strided_position(const ItemLayout& layout, u64 index) {
  StridedPosition position{0, 1};
  TDCORE_NO_UNROLL
  for (u32 dim = layout.ndim; dim-- != 0;) {
    const u64 extent = static_cast<u64>(layout.shape[dim]);
    const u64 outer = dim == 0 ? 0 : divide(index, extent);
    const u64 inner = index - outer * extent;
    if (dim + 1 == layout.ndim) position.left = extent - inner;
    position.offset += static_cast<i64>(inner) * layout.strides[dim];
    index = outer;
  }
  return position;
}

/// Walk through the elements of a source in order.
class Walk {
 public:
  TDCORE_DEVICE Walk(const ElementSource& source, u32 index, u32 bytes) {
    if (source.layout == nullptr) {
      at_ = source.data + static_cast<u64>(index) * bytes;
      step_ = bytes;
      left_ = ~0u;
      return;
    }
    const u32 ndim = source.layout->ndim;
    step_ = ndim == 0 ? 0 : source.layout->strides[ndim - 1] * bytes;
    left_ = 0;
  }
  /// Address of element `index`, one more than at the previous call.
  TDCORE_DEVICE const u8* next(const ElementSource& source, u32 index, u32 bytes) {
    if (left_ == 0) {
      const StridedPosition position = strided_position(*source.layout, source.first + index);
      at_ = source.data + position.offset * static_cast<i64>(bytes);
      left_ = position.left < ~0u ? static_cast<u32>(position.left) : ~0u;
    }
    const u8* element = at_;
    at_ += step_;
    --left_;
    return element;
  }

 private:
  const u8* at_;
  i64 step_;
  u32 left_;  // elements to the end of the row
};

// ---- contiguous memory, aligned to the element at least ---------------------------------------------------

/// Loads `valid` elements (at least 1); the other elements of the vector are 0.
template <u32 kBytes>
TDCORE_DEVICE Words load_vector(const u8* from, u32 valid) {
  constexpr u32 kEach = kPerVector<kBytes>;
  TDCORE_ASSUME_GLOBAL(from);
  if (valid == kEach && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    return {{all.x, all.y, all.z, all.w}};
  }
  Words words{};
  TDCORE_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    if (i >= valid) continue;
    if constexpr (kBytes == 8) {
      words.word[2 * i] = reinterpret_cast<const u32*>(from)[2 * i];
      words.word[2 * i + 1] = reinterpret_cast<const u32*>(from)[2 * i + 1];
    } else if constexpr (kBytes == 4) {
      words.word[i] = reinterpret_cast<const u32*>(from)[i];
    } else if constexpr (kBytes == 2) {
      words.word[i / 2] |= static_cast<u32>(reinterpret_cast<const u16*>(from)[i]) << (16 * (i % 2));
    } else {
      words.word[i / 4] |= static_cast<u32>(from[i]) << (8 * (i % 4));
    }
  }
  return words;
}

/// Number of elements of vector `vector` in a range of `elements` elements.
template <u32 kBytes>
TDCORE_DEVICE u32 valid_in(u32 vector, u32 elements) {
  const u32 left = elements - vector * kPerVector<kBytes>;
  return left < kPerVector<kBytes> ? left : kPerVector<kBytes>;
}

/// The bits of element `index` of a vector.
template <class Raw>
TDCORE_DEVICE Raw element_of(const Words& words, u32 index) {
  constexpr u32 kBytes = sizeof(Raw);
  if constexpr (kBytes == 8) {
    return static_cast<Raw>(words.word[2 * index] | static_cast<u64>(words.word[2 * index + 1]) << 32);
  } else {
    return static_cast<Raw>(words.word[index * kBytes / 4] >> (8 * (index * kBytes % 4)));
  }
}

}  // namespace tdcore::device
