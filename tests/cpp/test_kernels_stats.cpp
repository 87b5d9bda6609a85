// The statistics kernel, thread by thread on the CPU (gpu_emulation.hpp), compared with a reference in long
// double: lists of tensors of every dtype, size, alignment and layout, and equal bits for every grid and
// order.
#include <cstdlib>
#include <string>
#include <vector>

#include "kernel_launches.hpp"
#include "stats_reference.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr Dtype kAll[] = {Dtype::kBool, Dtype::kU8,  Dtype::kI8,  Dtype::kU16,    Dtype::kI16,
                          Dtype::kU32,  Dtype::kI32, Dtype::kU64, Dtype::kI64,    Dtype::kF16,
                          Dtype::kBF16, Dtype::kF32, Dtype::kF64, Dtype::kF8E4M3, Dtype::kF8E5M2};

/// The floats of 16 and 8 bits, and float32 on devices with few units for float64.
bool has_float32_sums(Dtype dtype) {
  if (dtype == Dtype::kF32) return device::kFewFloat64Units;
  return dtype >= Dtype::kF16 && dtype != Dtype::kF64;
}

Piece piece_of(const Bytes& bytes, Dtype dtype, std::size_t elements, std::size_t offset = 0) {
  Piece piece;
  piece.data = bytes.data() + offset;
  piece.elements = elements;
  piece.dtype = dtype;
  return piece;
}

/// A list of tensors with their bytes, and the expected statistics.
struct List {
  std::vector<Bytes> memory;
  std::vector<Piece> pieces;
  std::vector<Reference> wanted;
  std::vector<std::string> names;

  void add(Bytes bytes, Dtype dtype, const std::string& what) {
    const std::size_t elements = bytes.size() / dtype_bytes(dtype);
    wanted.push_back(reference_of(bytes.data(), elements, dtype));
    names.push_back(what + " as " + name(dtype));
    memory.push_back(std::move(bytes));
    pieces.push_back(piece_of(memory.back(), dtype, elements));
  }
  void compare_all(const Spread& spread) {
    const std::vector<TensorStats> got = LaunchTable(pieces).stats(spread);
    for (std::size_t i = 0; i < got.size(); ++i) {
      compare(got[i], wanted[i], has_float32_sums(pieces[i].dtype), names[i]);
    }
  }
};

/// Bits of every kind, with magnitudes whose squares are in the range of float64.
Bytes tame_bytes(std::size_t count, Dtype dtype, unsigned seed) {
  Bytes bytes = random_bytes(count, seed);
  if (dtype == Dtype::kF64) {
    for (std::size_t i = 7; i < count; i += 8)
      bytes[i] = static_cast<unsigned char>(0x38 | (bytes[i] & 0x87));
  }
  return bytes;
}

void awkward_values() {
  List list;
  for (const Case& c : float_cases()) {
    for (Dtype dtype : kFloats) list.add(encode(c.values, dtype), dtype, c.name);
  }
  list.compare_all({.blocks = 7, .resident = 3, .seed = 5});
}

void every_dtype_and_size() {
  List list;
  unsigned seed = 100;
  for (Dtype dtype : kAll) {
    for (std::size_t elements : {0, 1, 2, 7, 16, 17, 255, 256, 4096, 4099, 16383, 16384, 16385, 40000}) {
      list.add(tame_bytes(elements * dtype_bytes(dtype), dtype, ++seed), dtype,
               "random bits of " + std::to_string(elements));
    }
  }
  list.compare_all({.blocks = 11, .resident = 4, .seed = 9});
}

void integer_extremes() {
  List list;
  for (Dtype dtype : kIntegers) {
    const std::size_t width = dtype_bytes(dtype);
    for (int fill : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes bytes(width * 5000, static_cast<unsigned char>(fill));
      list.add(bytes, dtype, "constant bytes");
      bytes[width * 3000] = 0x55;
      list.add(bytes, dtype, "nearly constant bytes");
    }
  }
  std::vector<std::int64_t> big(5000);
  for (std::size_t i = 0; i < big.size(); ++i)
    big[i] = (std::int64_t{1} << 53) + static_cast<std::int64_t>(i);
  Bytes bytes(big.size() * 8);
  std::memcpy(bytes.data(), big.data(), bytes.size());
  list.add(bytes, Dtype::kI64, "beyond 2^53");
  list.compare_all({.blocks = 5, .resident = 2, .seed = 3});
}

void far_means() {
  List list;
  std::mt19937_64 random{23};
  std::normal_distribution<double> normal;
  for (double mean : {1e8, -1e8, 1e3, 1.0}) {
    for (double deviation : {1.0, 1e-3, 0.0}) {
      std::vector<double> values(33000);
      for (double& value : values) value = mean + deviation * normal(random);
      for (Dtype dtype : kFloats) {
        list.add(encode(values, dtype), dtype,
                 "mean " + std::to_string(mean) + " deviation " + std::to_string(deviation));
      }
    }
  }
  list.compare_all({.blocks = 6, .resident = 3, .seed = 29});
}

/// Around the magnitudes at which squares, or sums of squares, leave the range of float32.
void small_and_large_float32() {
  List list;
  std::mt19937_64 random{31};
  std::normal_distribution<double> normal;
  for (int exponent : {-100, -60, -49, -47, -40, -38, -37, -36, -30, 0, 50, 58, 59, 60, 61, 63, 90}) {
    std::vector<double> spread(9001), neighbours(9001), far(9001);
    for (std::size_t i = 0; i < spread.size(); ++i) {
      spread[i] = std::ldexp(normal(random), exponent);
      neighbours[i] = std::ldexp(1 + std::ldexp(static_cast<double>(random() % 3), -23), exponent);
      far[i] = std::ldexp(1 + std::ldexp(normal(random), -12), exponent);
    }
    const std::string what = " around 2^" + std::to_string(exponent);
    for (Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      list.add(encode(spread, dtype), dtype, "normal" + what);
      list.add(encode(neighbours, dtype), dtype, "neighbours" + what);
      list.add(encode(far, dtype), dtype, "far mean" + what);
    }
  }
  list.compare_all({.blocks = 5, .resident = 3, .seed = 37});
}

void any_alignment() {
  unsigned seed = 300;
  for (Dtype dtype : {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64, Dtype::kF8E4M3}) {
    const std::size_t elements = 17001, width = dtype_bytes(dtype);
    const Bytes values = tame_bytes(elements * width, dtype, ++seed);
    const Reference want = reference_of(values.data(), elements, dtype);
    for (std::size_t offset : {0, 1, 2, 4, 8, 12}) {
      Bytes memory(values.size() + 32, 0xFF);
      const std::size_t start = (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 + offset;
      std::copy(values.begin(), values.end(), memory.begin() + static_cast<std::ptrdiff_t>(start));
      const auto got = LaunchTable({piece_of(memory, dtype, elements, start)}).stats({});
      compare(got[0], want, has_float32_sums(dtype),
              std::string(name(dtype)) + " at offset " + std::to_string(offset));
    }
  }
}

struct View {
  std::string what;
  std::vector<std::int64_t> shape, strides;
  std::int64_t offset;
};

void strides() {
  const std::vector<View> views = {
      {"transposed", {270, 90}, {1, 270}, 0},
      {"channels last", {2, 7, 12, 13}, {7 * 12 * 13, 1, 7 * 13, 7}, 0},
      {"every third", {20000}, {3}, 2},
      {"expanded scalar", {50, 60}, {0, 0}, 5},
      {"expanded column", {150, 160}, {1, 0}, 5},
      {"reversed", {4000}, {-1}, 4000},
      {"reversed rows", {40, 100}, {-100, 1}, 3900},
      {"slice of rows", {60, 41}, {100, 1}, 7},
      {"overlapping windows", {100, 30}, {1, 1}, 0},
      {"six dimensions", {2, 3, 2, 5, 3, 4}, {7, 300, 50, -13, 1, 900}, 100},
      {"one element", {}, {0}, 3},
  };
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI64, Dtype::kU8, Dtype::kF64, Dtype::kF8E5M2}) {
    const std::size_t width = dtype_bytes(dtype);
    const Bytes storage = tame_bytes(60100 * width, dtype, 13);
    List list;
    for (const View& v : views) {
      const unsigned char* data = storage.data() + static_cast<std::size_t>(v.offset) * width;
      const std::vector<std::int64_t> strides_of = v.shape.empty() ? std::vector<std::int64_t>{} : v.strides;
      const TensorView view{data, v.shape.data(), strides_of.data(), static_cast<int>(v.shape.size()), dtype};
      const std::uint64_t elements = element_count(view);
      for (std::uint64_t first : {std::uint64_t{0}, elements / 3}) {
        Bytes flat((elements - first) * width);
        copy_strided(view, first, elements - first, flat.data());
        Piece piece;
        piece.data = data;
        piece.first = first;
        piece.elements = elements - first;
        piece.dtype = dtype;
        piece.shape = v.shape;
        piece.strides = v.strides;
        list.pieces.push_back(piece);
        list.wanted.push_back(reference_of(flat.data(), elements - first, dtype));
        list.names.push_back(v.what + " from " + std::to_string(first) + " as " + name(dtype));
      }
    }
    list.compare_all({.blocks = 3, .resident = 2, .seed = 31});
  }
}

void complex_and_unknown() {
  const Bytes bytes = random_bytes(16 * 20000, 77);
  const auto got = LaunchTable({piece_of(bytes, Dtype::kC128, 20000), piece_of(bytes, Dtype::kC64, 3),
                                piece_of(bytes, Dtype::kUnknown, 5)})
                       .stats({});
  const TensorStats none = reduce(bytes.data(), 20000, Dtype::kC128);
  REQUIRE(std::memcmp(&got[0], &none, sizeof none) == 0 && got[1].count == 3 && got[2].count == 5);
}

void same_bits_for_every_grid() {
  List list;
  unsigned seed = 500;
  for (std::size_t elements : {1, 20000, 300, 70 * 16384 + 5, 0, 16384 * 2}) {
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
      list.add(random_bytes(elements * dtype_bytes(dtype), ++seed), dtype, std::to_string(elements));
    }
  }
  LaunchTable table(list.pieces);
  const std::vector<TensorStats> first = table.stats({.blocks = 1, .resident = 1, .seed = 1});
  for (std::size_t i = 0; i < first.size(); ++i) {
    compare(first[i], list.wanted[i], has_float32_sums(list.pieces[i].dtype), list.names[i]);
  }
  for (const Spread spread : {Spread{3, 2, 2}, Spread{17, 5, 3}, Spread{200, 4, 4}, Spread{5, 3, 5, 1},
                              Spread{7, 4, 6, 13}, Spread{2, 2, 7, 65}}) {
    REQUIRE(LaunchTable::same_bits(table.stats(spread), first));
  }
}

void many_tiny() {
  List list;
  std::mt19937 random{41};
  for (int i = 0; i < 300; ++i) {
    const Dtype dtype = kAll[random() % std::size(kAll)];
    list.add(tame_bytes(random() % 700 * dtype_bytes(dtype), dtype, 600 + static_cast<unsigned>(i)), dtype,
             "tiny " + std::to_string(i));
  }
  list.compare_all({.blocks = 50, .resident = 4, .seed = 43});
}

void no_items() { REQUIRE(LaunchTable({}).stats({.blocks = 2, .resident = 2, .seed = 1}).empty()); }

}  // namespace

int main() {
  it("awkward values match the reference", awkward_values);
  it("every dtype and size matches the reference", every_dtype_and_size);
  it("integers at their extremes match the reference", integer_extremes);
  it("means far from 0 cost no precision", far_means);
  it("small and large float32 values match the reference", small_and_large_float32);
  it("memory of any alignment matches the reference", any_alignment);
  it("ranges of strided views match the reference", strides);
  it("complex and unknown types have the count alone", complex_and_unknown);
  it("results are the same bits for every grid, order of blocks and division into launches",
     same_bits_for_every_grid);
  it("hundreds of tiny tensors share a launch", many_tiny);
  it("a launch without items commits", no_items);
  return result();
}
