// reduce() compared with a plain reference in long double: every dtype, every instruction set of the machine,
// difficult distributions. Counts, extremes and the histogram must be equal; sums must be within the
// tolerance in stats/cpu.hpp.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "stats/cpu.hpp"
#include "stats_reference.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using tdcore::Dtype;
using tdcore::TensorStats;
using namespace tdcore::testing;

constexpr const char* kLevels[] = {"portable", "neon", "avx2", "avx512"};

void compare_at_every_level(const Bytes& bytes, Dtype dtype, const std::string& what) {
  const std::size_t width = tdcore::dtype_bytes(dtype);
  const std::size_t elements = bytes.size() / width;
  const Reference want = reference_of(bytes.data(), elements, dtype);
  for (const char* level : kLevels) {
    const TensorStats got = tdcore::reduce_at_level(level, bytes.data(), elements, dtype);
    if (got.count == 0 && elements != 0) {
      continue;  // not available on this machine
    }
    compare(got, want, dtype, what + " as " + name(dtype) + " at " + level);
  }
  // Not aligned, with the copy: the same result, the same bytes, and no writes beyond the end.
  Bytes shifted(bytes.size() + 16, 0xab);
  Bytes copy(bytes.size() + 80, 0xcd);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  const TensorStats plain = tdcore::reduce(bytes.data(), elements, dtype);
  const TensorStats copied = tdcore::reduce_copy(shifted.data() + 1, copy.data() + 3, elements, dtype);
  check(same_bytes(&plain, &copied, sizeof plain), what + ": reduce_copy gives the bits of reduce");
  check(same_bytes(copy.data() + 3, bytes.data(), bytes.size()), what + ": reduce_copy copies");
  check(copy[2] == 0xcd && copy[bytes.size() + 3] == 0xcd, what + ": reduce_copy writes nothing else");
}

void float_statistics_match_the_reference() {
  for (const Case& c : float_cases()) {
    for (Dtype dtype : kFloats) {
      compare_at_every_level(encode(c.values, dtype), dtype, c.name);
    }
  }
}

void random_bit_patterns_match_the_reference() {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    compare_at_every_level(random_bytes(20000, 3), dtype, "random bits");
    compare_at_every_level(random_bytes(64, 4), dtype, "few random bits");
  }
  for (Dtype dtype : kIntegers) {
    for (std::size_t bytes : {std::size_t{8}, std::size_t{248}, std::size_t{20000}, std::size_t{40008}}) {
      compare_at_every_level(random_bytes(bytes, 5), dtype, "random bits");
    }
  }
}

void integer_extremes_match_the_reference() {
  for (Dtype dtype : kIntegers) {
    const std::size_t width = tdcore::dtype_bytes(dtype);
    for (int fill : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes bytes(width * 4100, static_cast<unsigned char>(fill));
      compare_at_every_level(bytes, dtype, "constant bytes");
      bytes[width * 3000] = 0x55;
      compare_at_every_level(bytes, dtype, "nearly constant bytes");
    }
  }
  std::vector<std::int64_t> big(5000);
  for (std::size_t i = 0; i < big.size(); ++i) {
    big[i] = (std::int64_t{1} << 53) + static_cast<std::int64_t>(i);  // not exact in float64
  }
  Bytes bytes(big.size() * 8);
  std::memcpy(bytes.data(), big.data(), bytes.size());
  compare_at_every_level(bytes, Dtype::kI64, "beyond 2^53");
}

void results_do_not_depend_on_threads() {
  const std::size_t elements = 3 * tdcore::kChunkElements + 777;
  const Bytes bytes = random_bytes(elements * 2, 11);
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kI16}) {
    const TensorStats one = tdcore::reduce(bytes.data(), elements, dtype, 1);
    Bytes copy(bytes.size());
    for (int threads : {2, 3, 16}) {
      const TensorStats many = tdcore::reduce_copy(bytes.data(), copy.data(), elements, dtype, threads);
      check(same_bytes(&one, &many, sizeof one), "same bits for any number of threads");
      check(copy == bytes, "threads copy everything");
    }
  }
}

// ---- views ----

struct View {
  std::vector<std::int64_t> shape, strides;
  std::int64_t offset;
};

void compare_view(const Bytes& storage, const View& v, Dtype dtype, const std::string& what) {
  const std::size_t width = tdcore::dtype_bytes(dtype);
  const unsigned char* data = storage.data() + static_cast<std::size_t>(v.offset) * width;
  const tdcore::TensorView view{data, v.shape.data(), v.strides.data(), static_cast<int>(v.shape.size()),
                                dtype};
  const std::uint64_t elements = tdcore::element_count(view);
  Bytes flat;
  std::vector<std::int64_t> index(v.shape.size(), 0);
  for (std::uint64_t i = 0; i < elements; ++i) {
    std::int64_t from = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) {
      from += index[axis] * v.strides[axis];
    }
    const unsigned char* element = data + from * static_cast<std::int64_t>(width);
    flat.insert(flat.end(), element, element + width);
    for (std::size_t axis = index.size(); axis-- != 0;) {
      if (++index[axis] < v.shape[axis]) {
        break;
      }
      index[axis] = 0;
    }
  }
  Bytes gathered(flat.size() + 1, 0xee);
  tdcore::copy_strided(view, 0, elements, gathered.data());
  check(same_bytes(gathered.data(), flat.data(), flat.size()) && gathered.back() == 0xee, what + ": C order");
  if (!tdcore::has_stats(dtype)) {
    return;
  }
  compare(tdcore::reduce(view, 2), reference_of(flat.data(), elements, dtype), dtype, what);
  for (std::uint64_t first : {std::uint64_t{0}, elements / 3, elements / 2 + 1}) {
    const std::uint64_t count = elements - std::min(first, elements);
    const TensorStats direct = tdcore::reduce(flat.data() + first * width, count, dtype);
    std::fill(gathered.begin(), gathered.end(), std::uint8_t{0xee});
    const TensorStats part = tdcore::reduce_copy_strided(view, first, count, gathered.data());
    const TensorStats only = tdcore::reduce_strided(view, first, count);
    check(same_bytes(&direct, &part, sizeof part),
          what + ": gathered statistics have the bits of contiguous ones");
    check(same_bytes(&direct, &only, sizeof only), what + ": reduce_strided has the bits of contiguous ones");
    check(same_bytes(gathered.data(), flat.data() + first * width, count * width),
          what + ": part in C order");
    check(gathered[count * width] == 0xee, what + ": nothing written beyond the part");
  }
}

void views_read_in_c_order() {
  const std::vector<std::pair<std::string, View>> views = {
      {"transposed", {{70, 90}, {1, 70}, 0}},
      {"transposed, long rows", {{20, 3000}, {1, 20}, 0}},
      {"channels last", {{2, 7, 12, 13}, {7 * 12 * 13, 1, 7 * 13, 7}, 0}},
      {"every third", {{5000}, {3}, 2}},
      {"expanded scalar", {{50, 60}, {0, 0}, 5}},
      {"expanded row", {{50, 60}, {0, 1}, 5}},
      {"expanded column", {{50, 60}, {1, 0}, 5}},
      {"reversed", {{4000}, {-1}, 4000}},
      {"reversed rows", {{40, 100}, {-100, 1}, 3900}},
      {"slice of rows", {{60, 41}, {100, 1}, 7}},
      {"extents of one", {{1, 300, 1, 7}, {9, 7, 5, 1}, 0}},
      {"permuted three", {{11, 13, 17}, {1, 11 * 17, 11}, 0}},
      {"overlapping windows", {{100, 30}, {1, 1}, 0}},
      {"empty", {{10, 0, 3}, {1, 2, 3}, 0}},
      {"one element", {{}, {}, 3}},
  };
  const Bytes storage = random_bytes(60000 * 16, 13);
  for (const auto& [what, view] : views) {
    for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI64, Dtype::kU8, Dtype::kC128}) {
      compare_view(storage, view, dtype, what + " " + name(dtype));
    }
  }
}

void merging_parts_describes_the_whole() {
  for (const Case& c : float_cases()) {
    const Bytes bytes = encode(c.values, Dtype::kF32);
    const std::size_t elements = c.values.size();
    for (std::size_t cut : {std::size_t{0}, elements / 3, elements / 2, elements}) {
      TensorStats left = tdcore::reduce(bytes.data(), cut, Dtype::kF32);
      tdcore::merge(left, tdcore::reduce(bytes.data() + 4 * cut, elements - cut, Dtype::kF32));
      compare(left, reference_of(bytes.data(), elements, Dtype::kF32), Dtype::kF32, c.name + " merged");
    }
  }
}

void empty_and_unsupported_have_no_values() {
  const TensorStats none = tdcore::reduce(nullptr, 0, Dtype::kF32);
  check(none.count == 0 && std::isnan(none.min) && none.m2 == 0, "no elements");
  const double pair[2] = {1, 2};
  const TensorStats complex = tdcore::reduce(pair, 1, Dtype::kC128);
  check(complex.count == 1 && std::isnan(complex.mean), "complex has no statistics");
  check(!tdcore::has_stats(Dtype::kC64) && !tdcore::has_stats(Dtype::kUnknown), "has_stats");
  check(tdcore::has_stats(Dtype::kF8E5M2) && tdcore::has_stats(Dtype::kBool), "has_stats");
}

void copies_of_every_size_and_alignment_are_exact() {
  const Bytes from = random_bytes(40'000, 17);
  for (std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{16383}, std::size_t{16384}, std::size_t{33'333}}) {
    for (std::size_t shift : {std::size_t{0}, std::size_t{1}, std::size_t{63}}) {
      Bytes to(bytes + 128, 0xcd);
      tdcore::copy_streaming(from.data() + shift, to.data() + shift, bytes);
      check(same_bytes(to.data() + shift, from.data() + shift, bytes), "copy_streaming copies");
      check(to[bytes + shift] == 0xcd, "copy_streaming writes nothing beyond");
    }
  }
}

#if defined(__x86_64__)
void flush_to_zero_changes_nothing_and_is_kept() {
  std::vector<double> values;
  std::mt19937_64 random{19};
  std::normal_distribution<double> normal;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(1e-40 * normal(random));
  }
  for (Dtype dtype : kFloats) {
    const Bytes bytes = encode(values, dtype);
    const TensorStats usual = tdcore::reduce(bytes.data(), values.size(), dtype);
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040);  // FTZ and DAZ
    const TensorStats flushed = tdcore::reduce(bytes.data(), values.size(), dtype);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(saved);
    check(same_bytes(&usual, &flushed, sizeof usual), "flush-to-zero mode changes nothing");
    check((after & 0x8040) == 0x8040, "the caller's mode is kept");
  }
}
#endif

}  // namespace

int main() {
  float_statistics_match_the_reference();
  random_bit_patterns_match_the_reference();
  integer_extremes_match_the_reference();
  results_do_not_depend_on_threads();
  views_read_in_c_order();
  merging_parts_describes_the_whole();
  empty_and_unsupported_have_no_values();
  copies_of_every_size_and_alignment_are_exact();
#if defined(__x86_64__)
  flush_to_zero_changes_nothing_and_is_kept();
#endif
  std::printf("level %s, %d failures\n", tdcore::simd_level(), failures.load());
  return result();
}
