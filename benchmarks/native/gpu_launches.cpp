// gpu_launches.cpp: items, layouts and scratch of a launch.
#include "gpu_launches.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "device/device_table.hpp"

namespace tdcore::bench {
namespace {

constexpr std::uint64_t kAlign = 256;
constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 20;  // contents of smaller lists are kept

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::uint64_t storage_bytes(const Shape& shape) {
  return shape.storage_elements() * dtype_bytes(shape.dtype);
}

/// Fills with random bits, which include all special values of small types. Wide floats are a mixture of
/// ordinary numbers and random bits. Booleans are 0 or 1.
void fill(std::vector<std::byte>& bytes, Dtype dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = random();
    if (dtype == Dtype::kF32 && word % 8 != 0) {  // two floats from -2 to 2
      const float pair[] = {static_cast<float>(static_cast<std::int32_t>(word)) * 0x1p-30F,
                            static_cast<float>(static_cast<std::int32_t>(word >> 32)) * 0x1p-30F};
      std::memcpy(&word, pair, sizeof word);
    } else if (dtype == Dtype::kF64 && word % 8 != 0) {
      const double value = static_cast<double>(static_cast<std::int64_t>(word)) * 0x1p-62;
      std::memcpy(&word, &value, sizeof word);
    } else if (dtype == Dtype::kBool) {
      word &= 0x0101010101010101U;
    }
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

/// The layout without dimensions of extent 1, and with adjacent contiguous dimensions merged.
device::ItemLayout layout_of(const Shape& shape) {
  device::ItemLayout layout{};
  for (std::size_t i = 0; i < shape.extents.size(); ++i) {
    if (shape.extents[i] == 1) continue;
    const std::uint32_t last = layout.ndim - 1;
    if (layout.ndim > 0 && layout.strides[last] == shape.strides[i] * shape.extents[i]) {
      layout.shape[last] *= shape.extents[i];
      layout.strides[last] = shape.strides[i];
    } else {
      layout.shape[layout.ndim] = shape.extents[i];
      layout.strides[layout.ndim++] = shape.strides[i];
    }
  }
  layout.row_axes = row_axes_of(layout);
  return layout;
}

}  // namespace

void* Pool::take(std::uint64_t bytes) {
  if (used_ + aligned(bytes) > bytes_) throw std::runtime_error("the pool of device memory is too small");
  void* piece = begin_ + used_;
  used_ += aligned(bytes);
  return piece;
}

std::uint64_t pool_bytes(const List& list) {
  std::uint64_t sum = std::uint64_t{1} << 20, tiles = 0;
  for (const Shape& shape : list.tensors) {
    sum +=
        aligned(storage_bytes(shape)) + 2 * aligned(shape.elements() * dtype_bytes(shape.dtype)) + 2 * kAlign;
    tiles += device::tiles_of(shape.elements());
  }
  return sum + tiles * sizeof(TensorStats) + 4 * device::counters_of(tiles, list.tensors.size()) +
         list.tensors.size() * (sizeof(device::Item) + sizeof(device::ItemLayout) + 64);
}

Placed::Placed(Device& device, StreamHandle stream, Pool& pool, const List& list, TensorStats* results) {
  std::vector<device::Item> items;
  std::vector<device::ItemLayout> layouts;
  const bool keeps = list.bytes() <= kKeptBytes;
  std::vector<std::byte> bytes;
  for (const Shape& shape : list.tensors) {
    bytes.resize(std::min(storage_bytes(shape), kKeptBytes));
    fill(bytes, shape.dtype, 1 + items.size());
    auto* data = static_cast<std::byte*>(pool.take(storage_bytes(shape)));
    if (begin_ == nullptr) begin_ = data;
    for (std::uint64_t at = 0; at < storage_bytes(shape); at += bytes.size()) {
      upload(device, stream, data + at, bytes.data(),
             std::min<std::uint64_t>(bytes.size(), storage_bytes(shape) - at));
    }
    device::Item item{};
    item.data = data;
    item.elements = shape.elements();
    item.first_tile = launch_.tiles;
    item.stats = static_cast<TensorStats*>(device.device_address(results + items.size()));
    item.layout = device::kContiguous;
    if (!shape.strides.empty()) {
      item.layout = static_cast<std::uint32_t>(layouts.size());
      layouts.push_back(layout_of(shape));
    }
    item.dtype = static_cast<std::uint8_t>(shape.dtype);
    item.packed_dtype = item.dtype;
    launch_.tiles += device::tiles_of(item.elements);
    items.push_back(item);
    contents_.push_back(keeps ? bytes : std::vector<std::byte>{});
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].packed = pool.take(items[i].elements * dtype_bytes(list.tensors[i].dtype));
    packed_.push_back(items[i].packed);
  }
  target_ = packed_.front();
  const auto placed = [&](const void* from, std::uint64_t size) {
    void* to = pool.take(std::max<std::uint64_t>(size, 1));
    if (size > 0) upload(device, stream, to, from, size);
    return to;
  };
  launch_.items = static_cast<device::Item*>(placed(items.data(), items.size() * sizeof items[0]));
  launch_.layouts =
      static_cast<device::ItemLayout*>(placed(layouts.data(), layouts.size() * sizeof(device::ItemLayout)));
  launch_.count = static_cast<std::uint32_t>(items.size());
  launch_.partials = static_cast<TensorStats*>(pool.take(launch_.tiles * sizeof(TensorStats)));
  const std::uint64_t counters = device::counters_of(launch_.tiles, items.size());
  launch_.finished_tiles = static_cast<std::uint32_t*>(pool.take(4 * (counters + 1)));
  launch_.finished_items = launch_.finished_tiles + counters;
  check(device, device.fill_zero(stream, launch_.finished_tiles, 4 * (counters + 1)), "zeroing");
  wait(device, stream);
}

}  // namespace tdcore::bench
