// pack_kernel.cuh: packs the elements of many tensors, in C order, into a buffer for the copy to the host.
//
// Item::packed is 16-byte aligned, and so is every tile in it. Contiguous sources that are aligned are copied
// by loads and stores of 16 bytes, other sources by the widest unit that fits their alignment. Dense
// permutations are transposed in shared memory (transpose.cuh). Threads: all threads of a block call these
// functions together.
#pragma once

#include "cuda/transpose.cuh"

namespace tdcore::device {

/// Copies contiguous bytes from an address that is a multiple of sizeof(Unit).
template <class Unit>
TDCORE_DEVICE void copy_units(const u8* from, u8* to, u32 units) {
  constexpr u32 kAtOnce = 4;
  TDCORE_ASSUME_GLOBAL(from);
  TDCORE_NO_UNROLL
  for (u32 first = threadIdx.x; first < units; first += kAtOnce * kThreads) {
    Unit unit[kAtOnce]{};  // loaded together
    TDCORE_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 at = first + i * kThreads;
      if (at < units) unit[i] = reinterpret_cast<const Unit*>(from)[at];
    }
    TDCORE_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 at = first + i * kThreads;
      if (at < units) reinterpret_cast<Unit*>(to)[at] = unit[i];
    }
  }
}

TDCORE_DEVICE void copy_bytes(const u8* from, u8* to, u32 bytes) {
  const u32 address = static_cast<u32>(reinterpret_cast<std::uintptr_t>(from));
  const u32 unit = address % 16 == 0 ? 16 : address % 4 == 0 ? 4 : 1, units = bytes / unit;
  if (unit == 16) copy_units<uint4>(from, to, units);
  if (unit == 4) copy_units<u32>(from, to, units);
  if (unit == 1) copy_units<u8>(from, to, units);
  const u32 rest = units * unit + threadIdx.x;
  if (rest < bytes) to[rest] = from[rest];
}

/// Copies elements through strides. Neighboring threads write neighboring elements, and each thread loads
/// several elements at a time.
template <class Unit>
TDCORE_DEVICE void gather(const ElementSource& source, u8* to, u32 elements, u32 units_each) {
  constexpr u32 kAtOnce = 2;
  const u32 units = elements * units_each;
  TDCORE_NO_UNROLL
  for (u32 first = threadIdx.x; first < units; first += kAtOnce * kThreads) {
    Unit unit[kAtOnce]{};
    TDCORE_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 at = first + i * kThreads;
      if (at >= units) continue;
      const u32 element = at / units_each;
      const i64 offset = strided_position(*source.layout, source.first + element).offset * units_each;
      const Unit* from = reinterpret_cast<const Unit*>(source.data) + offset + (at - element * units_each);
      TDCORE_NOTE_ACCESS(from);
      unit[i] = *from;
    }
    TDCORE_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 at = first + i * kThreads;
      if (at < units) reinterpret_cast<Unit*>(to)[at] = unit[i];
    }
  }
}

TDCORE_DEVICE void gather_elements(const ElementSource& source, u8* to, u32 elements, u32 bytes) {
  const u32 fits = static_cast<u32>(reinterpret_cast<std::uintptr_t>(source.data)) | bytes;
  if (fits % 8 == 0) {
    gather<u64>(source, to, elements, bytes / 8);
  } else if (fits % 4 == 0) {
    gather<u32>(source, to, elements, bytes / 4);
  } else if (fits % 2 == 0) {
    gather<u16>(source, to, elements, bytes / 2);
  } else {
    gather<u8>(source, to, elements, bytes);
  }
}

/// Copies elements, rounded to 16-bit values.
TDCORE_DEVICE void pack_rounded(const ElementSource& source, u8* to, u32 elements, u32 bytes, u32 format) {
  u32 done = 0;
  TDCORE_ASSUME_GLOBAL(source.data);
  if (source.layout == nullptr && reinterpret_cast<std::uintptr_t>(source.data) % 16 == 0) {
    const u32 each = 16 / bytes, vectors = elements / each;
    TDCORE_NO_UNROLL
    for (u32 vector = threadIdx.x; vector < vectors; vector += kThreads) {
      const uint4 from = reinterpret_cast<const uint4*>(source.data)[vector];
      if (bytes == 4) {
        const u32 low = rounded_bits(from.x, 4, format) | static_cast<u32>(rounded_bits(from.y, 4, format))
                                                              << 16;
        const u32 high = rounded_bits(from.z, 4, format) | static_cast<u32>(rounded_bits(from.w, 4, format))
                                                               << 16;
        reinterpret_cast<u64*>(to)[vector] = low | static_cast<u64>(high) << 32;
      } else {
        const u32 low = rounded_bits(from.x | static_cast<u64>(from.y) << 32, 8, format);
        const u32 high = rounded_bits(from.z | static_cast<u64>(from.w) << 32, 8, format);
        reinterpret_cast<u32*>(to)[vector] = low | high << 16;
      }
    }
    done = vectors * each;
  }
  TDCORE_NO_UNROLL
  for (u32 element = done + threadIdx.x; element < elements; element += kThreads) {
    const u8* from = Walk(source, element, bytes).next(source, element, bytes);
    reinterpret_cast<u16*>(to)[element] = rounded_bits(load_bits(from, bytes), bytes, format);
  }
}

/// Packs tile `tile` of an item. kTransposes: transposed items are packed through `box`; otherwise they are
/// gathered.
template <bool kTransposes>
TDCORE_DEVICE void pack_tile(Box* box, const ItemLayout* layouts, const Item& item, u64 tile) {
  const u64 first = tile * kTileElements, left = item.elements - first;
  const u32 elements = left < kTileElements ? static_cast<u32>(left) : kTileElements;
  const Dtype dtype = static_cast<Dtype>(item.dtype), packed = static_cast<Dtype>(item.packed_dtype);
  const u32 bytes = static_cast<u32>(dtype_bytes(dtype));
  const u32 format = packed == dtype ? 0 : packed == Dtype::kF16 ? kHalf : kBrainFloat;
  const ElementSource source = element_source(layouts, item, first, bytes);
  u8* to = static_cast<u8*>(item.packed);
  if constexpr (kTransposes) {
    if (is_transposed(source.layout, source.data, bytes)) {
      transpose(*box, *source.layout, item, tile, bytes, format);
      return;
    }
  }
  to += first * dtype_bytes(packed);
  TDCORE_ASSUME_GLOBAL(to);
  if (format != 0) {
    pack_rounded(source, to, elements, bytes, format);
  } else if (source.layout == nullptr) {
    copy_bytes(source.data, to, elements * bytes);
  } else {
    gather_elements(source, to, elements, bytes);
  }
}

TDCORE_DEVICE void pack_kernel(Box* box, const Launch& launch) {
  u32 at = 0;
  for (u64 tile = launch.first_tile + blockIdx.x; tile < launch.tiles; tile += gridDim.x) {
    at = item_of(launch.items, launch.count, tile, at);
    const Item& item = launch.items[at];
    pack_tile<true>(box, launch.layouts, item, tile - item.first_tile);
  }
}

}  // namespace tdcore::device
