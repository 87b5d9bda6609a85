#include "device/device_table.hpp"

#include <algorithm>
#include <cstring>

#include "ring/control_page.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

/// Offsets of the parts of a table, from its start.
struct Places {
  std::uint64_t stats;
  std::uint64_t layouts;
  std::uint64_t guard;
  std::uint64_t counters;
  std::uint64_t upload_end;
  std::uint64_t partials;
  std::uint64_t end;
};

std::uint64_t tile_counters(const TableSize& size) noexcept {
  return device::counters_of(size.stats_tiles, size.stats);
}

Places places_of(const TableSize& size) noexcept {
  Places at{};
  at.stats = size.packs * sizeof(device::Item);
  at.layouts = at.stats + size.stats * sizeof(device::Item);
  at.guard = round_up(at.layouts + size.layouts * sizeof(device::ItemLayout), kGuardBytes);
  at.counters = at.guard + kGuardBytes;
  at.upload_end = at.counters + (tile_counters(size) + 1) * sizeof(std::uint32_t);
  at.partials = round_up(at.upload_end, kDeviceAlignBytes);
  at.end = round_up(at.partials + size.stats_tiles * sizeof(TensorStats), kDeviceAlignBytes);
  return at;
}

template <typename T>
T* at(std::byte* base, std::uint64_t offset) noexcept {
  return reinterpret_cast<T*>(base + offset);
}

device::Item item_of(const PlannedTensor& item, std::uint32_t layout) noexcept {
  const TensorView& view = item.request->tensor;
  device::Item made{};
  made.data = view.data;
  made.elements = item.elements;
  made.layout = layout;
  made.dtype = static_cast<std::uint8_t>(view.dtype);
  made.packed_dtype = made.dtype;
  if (layout == device::kContiguous) {
    made.data = static_cast<const std::byte*>(view.data) + item.first_element * dtype_bytes(view.dtype);
  } else {
    made.first_element = item.first_element;
  }
  return made;
}

/// The item `made` of a whole dense tensor, read in the order of addresses.
device::Item flat_item(device::Item made, const PlannedTensor& item, std::int64_t lowest) noexcept {
  const TensorView& view = item.request->tensor;
  made.data =
      static_cast<const std::byte*>(view.data) + lowest * static_cast<std::int64_t>(dtype_bytes(view.dtype));
  made.layout = device::kContiguous;
  made.first_element = 0;
  return made;
}

device::Item guard_item(const std::byte* from, std::byte* to) noexcept {
  device::Item made{};
  made.data = from;
  made.elements = kGuardBytes;
  made.packed = to;
  made.layout = device::kContiguous;
  made.dtype = static_cast<std::uint8_t>(Dtype::kU8);
  made.packed_dtype = made.dtype;
  return made;
}

/// Access of the kernels to the elements of an item.
struct Access {
  bool strided = false;     // at least one kernel reads through a layout
  bool flat = false;        // the statistics read the memory of the whole tensor in the order of addresses
  std::int64_t lowest = 0;  // flat: distance in elements from the first element to the lowest address
};

Access access_of(const PlannedTensor& item) noexcept {
  Access access;
  const TensorView& view = item.request->tensor;
  if (is_contiguous(view)) return access;
  // Statistics do not depend on the order of the elements, but a range in C order is not a range of memory.
  access.flat = is_reduced(item) && item.elements == element_count(view) && is_dense(view, access.lowest);
  access.strided = is_packed(item) || !access.flat;
  return access;
}

}  // namespace

bool is_packed(const PlannedTensor& item) noexcept { return item.payload_bytes > 0; }
bool is_reduced(const PlannedTensor& item) noexcept { return item.stats && item.elements > 0; }
bool needs_layout(const PlannedTensor& item) noexcept { return access_of(item).strided; }
bool is_transposed(const PlannedTensor& item) noexcept {
  if (!is_packed(item) || !needs_layout(item)) return false;
  device::ItemLayout layout;
  join_layout(item.request->tensor, layout);
  return layout.row_axes != 0;
}

void ItemWriter::add(device::Item item) noexcept {
  item.first_tile = tiles_;
  tiles_ += device::tiles_of(item.elements);
  std::memcpy(next_++, &item, sizeof item);
}

void write_items(std::span<const PlannedTensor> items, ItemWriter& packs, ItemWriter& stats,
                 device::ItemLayout* layouts, std::byte* payload, TensorStats* first_stats) noexcept {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const PlannedTensor& item = items[i];
    if (!is_packed(item) && !is_reduced(item)) continue;
    const Access access = access_of(item);
    if (access.strided) join_layout(item.request->tensor, layouts[count]);
    device::Item made = item_of(item, access.strided ? count++ : device::kContiguous);
    made.packed = is_packed(item) ? payload + item.payload_offset : nullptr;
    made.stats = is_reduced(item)
                     ? at<TensorStats>(reinterpret_cast<std::byte*>(first_stats), i * sizeof(Entry))
                     : nullptr;
    if (is_packed(item)) packs.add(made);
    if (is_reduced(item)) stats.add(access.flat ? flat_item(made, item, access.lowest) : made);
  }
}

TableSize measure_table(std::span<const PlannedTensor> items) noexcept {
  TableSize size;
  for (const PlannedTensor& item : items) {
    if (!is_packed(item) && !is_reduced(item)) continue;
    size.packs += is_packed(item) ? 1 : 0;
    size.layouts += needs_layout(item) ? 1 : 0;
    if (!is_reduced(item)) continue;
    ++size.stats;
    size.stats_tiles += device::tiles_of(item.elements);
  }
  if (size.packs > 0) size.packs += 2;
  const Places at = places_of(size);
  size.upload_bytes = at.upload_end;
  size.device_bytes = at.end;
  return size;
}

Launches fill_table(std::span<const PlannedTensor> items, const TableSize& size,
                    const TablePlace& place) noexcept {
  const Places places = places_of(size);
  ItemWriter packs(at<device::Item>(place.host, 0));
  ItemWriter stats(at<device::Item>(place.host, places.stats));
  std::byte* const guard = place.device + places.guard;
  if (size.packs > 0) packs.add(guard_item(guard, place.payload));
  write_items(items, packs, stats, at<device::ItemLayout>(place.host, places.layouts),
              size.packs > 0 ? place.payload + kGuardBytes : nullptr, place.first_stats);
  if (size.packs > 0) packs.add(guard_item(guard, place.payload + kGuardBytes + place.payload_bytes));
  std::memset(place.host + places.guard, 0, places.upload_end - places.guard);
  std::memcpy(place.host + places.guard, &place.guard, sizeof place.guard);

  Launches launches;
  launches.pack.items = at<device::Item>(place.device, 0);
  launches.pack.layouts = at<device::ItemLayout>(place.device, places.layouts);
  launches.pack.tiles = packs.tiles();
  launches.pack.count = size.packs;
  launches.stats = launches.pack;
  launches.stats.items = at<device::Item>(place.device, places.stats);
  launches.stats.tiles = stats.tiles();
  launches.stats.count = size.stats;
  launches.stats.partials = at<TensorStats>(place.device, places.partials);
  launches.stats.finished_tiles = at<std::uint32_t>(place.device, places.counters);
  launches.stats.finished_items = launches.stats.finished_tiles + tile_counters(size);
  return launches;
}

void join_layout(const TensorView& view, device::ItemLayout& layout) noexcept {
  std::memset(&layout, 0, sizeof layout);
  std::int64_t dense = 1;  // C contiguous strides, built backwards
  std::uint32_t count = 0;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    const std::int64_t extent = view.shape[axis];
    const std::int64_t stride = view.strides == nullptr ? dense : view.strides[axis];
    dense *= extent;
    if (extent == 1) continue;
    if (count > 0 && stride == layout.shape[count - 1] * layout.strides[count - 1]) {
      layout.shape[count - 1] *= extent;
      continue;
    }
    layout.shape[count] = extent;
    layout.strides[count++] = stride;
  }
  layout.ndim = count;
  std::reverse(layout.shape, layout.shape + count);
  std::reverse(layout.strides, layout.strides + count);
  layout.row_axes = row_axes_of(layout);
}

std::uint32_t row_axes_of(const device::ItemLayout& layout) noexcept {
  constexpr std::int64_t kFew = 8;  // elements of 4 bytes in a sector of 32 bytes
  std::uint32_t rows = 0;
  std::int64_t columns = 1;
  for (std::uint32_t axis = 0; axis < layout.ndim; ++axis) {
    if (layout.strides[axis] <= 0) return 0;
    if (rows != 0) columns *= layout.shape[axis];
    if (rows == 0 && layout.strides[axis] == 1 && layout.shape[axis] >= kFew) rows = axis + 1;
  }
  return rows != layout.ndim && columns >= kFew ? rows : 0;
}

}  // namespace tdcore
