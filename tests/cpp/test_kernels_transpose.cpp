// Values of transposed tensors, packed through boxes in shared memory (transpose.cuh), thread by thread on
// the CPU: the bytes of copy_strided() for any permutation, type and range, and the number of sectors of
// memory that the warps access.
#include <numeric>
#include <string>
#include <vector>

#include "kernel_launches.hpp"
#include "stats_reference.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

using Sizes = std::vector<std::int64_t>;

constexpr Dtype kWidths[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64, Dtype::kC64, Dtype::kC128};
constexpr unsigned char kUntouched = 0xEE;

/// Memory for packed values, 16-byte aligned, with a margin.
struct Packed {
  std::vector<uint4> memory;
  std::size_t bytes;

  explicit Packed(std::size_t size) : memory(size / 16 + 2), bytes(size) {
    std::memset(memory.data(), kUntouched, memory.size() * 16);
  }
  unsigned char* data() { return reinterpret_cast<unsigned char*>(memory.data()); }
};

/// Strides of a dense tensor whose axes have the order `axes` in memory, slowest first.
Sizes strides_of(const Sizes& shape, const std::vector<std::size_t>& axes, std::int64_t gap = 0) {
  Sizes strides(shape.size());
  std::int64_t next = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    strides[axes[i]] = next;
    next = next * shape[axes[i]] + gap;
  }
  return strides;
}

std::uint64_t memory_elements(const Sizes& shape, const Sizes& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
  return static_cast<std::uint64_t>(last) + 1;
}

/// Packs elements [first, first + elements), and compares with copy_strided(). Returns the sectors of all
/// accesses.
std::size_t pack_and_compare(const Sizes& shape, const Sizes& strides, Dtype dtype, std::uint64_t first,
                             std::uint64_t elements, const Spread& spread, bool transposes = true,
                             Dtype rounded = Dtype::kUnknown) {
  const std::size_t width = dtype_bytes(dtype);
  static const Bytes random = random_bytes(1 << 21, 41);
  REQUIRE(memory_elements(shape, strides) * width + 64 <= random.size());
  const std::size_t start = (64 - reinterpret_cast<std::uintptr_t>(random.data()) % 64) % 64;
  Piece piece;
  piece.data = random.data() + start;
  piece.first = first;
  piece.elements = elements;
  piece.dtype = dtype;
  piece.shape = shape;
  piece.strides = strides;
  piece.packed_dtype = rounded;
  piece.transposes = transposes;
  const TensorView view{piece.data, shape.data(), strides.data(), static_cast<int>(shape.size()), dtype};
  Bytes want(elements * width);
  copy_strided(view, first, elements, want.data());
  if (rounded != Dtype::kUnknown) {
    const Bytes wide = want;
    want.clear();
    for (std::size_t i = 0; i < elements; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, wide.data() + i * width, width);
      const std::uint16_t value =
          rounded_bits(bits, static_cast<std::uint32_t>(width), rounded == Dtype::kF16 ? kHalf : kBrainFloat);
      want.push_back(static_cast<unsigned char>(value & 0xff));
      want.push_back(static_cast<unsigned char>(value >> 8));
    }
  }
  Packed packed(want.size());
  piece.packed = packed.data();
  emulation::accesses = {.counted = true, .of_thread = {}, .of_warp = {}};
  LaunchTable({piece}).pack(spread);
  emulation::accesses.counted = false;
  REQUIRE(same_bytes(packed.data(), want.data(), want.size()));
  REQUIRE(std::all_of(packed.data() + packed.bytes, packed.data() + packed.memory.size() * 16,
                      [](unsigned char byte) { return byte == kUntouched; }));
  return emulation::accesses.sectors();
}

bool is_transposed(const Sizes& shape, const Sizes& strides) {
  device::ItemLayout layout{};
  layout.ndim = static_cast<std::uint32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), layout.shape);
  std::copy(strides.begin(), strides.end(), layout.strides);
  return row_axes_of(layout) != 0;
}

void any_permutation_and_range() {
  std::mt19937 random{7};
  const auto draw = [&](std::uint64_t below) { return static_cast<std::uint64_t>(random()) % below; };
  std::uint32_t transposed = 0;
  for (int round = 0; round < 300; ++round) {
    Sizes shape(2 + draw(4));
    std::uint64_t elements = 1;
    for (std::int64_t& extent : shape) {
      const std::uint64_t most = 24'000 / elements;
      extent = static_cast<std::int64_t>(1 + draw(std::min<std::uint64_t>(draw(3) == 0 ? 200 : 40, most)));
      elements *= static_cast<std::uint64_t>(extent);
    }
    std::vector<std::size_t> axes(shape.size());
    std::iota(axes.begin(), axes.end(), 0);
    std::shuffle(axes.begin(), axes.end(), random);
    const Sizes strides = strides_of(shape, axes, draw(3) == 0 ? static_cast<std::int64_t>(draw(3)) : 0);
    const Dtype dtype = kWidths[draw(std::size(kWidths))];
    const bool whole = draw(3) == 0;
    const std::uint64_t first = whole ? 0 : draw(elements);
    const std::uint64_t count = whole ? elements : 1 + draw(elements - first);
    const bool rounds = (dtype == Dtype::kF32 || dtype == Dtype::kF64) && draw(2) == 0;
    const Dtype rounded = !rounds ? Dtype::kUnknown : draw(2) == 0 ? Dtype::kF16 : Dtype::kBF16;
    transposed += is_transposed(shape, strides) ? 1 : 0;
    const Spread spread{.blocks = static_cast<std::uint32_t>(1 + draw(4)),
                        .resident = static_cast<std::uint32_t>(1 + draw(3)),
                        .seed = static_cast<unsigned>(round)};
    (void)pack_and_compare(shape, strides, dtype, first, count, spread, true, rounded);
  }
  REQUIRE(transposed > 60);
}

void edges() {
  for (const Dtype dtype : kWidths) {
    for (const Sizes& shape : {Sizes{8, 8}, {31, 33}, {32, 32}, {33, 31}, {64, 65}, {300, 70}, {9, 2000}}) {
      const Sizes strides = strides_of(shape, {1, 0});
      REQUIRE(is_transposed(shape, strides));
      const std::uint64_t elements = static_cast<std::uint64_t>(shape[0] * shape[1]);
      (void)pack_and_compare(shape, strides, dtype, 0, elements, {});
      (void)pack_and_compare(shape, strides, dtype, elements / 2 + 1, elements / 3, {});
      (void)pack_and_compare(shape, strides, dtype, elements - 1, 1, {});
    }
  }
}

void unchanged_layouts() {
  REQUIRE(!is_transposed({40, 50}, {50, 1}));           // C order
  REQUIRE(!is_transposed({40, 50}, {0, 1}));            // expanded
  REQUIRE(!is_transposed({40, 50, 60}, {0, 1, 50}));    // expanded and transposed
  REQUIRE(!is_transposed({40, 50}, {1, -40}));          // reversed
  REQUIRE(!is_transposed({40, 50}, {3, 120}));          // no axis of stride 1
  REQUIRE(!is_transposed({3, 5000}, {1, 3}));           // few rows
  REQUIRE(!is_transposed({5000, 3}, {1, 5000}));        // few columns
  REQUIRE(!is_transposed({5, 6, 64}, {64, 320, 1}));    // the last axis is the fastest one
  REQUIRE(is_transposed({4, 64, 100}, {6400, 1, 64}));  // channels last
}

void sectors() {
  struct {
    const char* what;
    Sizes shape, strides;
    Dtype dtype;
    double most;  // sectors per sector of values
    double before;
  } cases[] = {
      {"channels last, float32", {2, 64, 196}, {12544, 1, 64}, Dtype::kF32, 1.3, 8},
      {"channels last, bfloat16", {2, 64, 196}, {12544, 1, 64}, Dtype::kBF16, 1.6, 16},
      {"channels last, uint8", {2, 64, 196}, {12544, 1, 64}, Dtype::kU8, 2.1, 32},
      {"channels last, float64", {2, 64, 196}, {12544, 1, 64}, Dtype::kF64, 1.2, 4},
      {"channels last, complex128", {2, 64, 98}, {6272, 1, 64}, Dtype::kC128, 1.2, 2},
      {"transposed matrix, float32", {160, 160}, {1, 160}, Dtype::kF32, 1.3, 8},
      {"transposed odd matrix, float32", {150, 151}, {1, 150}, Dtype::kF32, 1.4, 8},
      {"attention heads, bfloat16", {2, 64, 4, 32}, {8192, 1, 2048, 64}, Dtype::kBF16, 1.6, 16},
  };
  for (const auto& c : cases) {
    const auto elements = static_cast<std::uint64_t>(
        std::accumulate(c.shape.begin(), c.shape.end(), std::int64_t{1}, std::multiplies<>()));
    const double ideal = static_cast<double>(elements * dtype_bytes(c.dtype)) / 32;
    // Loads and stores for boxes; the gather notes only its loads.
    const auto boxes = static_cast<double>(pack_and_compare(c.shape, c.strides, c.dtype, 0, elements, {}));
    const auto gather =
        static_cast<double>(pack_and_compare(c.shape, c.strides, c.dtype, 0, elements, {}, false));
    std::printf("%s: %.2f sectors per sector, gather %.2f for loads\n", c.what, boxes / ideal / 2,
                gather / ideal);
    check(boxes / ideal / 2 <= c.most, std::string(c.what) + ": " + std::to_string(boxes / ideal / 2));
    check(gather / ideal >= 0.9 * c.before,
          std::string(c.what) + " gathered: " + std::to_string(gather / ideal));
  }
}

}  // namespace

int main() {
  it("any permutation, type, range and rounding has the bytes of C order", any_permutation_and_range);
  it("boxes at every edge are complete", edges);
  it("expanded, reversed and other strided layouts are gathered", unchanged_layouts);
  it("a transposed tensor is read and written in whole sectors", sectors);
  return result();
}
