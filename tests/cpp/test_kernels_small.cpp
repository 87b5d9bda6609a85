// The statistics kernel with its table in the parameters, thread by thread on the CPU (gpu_emulation.hpp):
// the same bits as with an uploaded table, and values and guards of a record that are written before its
// commit word.
#include <string>
#include <vector>

#include "kernel_launches.hpp"
#include "stats_reference.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr Dtype kAll[] = {Dtype::kBool, Dtype::kU8,     Dtype::kI8,     Dtype::kU16,
                          Dtype::kI16,  Dtype::kU32,    Dtype::kI32,    Dtype::kU64,
                          Dtype::kI64,  Dtype::kF16,    Dtype::kBF16,   Dtype::kF32,
                          Dtype::kF64,  Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kC64};

Piece piece_of(const Bytes& bytes, Dtype dtype, std::size_t elements) {
  Piece piece;
  piece.data = bytes.data();
  piece.elements = elements;
  piece.dtype = dtype;
  return piece;
}

void same_bits_as_an_uploaded_table() {
  unsigned seed = 900;
  for (const Dtype dtype : kAll) {
    const Bytes bytes = random_bytes(40000 * dtype_bytes(dtype), ++seed);
    std::vector<Piece> pieces;
    for (const std::size_t elements : {0, 1, 17, 4099, 16383, 16384, 16385, 32769, 40000})
      pieces.push_back(piece_of(bytes, dtype, elements));
    LaunchTable table(pieces);
    const std::vector<TensorStats> uploaded = table.stats({.blocks = 5, .resident = 3, .seed = 3});
    REQUIRE(LaunchTable::same_bits(table.inlined({.blocks = 4, .resident = 3, .seed = 7}), uploaded));
    REQUIRE(
        LaunchTable::same_bits(table.inlined({.blocks = 3, .resident = 2, .seed = 8, .part = 4}), uploaded));
  }
}

void any_number_of_items() {
  const Bytes bytes = random_bytes(400000, 77);
  for (const std::size_t count : {0, 1, 2, 7, 31, 32}) {
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < count; ++i)
      pieces.push_back(piece_of(bytes, kAll[i % 15], i == 3 ? 20000 : 10 + 40 * i));
    LaunchTable table(pieces);
    const std::vector<TensorStats> uploaded = table.stats({});
    REQUIRE(LaunchTable::same_bits(table.inlined({.blocks = 6, .resident = 4, .seed = 5}), uploaded));
  }
}

void groups_of_tiles() {
  const Bytes bytes = random_bytes(70 * 16384 + 5, 99);
  LaunchTable table({piece_of(bytes, Dtype::kU8, 300), piece_of(bytes, Dtype::kU8, bytes.size())});
  const std::vector<TensorStats> uploaded = table.stats({.blocks = 9, .resident = 4, .seed = 2});
  REQUIRE(LaunchTable::same_bits(table.inlined({.blocks = 7, .resident = 4, .seed = 9}), uploaded));
}

/// Values of contiguous and strided tensors, with statistics and guards, in one launch.
void a_whole_record() {
  const Bytes memory = random_bytes(16 * 40000, 5);
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::vector<Piece> pieces;
    std::vector<Bytes> want;
    for (const Dtype dtype : {Dtype::kU8, Dtype::kBF16, Dtype::kF32, Dtype::kF64, Dtype::kC128}) {
      Piece flat = piece_of(memory, dtype, 1000 + 5000 * seed);
      want.emplace_back(memory.begin(),
                        memory.begin() + static_cast<std::ptrdiff_t>(flat.elements * dtype_bytes(dtype)));
      pieces.push_back(flat);
      Piece transposed = piece_of(memory, dtype, 130 * 140 - 11);
      transposed.first = 11;
      transposed.shape = {130, 140};
      transposed.strides = {1, 130};
      const TensorView view{memory.data(), transposed.shape.data(), transposed.strides.data(), 2, dtype};
      want.emplace_back(transposed.elements * dtype_bytes(dtype));
      copy_strided(view, 11, transposed.elements, want.back().data());
      pieces.push_back(transposed);
    }
    std::vector<std::vector<uint4>> packed;
    for (const Bytes& bytes : want) packed.emplace_back(bytes.size() / 16 + 1, uint4{7, 7, 7, 7});
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].packed = packed[i].data();
    std::uint64_t before[8], after[8];
    for (std::uint64_t& word : before) word = 5;
    for (std::uint64_t& word : after) word = 5;
    LaunchTable table(pieces);
    table.on_commit = [&] {
      for (std::size_t i = 0; i < want.size(); ++i)
        REQUIRE(std::memcmp(packed[i].data(), want[i].data(), want[i].size()) == 0);
      for (std::size_t i = 0; i < 8; ++i) {
        const std::uint64_t guard = i == 0 ? kGuard : 0;
        REQUIRE(before[i] == guard && after[i] == guard);
      }
    };
    const std::vector<TensorStats> uploaded = [&] {
      std::vector<Piece> stats = pieces;
      for (Piece& piece : stats) piece.packed = nullptr;
      return LaunchTable(stats).stats({});
    }();
    const Spread spread{.blocks = 5, .resident = 1 + seed % 4, .seed = seed};
    REQUIRE(LaunchTable::same_bits(table.inlined(spread, before, after), uploaded));
  }
}

}  // namespace

int main() {
  it("each dtype and size has the bits of an uploaded table", same_bits_as_an_uploaded_table);
  it("zero to 32 items have the bits of an uploaded table", any_number_of_items);
  it("groups of tiles have the bits of an uploaded table", groups_of_tiles);
  it("one launch writes statistics, values and guards of a record before its commit word", a_whole_record);
  return result();
}
