// The pack kernel, thread by thread on the CPU (gpu_emulation.hpp), compared with copy_strided(), and the
// rounding to 16 bits compared with a search for the nearest value.
#include <string>
#include <vector>

#include "kernel_launches.hpp"
#include "stats_reference.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr unsigned char kUntouched = 0xEE;

/// 16-byte aligned memory with a margin after it.
struct Packed {
  std::vector<uint4> memory;
  std::size_t bytes;

  explicit Packed(std::size_t size) : memory(size / 16 + 2), bytes(size) {
    std::memset(memory.data(), kUntouched, memory.size() * 16);
  }
  unsigned char* data() { return reinterpret_cast<unsigned char*>(memory.data()); }
  bool margin_untouched() {
    return std::all_of(data() + bytes, data() + memory.size() * 16,
                       [](unsigned char byte) { return byte == kUntouched; });
  }
};

/// Pieces to pack in one launch, and the expected bytes.
struct List {
  std::vector<Piece> pieces;
  std::vector<Packed> packed;
  std::vector<Bytes> wanted;
  std::vector<std::string> names;

  void add(const Piece& piece, const Bytes& want, const std::string& what) {
    pieces.push_back(piece);
    packed.emplace_back(want.size());
    wanted.push_back(want);
    names.push_back(what + " as " + name(piece.dtype));
  }
  void compare_all(const Spread& spread) {
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].packed = packed[i].data();
    LaunchTable(pieces).pack(spread);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      check(same_bytes(packed[i].data(), wanted[i].data(), wanted[i].size()), names[i]);
      check(packed[i].margin_untouched(), names[i] + ": nothing written beyond");
    }
  }
};

constexpr Dtype kWidths[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kI64, Dtype::kC64, Dtype::kC128};

void contiguous() {
  const Bytes memory = random_bytes(16 * 33000 + 64, 3);
  const std::size_t start = (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16;
  List list;
  for (Dtype dtype : kWidths) {
    for (std::size_t elements : {0, 1, 3, 15, 16, 17, 1000, 16384, 16385, 32769}) {
      for (std::size_t offset : {0, 1, 2, 4, 8, 12}) {
        Piece piece;
        piece.data = memory.data() + start + offset;
        piece.elements = elements;
        piece.dtype = dtype;
        const auto* first = static_cast<const unsigned char*>(piece.data);
        list.add(piece, Bytes(first, first + elements * dtype_bytes(dtype)),
                 std::to_string(elements) + " at offset " + std::to_string(offset));
      }
    }
  }
  list.compare_all({.blocks = 13, .resident = 3, .seed = 7, .part = 100});
}

struct View {
  std::string what;
  std::vector<std::int64_t> shape, strides;
  std::int64_t offset;
};

const std::vector<View>& views() {
  static const std::vector<View> all = {
      {"transposed", {270, 90}, {1, 270}, 0},
      {"channels last", {2, 7, 12, 13}, {7 * 12 * 13, 1, 7 * 13, 7}, 0},
      {"every third", {20000}, {3}, 2},
      {"expanded scalar", {50, 60}, {0, 0}, 5},
      {"expanded row", {50, 60}, {0, 1}, 5},
      {"reversed", {4000}, {-1}, 4000},
      {"reversed rows", {40, 100}, {-100, 1}, 3900},
      {"slice of rows", {60, 41}, {100, 1}, 7},
      {"six dimensions", {2, 3, 2, 5, 3, 4}, {7, 300, 50, -13, 1, 900}, 100},
  };
  return all;
}

void strided() {
  const Bytes storage = random_bytes(60100 * 16 + 1, 13);
  List list;
  for (Dtype dtype : kWidths) {
    const std::size_t width = dtype_bytes(dtype);
    for (const View& v : views()) {
      for (std::size_t shift : {0, 1}) {  // 1: not aligned to the element
        const unsigned char* data = storage.data() + static_cast<std::size_t>(v.offset) * width + shift;
        const TensorView view{data, v.shape.data(), v.strides.data(), static_cast<int>(v.shape.size()),
                              dtype};
        const std::uint64_t elements = element_count(view), first = shift == 0 ? elements / 3 : 0;
        Bytes want((elements - first) * width);
        copy_strided(view, first, elements - first, want.data());
        Piece piece;
        piece.data = data;
        piece.first = first;
        piece.elements = elements - first;
        piece.dtype = dtype;
        piece.shape = v.shape;
        piece.strides = v.strides;
        list.add(piece, want, v.what);
      }
    }
  }
  list.compare_all({.blocks = 9, .resident = 4, .seed = 11});
}

/// The nearest float16 or bfloat16, ties to even.
std::uint16_t nearest(double value, Dtype dtype) {
  const bool bf16 = dtype == Dtype::kBF16;
  if (!std::isfinite(value)) return encode_half(value, dtype);
  const std::uint16_t below = encode_half(value, dtype);
  const unsigned low = below & 0x7fffu, exponent_bits = bf16 ? 8 : 5, mantissa_bits = bf16 ? 7 : 10;
  const auto decoded = [&](unsigned bits) {
    const double largest_power = bf16 ? 0x1p128 : 0x1p16;  // the power of two after the largest value
    const double x =
        decode_small_float(bits, static_cast<int>(exponent_bits), static_cast<int>(mantissa_bits), true);
    return std::isinf(x) ? largest_power : x;
  };
  const long double under =
      std::fabs(static_cast<long double>(value)) - static_cast<long double>(decoded(low));
  const long double over =
      static_cast<long double>(decoded(low + 1)) - std::fabs(static_cast<long double>(value));
  const bool up = over < under || (over == under && low % 2 != 0);
  return static_cast<std::uint16_t>((below & 0x8000u) | (up ? low + 1 : low));
}

/// Values equal to, next to and between values of 16 bits, and random values.
std::vector<double> values_to_round(Dtype to) {
  const bool bf16 = to == Dtype::kBF16;
  std::mt19937_64 random{53};
  std::normal_distribution<double> normal;
  std::vector<double> values = {
      0.0,      -0.0,     HUGE_VAL,   -HUGE_VAL, 65504,         65519.99,
      65520,    65536,    1e300,      -1e300,    5e-324,        static_cast<double>(FLT_MAX),
      0x1p-149, 0x1p-150, 0x1.8p-150, 0x1p-25,   0x1.000001p-25};
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<unsigned>(random() % (bf16 ? 0x7f80 : 0x7c00));
    const double x = decode_small_float(bits, bf16 ? 8 : 5, bf16 ? 7 : 10, true);
    const double next = decode_small_float(bits + 1, bf16 ? 8 : 5, bf16 ? 7 : 10, true);
    const double middle = std::isinf(next) ? x : x + (next - x) / 2;
    const double sign = random() % 2 == 0 ? 1 : -1;
    for (double value : {x, middle, std::nextafter(middle, 0), std::nextafter(middle, HUGE_VAL),
                         normal(random) * std::ldexp(1.0, static_cast<int>(random() % 300) - 170)}) {
      values.push_back(sign * value);
    }
  }
  return values;
}

void rounding() {
  List list;
  std::vector<Bytes> memory;
  memory.reserve(16);
  for (Dtype from : {Dtype::kF32, Dtype::kF64}) {
    for (Dtype to : {Dtype::kF16, Dtype::kBF16}) {
      for (std::size_t offset : {std::size_t{0}, dtype_bytes(from)}) {
        const std::vector<double> values = values_to_round(to);
        const Bytes encoded = encode(values, from);
        Bytes aligned(encoded.size() + 32);
        const std::size_t start = (16 - reinterpret_cast<std::uintptr_t>(aligned.data()) % 16) % 16 + offset;
        std::copy(encoded.begin(), encoded.end(), aligned.begin() + static_cast<std::ptrdiff_t>(start));
        Bytes want;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::uint16_t bits = nearest(decode(encoded.data(), i, from), to);
          want.push_back(static_cast<unsigned char>(bits & 0xff));
          want.push_back(static_cast<unsigned char>(bits >> 8));
        }
        memory.push_back(std::move(aligned));
        Piece piece;
        piece.data = memory.back().data() + start;
        piece.elements = values.size();
        piece.dtype = from;
        piece.packed_dtype = to;
        list.add(piece, want, std::string("rounded to ") + name(to));
      }
    }
  }
  list.compare_all({.blocks = 8, .resident = 3, .seed = 17});
}

void rounding_strided() {
  std::vector<double> values(12000);
  std::mt19937_64 random{59};
  std::normal_distribution<double> normal;
  for (double& value : values) value = normal(random);
  const Bytes storage = encode(values, Dtype::kF32);
  const View v{"transposed", {100, 120}, {1, 100}, 0};
  const TensorView view{storage.data(), v.shape.data(), v.strides.data(), 2, Dtype::kF32};
  Bytes flat(storage.size()), want;
  copy_strided(view, 0, 12000, flat.data());
  for (std::size_t i = 0; i < 12000; ++i) {
    const std::uint16_t bits = nearest(decode(flat.data(), i, Dtype::kF32), Dtype::kBF16);
    want.push_back(static_cast<unsigned char>(bits & 0xff));
    want.push_back(static_cast<unsigned char>(bits >> 8));
  }
  Piece piece;
  piece.data = storage.data();
  piece.elements = 12000;
  piece.shape = v.shape;
  piece.strides = v.strides;
  piece.packed_dtype = Dtype::kBF16;
  List list;
  list.add(piece, want, "rounded through strides");
  list.compare_all({});
}

void nan_stays() {
  for (std::uint32_t payload : {0x00000001u, 0x00400000u, 0x007FFFFFu, 0x00200000u}) {
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      const std::uint16_t half = rounded_bits(sign | 0x7F800000u | payload, 4, kHalf);
      const std::uint16_t brain = rounded_bits(sign | 0x7F800000u | payload, 4, kBrainFloat);
      REQUIRE((half & 0x7E00) == 0x7E00 && (half >> 15) == (sign >> 31));
      REQUIRE((brain & 0x7FC0) == 0x7FC0 && (brain >> 15) == (sign >> 31));
      const std::uint64_t wide = std::uint64_t{sign} << 32 | std::uint64_t{0x7FF} << 52 | payload;
      REQUIRE((rounded_bits(wide, 8, kHalf) & 0x7E00) == 0x7E00);
      REQUIRE((rounded_bits(wide, 8, kBrainFloat) & 0x7FC0) == 0x7FC0);
    }
  }
}

}  // namespace

int main() {
  it("contiguous memory of any type, size and alignment is copied", contiguous);
  it("ranges of strided views are gathered in C order", strided);
  it("float32 and float64 are rounded to the nearest 16-bit value, ties to even", rounding);
  it("rounding goes through strides", rounding_strided);
  it("NaN stays NaN of its sign", nan_stays);
  return result();
}
