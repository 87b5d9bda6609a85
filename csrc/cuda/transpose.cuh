// transpose.cuh: packs tensors whose fastest axis in memory is not their last axis, such as channels-last and
// transposed tensors, through boxes of 32 rows in shared memory.
//
// The axes up to the one with stride 1 (ItemLayout::row_axes of them) are the *rows*, the other axes the
// *columns*: in C order, element r * columns + c is in row r and column c. The lanes of a warp load a column
// of a box, whose elements are neighbors in memory, and store a row of it, whose elements are neighbors in C
// order. So loads and stores both access whole sectors of 32 bytes. Threads: all threads of a block call
// these functions together.
#pragma once

#include "cuda/rounding.hpp"
#include "cuda/stats_kernel.cuh"

namespace tdcore::device {

inline constexpr u32 kBoxRows = 32;

/// A box of a tensor, and the range of elements to pack; in shared memory, because registers are few.
struct alignas(16) Box {
  u8 units[kBoxRows * 17 * 16];
  i64 rows[kBoxRows], columns[kBoxRows];  // offsets in elements
  const ItemLayout* layout;
  const u8* data;   // of the tensor
  u8* to;           // of the range
  u64 elements;     // of the range
  u64 first;        // position in C order of the range
  u64 all_columns;  // of the tensor
  u64 first_row;    // of the range
  u64 across;       // boxes next to each other
  u64 first_box;    // of this tile
  u32 boxes;        // of this tile
  u64 start;        // position of the box in the range; wraps if the box begins before the range
  u32 width;        // columns of the box
  u32 format;       // 0: copied; otherwise kHalf or kBrainFloat: rounded
};

TDCORE_DEVICE constexpr u32 box_columns(u32 bytes) { return bytes == 16 ? 16 : 32; }

/// Offset in elements of position `index` in the axes [from, to).
TDCORE_DEVICE i64 offset_in(const ItemLayout& layout, u32 from, u32 to, u64 index) {
  i64 offset = 0;
  TDCORE_NO_UNROLL
  for (u32 axis = to; axis-- != from;) {
    const u64 extent = static_cast<u64>(layout.shape[axis]);
    const u64 outer = axis == from ? 0 : divide(index, extent);
    offset += static_cast<i64>(index - outer * extent) * layout.strides[axis];
    index = outer;
  }
  return offset;
}

/// Sets the range and the boxes of tile `tile`. One thread.
TDCORE_DEVICE void begin_boxes(Box& box, const ItemLayout& layout, const Item& item, u64 tile, u32 bytes,
                               u32 format) {
  const u64 tiles = tiles_of(item.elements);
  u64 columns = 1;
  TDCORE_NO_UNROLL
  for (u32 axis = layout.row_axes; axis < layout.ndim; ++axis)
    columns *= static_cast<u64>(layout.shape[axis]);
  box.layout = &layout;
  box.data = static_cast<const u8*>(item.data);
  box.to = static_cast<u8*>(item.packed);
  box.elements = item.elements;
  box.first = item.first_element;
  box.format = format;
  box.all_columns = columns;
  box.first_row = divide(item.first_element, columns);
  box.across = (columns + box_columns(bytes) - 1) / box_columns(bytes);
  const u64 rows = divide(item.first_element + item.elements - 1, columns) - box.first_row + 1;
  const u64 boxes = (rows + kBoxRows - 1) / kBoxRows * box.across, each = divide(boxes + tiles - 1, tiles);
  box.first_box = tile * each;
  const u64 left = box.first_box < boxes ? boxes - box.first_box : 0;
  box.boxes = static_cast<u32>(left < each ? left : each);
}

/// Sets the place of box `at`, by the lanes of the first two warps.
TDCORE_DEVICE void place_box(Box& box, u64 at, u32 bytes) {
  const u32 lane = threadIdx.x % kLanes;
  const bool is_row = threadIdx.x < kLanes;
  const u64 down = divide(at, box.across);
  const u64 row = box.first_row + down * kBoxRows, column = (at - down * box.across) * box_columns(bytes);
  const u32 row_axes = box.layout->row_axes, from = is_row ? 0 : row_axes,
            to = is_row ? row_axes : box.layout->ndim;
  (is_row ? box.rows : box.columns)[lane] = offset_in(*box.layout, from, to, (is_row ? row : column) + lane);
  if (threadIdx.x != 0) return;
  const u64 left = box.all_columns - column;
  box.start = row * box.all_columns + column - box.first;
  box.width = left < box_columns(bytes) ? static_cast<u32>(left) : box_columns(bytes);
}

/// Loads and stores of a box. The lanes of a warp write to different banks, and read from different banks.
template <class Unit>
struct BoxUnits {
  static constexpr u32 kBytes = sizeof(Unit), kColumns = box_columns(kBytes);
  static constexpr u32 kPitch = kColumns + (kBytes < 4 ? 4 / kBytes : 1);
  static constexpr u32 kEach = kBoxRows * kColumns / kThreads;  // elements of a thread
  static_assert(kBoxRows * kPitch * kBytes <= sizeof(Box::units));

  TDCORE_DEVICE static void load(Box& box) {
    const u32 lane = threadIdx.x % kBoxRows, warp = threadIdx.x / kBoxRows;
    Unit unit[kEach]{};  // loaded together
    const u64 row = box.start + lane * box.all_columns;
    const Unit* data = reinterpret_cast<const Unit*>(box.data) + box.rows[lane];
    TDCORE_ASSUME_GLOBAL(data);
    TDCORE_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      const u32 right = warp + i * kWarps;
      const bool valid = right < box.width && row + right < box.elements;
      TDCORE_NOTE_ACCESS(valid ? data + box.columns[right] : nullptr);
      if (valid) unit[i] = data[box.columns[right]];
    }
    TDCORE_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      reinterpret_cast<Unit*>(box.units)[lane * kPitch + warp + i * kWarps] = unit[i];
    }
  }

  TDCORE_DEVICE static void store(const Box& box) {
    const u32 right = threadIdx.x % kColumns;
    TDCORE_NO_UNROLL  // for fewer registers
        for (u32 i = 0; i < kEach; ++i) {
      const u32 below = threadIdx.x / kColumns + i * (kThreads / kColumns);
      const u64 at = box.start + below * box.all_columns + right;
      const bool valid = right < box.width && at < box.elements;
      const Unit unit = reinterpret_cast<const Unit*>(box.units)[below * kPitch + right];
      if constexpr (kBytes == 4 || kBytes == 8) {
        if (box.format != 0) {
          if (valid) reinterpret_cast<u16*>(box.to)[at] = rounded_bits(unit, kBytes, box.format);
          continue;
        }
      }
      Unit* to = reinterpret_cast<Unit*>(box.to);
      TDCORE_ASSUME_GLOBAL(to);
      TDCORE_NOTE_ACCESS(valid ? to + at : nullptr);
      if (valid) to[at] = unit;
    }
  }
};

template <class Act>
TDCORE_DEVICE void for_unit(u32 bytes, Act&& act) {
  if (bytes == 1) act(BoxUnits<u8>{});
  if (bytes == 2) act(BoxUnits<u16>{});
  if (bytes == 4) act(BoxUnits<u32>{});
  if (bytes == 8) act(BoxUnits<u64>{});
  if (bytes == 16) act(BoxUnits<uint4>{});
}

/// Whether transpose() packs an item: its layout has rows, and its elements are aligned.
TDCORE_DEVICE bool is_transposed(const ItemLayout* layout, const u8* data, u32 bytes) {
  return layout != nullptr && layout->row_axes != 0 && reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// Packs tile `tile` of an item: a share of the boxes, and not a range in C order.
TDCORE_DEVICE void transpose(Box& box, const ItemLayout& layout, const Item& item, u64 tile, u32 bytes,
                             u32 format) {
  __syncthreads();  // all threads have left the tile before
  if (threadIdx.x == 0) begin_boxes(box, layout, item, tile, bytes, format);
  __syncthreads();  // the range is complete
  TDCORE_NO_UNROLL
  for (u32 i = 0; i < box.boxes; ++i) {
    if (threadIdx.x < 2 * kLanes) place_box(box, box.first_box + i, bytes);
    __syncthreads();  // the place is complete
    for_unit(bytes, [&](auto units) { units.load(box); });
    __syncthreads();  // the box is complete
    for_unit(bytes, [&](auto units) { units.store(box); });
    __syncthreads();  // all threads have read the box and its place
  }
}

}  // namespace tdcore::device
