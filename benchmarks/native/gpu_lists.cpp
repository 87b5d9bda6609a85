// gpu_lists.cpp: the measured lists of tensors.
#include <algorithm>
#include <numeric>

#include "gpu_device.hpp"

namespace tdcore::bench {
namespace {

using Extents = std::vector<std::int64_t>;

void add_twice(List& list, Extents extents) {  // a weight and its gradient
  for (int i = 0; i < 2; ++i) list.tensors.push_back({extents, {}, Dtype::kF32});
}

/// He et al., Deep Residual Learning, 2016: 161 parameters, 25.6 million elements.
List resnet50() {
  List list{"ResNet-50, weights and gradients", {}};
  const auto convolution = [&](std::int64_t out, std::int64_t in, std::int64_t size) {
    add_twice(list, {out, in, size, size});
    add_twice(list, {out});  // batch norm
    add_twice(list, {out});
  };
  convolution(64, 3, 7);
  std::int64_t in = 64;
  constexpr int kBlocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = std::int64_t{64} << stage;
    for (int block = 0; block < kBlocks[stage]; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
  }
  add_twice(list, {1000, 2048});
  add_twice(list, {1000});
  return list;
}

/// Radford et al., GPT-2, 2019, the smallest model: 12 layers of width 768.
List transformer() {
  List list{"transformer, 12 layers of 768, weights and gradients", {}};
  constexpr std::int64_t kWidth = 768;
  add_twice(list, {50257, kWidth});
  add_twice(list, {1024, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const Extents shapes[] = {
        {kWidth}, {kWidth}, {3 * kWidth, kWidth}, {3 * kWidth}, {kWidth, kWidth},     {kWidth},
        {kWidth}, {kWidth}, {4 * kWidth, kWidth}, {4 * kWidth}, {kWidth, 4 * kWidth}, {kWidth}};
    for (const Extents& shape : shapes) add_twice(list, shape);
  }
  add_twice(list, {kWidth});
  add_twice(list, {kWidth});
  return list;
}

List strided(std::uint64_t most) {
  List list{"strided: transposed, channels last, sliced", {}};
  std::int64_t side = 4096;
  while (static_cast<std::uint64_t>(3 * side * side) * 4 > most && side > 64) side /= 2;
  list.tensors.push_back({{side, side}, {1, side}, Dtype::kF32});
  const std::int64_t pixels = side / 64, channels = 64, images = side / 64 * 16 / 16;
  list.tensors.push_back({{images, channels, pixels, pixels},
                          {channels * pixels * pixels, 1, pixels * channels, channels},
                          Dtype::kF32});
  list.tensors.push_back({{side, side / 2}, {side, 1}, Dtype::kF32});
  list.tensors.push_back({{side, side / 2}, {side, 2}, Dtype::kF32});
  return list;
}

}  // namespace

std::uint64_t Shape::elements() const noexcept {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1},
                         [](std::uint64_t product, std::int64_t extent) {
                           return product * static_cast<std::uint64_t>(extent);
                         });
}

std::uint64_t Shape::storage_elements() const noexcept {
  if (strides.empty()) return elements();
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    last += static_cast<std::uint64_t>((extents[i] - 1) * strides[i]);
  }
  return last + 1;
}

std::uint64_t List::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Shape& shape : tensors) sum += shape.elements() * dtype_bytes(shape.dtype);
  return sum;
}

std::vector<List> lists(std::uint64_t most) {
  std::vector<List> all;
  const auto elements = static_cast<std::int64_t>(most / 4);
  all.push_back({"1 tensor of " + std::to_string(most >> 20) + " MiB", {{{elements}, {}, Dtype::kF32}}});
  List tiny{"500 tensors of 16 to 4096 elements", {}};
  for (std::int64_t i = 0; i < 500; ++i) tiny.tensors.push_back({{16 + i * 4080 / 499}, {}, Dtype::kF32});
  all.push_back(tiny);
  all.push_back(resnet50());
  all.push_back(transformer());
  all.push_back(strided(most));
  std::erase_if(all, [&](const List& list) { return list.bytes() > most; });
  return all;
}

std::vector<List> one_of_each_dtype(std::uint64_t bytes) {
  constexpr std::pair<Dtype, const char*> kDtypes[] = {
      {Dtype::kF32, "f32"},   {Dtype::kF64, "f64"},       {Dtype::kF16, "f16"},      {Dtype::kBF16, "bf16"},
      {Dtype::kI64, "i64"},   {Dtype::kI32, "i32"},       {Dtype::kI16, "i16"},      {Dtype::kI8, "i8"},
      {Dtype::kU64, "u64"},   {Dtype::kU32, "u32"},       {Dtype::kU16, "u16"},      {Dtype::kU8, "u8"},
      {Dtype::kBool, "bool"}, {Dtype::kF8E4M3, "f8e4m3"}, {Dtype::kF8E5M2, "f8e5m2"}};
  std::vector<List> all;
  for (const auto& [dtype, name] : kDtypes) {
    const auto elements = static_cast<std::int64_t>(bytes / dtype_bytes(dtype));
    all.push_back({std::string(name), {{{elements}, {}, dtype}}});
  }
  return all;
}

}  // namespace tdcore::bench
