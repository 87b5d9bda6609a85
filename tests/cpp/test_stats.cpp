// reduce() against a plain reference in long double: every dtype, every instruction set the machine has, the
// awkward distributions. Counts, extremes and the histogram must be equal; sums within the tolerance
// stats_cpu.hpp states.
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

#include "stats_cpu.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using tdcore::Dtype;
using tdcore::TensorStats;

int failures = 0;

void check(bool ok, const std::string& what) {
  if (!ok && ++failures <= 40) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  }
}

constexpr Dtype kFloats[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16};
constexpr Dtype kIntegers[] = {Dtype::kBool, Dtype::kU8,  Dtype::kI8,  Dtype::kU16, Dtype::kI16,
                               Dtype::kU32,  Dtype::kI32, Dtype::kU64, Dtype::kI64};
constexpr const char* kLevels[] = {"portable", "neon", "avx2", "avx512"};

const char* name(Dtype dtype) {
  constexpr const char* kNames[] = {"unknown", "bool", "u8",     "i8",     "u16", "i16",
                                    "u32",     "i32",  "u64",    "i64",    "f16", "bf16",
                                    "f32",     "f64",  "f8e4m3", "f8e5m2", "c64", "c128"};
  return kNames[static_cast<int>(dtype)];
}

using Bytes = std::vector<unsigned char>;

bool same_bytes(const void* a, const void* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

// ---- encoding and decoding, written apart from the code under test ----

double decode_small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool has_inf) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned sign = bits >> (exponent_bits + mantissa_bits);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const unsigned mantissa = bits & ((1U << mantissa_bits) - 1);
  double value = std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  if (exponent != 0) {
    value = std::ldexp(1.0 + std::ldexp(static_cast<double>(mantissa), -mantissa_bits), exponent - bias);
  }
  if (has_inf && exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? HUGE_VAL : NAN;
  }
  if (!has_inf && exponent == (1 << exponent_bits) - 1 && mantissa == (1U << mantissa_bits) - 1) {
    value = NAN;
  }
  return sign != 0 ? -value : value;
}

template <class T>
T at(const unsigned char* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

double decode(const unsigned char* data, std::size_t i, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return data[i] != 0 ? 1 : 0;
    case Dtype::kU8:
      return data[i];
    case Dtype::kI8:
      return at<std::int8_t>(data, i);
    case Dtype::kU16:
      return at<std::uint16_t>(data, i);
    case Dtype::kI16:
      return at<std::int16_t>(data, i);
    case Dtype::kU32:
      return at<std::uint32_t>(data, i);
    case Dtype::kI32:
      return at<std::int32_t>(data, i);
    case Dtype::kU64:
      return static_cast<double>(at<std::uint64_t>(data, i));
    case Dtype::kI64:
      return static_cast<double>(at<std::int64_t>(data, i));
    case Dtype::kF16:
      return decode_small_float(at<std::uint16_t>(data, i), 5, 10, true);
    case Dtype::kBF16:
      return decode_small_float(at<std::uint16_t>(data, i), 8, 7, true);
    case Dtype::kF32:
      return static_cast<double>(at<float>(data, i));
    case Dtype::kF64:
      return at<double>(data, i);
    case Dtype::kF8E4M3:
      return decode_small_float(data[i], 4, 3, false);
    case Dtype::kF8E5M2:
      return decode_small_float(data[i], 5, 2, true);
    default:
      return NAN;
  }
}

double smallest_normal(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 0x1p-14;
    case Dtype::kBF16:
    case Dtype::kF32:
      return 0x1p-126;
    case Dtype::kF64:
      return DBL_MIN;
    case Dtype::kF8E4M3:
      return 0x1p-6;
    case Dtype::kF8E5M2:
      return 0x1p-14;
    default:
      return 0;
  }
}

/// Bits of the float16 or bfloat16 next to `value` towards zero; Inf where it does not fit.
std::uint16_t encode_half(double value, Dtype dtype) {
  const bool bf16 = dtype == Dtype::kBF16;
  unsigned low = 0;
  unsigned high = bf16 ? 0x7f80 : 0x7c00;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(high | 1);
  }
  while (low + 1 < high) {
    const unsigned middle = (low + high) / 2;
    (decode_small_float(middle, bf16 ? 8 : 5, bf16 ? 7 : 10, true) <= std::fabs(value) ? low : high) = middle;
  }
  return static_cast<std::uint16_t>(sign | (std::isinf(value) ? high : low));
}

Bytes encode(const std::vector<double>& values, Dtype dtype) {
  const std::size_t width = tdcore::dtype_bytes(dtype);
  Bytes bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    unsigned char* to = bytes.data() + i * width;
    if (dtype == Dtype::kF64) {
      std::memcpy(to, &values[i], 8);
    } else if (dtype == Dtype::kF32) {
      const auto value = static_cast<float>(values[i]);
      std::memcpy(to, &value, 4);
    } else {
      const std::uint16_t half = encode_half(values[i], dtype);
      std::memcpy(to, &half, 2);
    }
  }
  return bytes;
}

// ---- the reference ----

struct Reference {
  TensorStats exact = tdcore::empty_stats();  // counts, extremes, histogram
  long double sum = 0, m2 = 0, abs_sum = 0, square_sum = 0;
};

Reference reference_of(const unsigned char* data, std::size_t elements, Dtype dtype) {
  Reference r;
  TensorStats& s = r.exact;
  std::vector<double> finite;
  for (std::size_t i = 0; i < elements; ++i) {
    const double value = decode(data, i, dtype);
    ++s.count;
    if (std::isnan(value)) {
      ++s.nan_count;
      continue;
    }
    if (std::isinf(value)) {
      ++(value > 0 ? s.pos_inf_count : s.neg_inf_count);
      continue;
    }
    const double magnitude = std::fabs(value);
    finite.push_back(value);
    r.sum += static_cast<long double>(value);
    r.abs_sum += static_cast<long double>(magnitude);
    r.square_sum += static_cast<long double>(value) * static_cast<long double>(value);
    s.min = std::fmin(s.min, value);
    s.max = std::fmax(s.max, value);
    s.abs_min = std::fmin(s.abs_min, magnitude);
    s.abs_max = std::fmax(s.abs_max, magnitude);
    if (magnitude == 0) {
      ++s.zero_count;
    } else {
      s.subnormal_count += magnitude < smallest_normal(dtype) ? 1 : 0;
      const int bin = std::ilogb(magnitude) - tdcore::kLog2Min;
      ++s.log2_counts[bin < 0 ? 0 : bin > 63 ? 63 : bin];
    }
  }
  if (!finite.empty()) {
    const long double mean = r.sum / static_cast<long double>(finite.size());
    for (double value : finite) {
      r.m2 += (static_cast<long double>(value) - mean) * (static_cast<long double>(value) - mean);
    }
  }
  return r;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool near(double got, long double want, long double tolerance) {
  if (want > static_cast<long double>(DBL_MAX)) {
    return std::isinf(got) && got > 0;
  }
  return std::fabs(static_cast<long double>(got) - want) <= tolerance;
}

void compare(const TensorStats& got, const Reference& want, Dtype dtype, const std::string& where) {
  const TensorStats& e = want.exact;
  check(got.count == e.count, where + ": count");
  check(got.nan_count == e.nan_count, where + ": nan_count");
  check(got.pos_inf_count == e.pos_inf_count, where + ": pos_inf_count");
  check(got.neg_inf_count == e.neg_inf_count, where + ": neg_inf_count");
  check(got.zero_count == e.zero_count, where + ": zero_count");
  check(got.subnormal_count == e.subnormal_count, where + ": subnormal_count");
  check(same(got.min, e.min) && same(got.max, e.max), where + ": min, max");
  check(same(got.abs_min, e.abs_min) && same(got.abs_max, e.abs_max), where + ": abs_min, abs_max");
  check(std::memcmp(got.log2_counts, e.log2_counts, sizeof e.log2_counts) == 0, where + ": log2_counts");
  const std::uint64_t finite = tdcore::finite_count(e);
  if (finite == 0) {
    check(std::isnan(got.mean) && got.m2 == 0 && got.abs_sum == 0, where + ": nothing finite");
    return;
  }
  const bool half = dtype == Dtype::kF16 || dtype == Dtype::kBF16;
  const long double relative = half ? 1e-6L : 1e-11L;
  const long double sum = static_cast<long double>(got.mean) * static_cast<long double>(finite);
  check(std::isfinite(got.mean) && std::fabs(sum - want.sum) <= relative * want.abs_sum, where + ": mean");
  check(near(got.abs_sum, want.abs_sum, relative * want.abs_sum), where + ": abs_sum");
  check(near(got.square_sum, want.square_sum, relative * want.square_sum + 1e-300L), where + ": square_sum");
  // Means are rounded: 2^-51 |mean| / std of the value, and for constant data the square of the mean's last
  // bit.
  const long double eps = half ? 0x1p-24L : 0x1p-53L;
  const long double noise =
      4 * eps * std::sqrt(want.square_sum * want.m2) + 4 * eps * eps * want.square_sum + 1e-300L;
  check(near(got.m2, want.m2, relative * want.m2 + noise), where + ": m2");
}

void compare_at_every_level(const Bytes& bytes, Dtype dtype, const std::string& what) {
  const std::size_t width = tdcore::dtype_bytes(dtype);
  const std::size_t elements = bytes.size() / width;
  const Reference want = reference_of(bytes.data(), elements, dtype);
  for (const char* level : kLevels) {
    const TensorStats got = tdcore::reduce_at_level(level, bytes.data(), elements, dtype);
    if (got.count == 0 && elements != 0) {
      continue;  // not this machine's
    }
    compare(got, want, dtype, what + " as " + name(dtype) + " at " + level);
  }
  // Off alignment, with the copy: the same result, the same bytes, nothing written beyond them.
  Bytes shifted(bytes.size() + 16, 0xab);
  Bytes copy(bytes.size() + 80, 0xcd);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  const TensorStats plain = tdcore::reduce(bytes.data(), elements, dtype);
  const TensorStats copied = tdcore::reduce_copy(shifted.data() + 1, copy.data() + 3, elements, dtype);
  check(same_bytes(&plain, &copied, sizeof plain), what + ": reduce_copy gives the bits of reduce");
  check(same_bytes(copy.data() + 3, bytes.data(), bytes.size()), what + ": reduce_copy copies");
  check(copy[2] == 0xcd && copy[bytes.size() + 3] == 0xcd, what + ": reduce_copy writes nothing else");
}

// ---- inputs ----

struct Case {
  std::string name;
  std::vector<double> values;
};

std::vector<Case> float_cases() {
  std::mt19937_64 random{7};
  std::normal_distribution<double> normal;
  const double inf = HUGE_VAL;
  std::vector<Case> cases;
  const auto fill = [&](const std::string& what, std::size_t n, auto&& value) {
    Case c{what, {}};
    for (std::size_t i = 0; i < n; ++i) {
      c.values.push_back(value(i));
    }
    cases.push_back(std::move(c));
  };
  for (int length : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 2047, 2048, 2049, 4096, 5000, 6145}) {
    const auto n = static_cast<std::size_t>(length);
    fill("normal of " + std::to_string(n), n, [&](std::size_t) { return normal(random); });
  }
  fill("mean 1e6 deviation 0.05", 9001, [&](std::size_t) { return 1e6 + 0.05 * normal(random); });
  fill("mean 1e4 deviation 0.01", 9001, [&](std::size_t) { return 1e4 + 0.01 * normal(random); });
  fill("constant 0.1", 5003, [](std::size_t) { return 0.1; });
  fill("constant 1e16", 5003, [](std::size_t) { return 1e16; });
  fill("constant 0", 5003, [](std::size_t) { return 0.0; });
  fill("both zeros", 5003, [](std::size_t i) { return i % 2 == 0 ? 0.0 : -0.0; });
  fill("all NaN", 5003, [](std::size_t) { return NAN; });
  fill("NaN first", 5003, [&](std::size_t i) { return i < 3000 ? NAN : 1e6 + 0.05 * normal(random); });
  fill("one NaN in the tail", 2049, [&](std::size_t i) { return i == 2048 ? NAN : normal(random); });
  fill("all -Inf", 4100, [&](std::size_t) { return -inf; });
  fill("mask of -Inf", 9001, [&](std::size_t) { return random() % 3 == 0 ? -inf : normal(random); });
  fill("-Inf in the second half", 9001, [&](std::size_t i) { return i > 4500 ? -inf : 1 + normal(random); });
  fill("NaN, Inf, zero mixed", 9001, [&](std::size_t i) {
    const double kinds[] = {NAN, inf, -inf, 0.0, -0.0, normal(random), 1e-3, 5e4};
    return kinds[(i * 7 + random() % 3) % 8];
  });
  fill("outlier first", 6000, [&](std::size_t i) { return i == 0 ? 1e30 : normal(random); });
  fill("outlier last", 6000, [&](std::size_t i) { return i == 5999 ? 1e30 : normal(random); });
  fill("step from 0 to 1e6", 9001, [](std::size_t i) { return i < 5000 ? 0.0 : 1e6; });
  fill("1e-30 to 1e30", 9001,
       [&](std::size_t) { return normal(random) * std::pow(10.0, static_cast<double>(random() % 61) - 30); });
  fill("around 1e-25", 9001, [&](std::size_t) { return 1e-25 * normal(random); });
  fill("float32 subnormals", 9001, [&](std::size_t) { return 1e-40 * normal(random); });
  fill("float16 subnormals", 9001, [&](std::size_t) { return 2e-5 * normal(random); });
  fill("half zeros", 9001, [&](std::size_t) { return std::fmax(0.0, normal(random)); });
  fill("largest float32", 9001,
       [](std::size_t i) { return (i % 3 == 0 ? -1.0 : 1.0) * static_cast<double>(FLT_MAX); });
  fill("largest float64", 5001, [](std::size_t i) { return i % 3 == 0 ? -DBL_MAX : DBL_MAX; });
  fill("float64 subnormals", 5001, [&](std::size_t) { return 1e-310 * normal(random); });
  fill("wide exponents", 20000,
       [&](std::size_t) { return std::ldexp(normal(random), static_cast<int>(random() % 90) - 60); });
  fill("powers of two", 5000, [](std::size_t i) { return std::ldexp(1.0, static_cast<int>(i % 80) - 50); });
  fill("just below powers of two", 5000,
       [](std::size_t i) { return std::ldexp(1.0 - 0x1p-11, static_cast<int>(i % 80) - 50); });
  return cases;
}

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random{seed};
  Bytes bytes(count);
  for (auto& byte : bytes) {
    byte = static_cast<unsigned char>(random());
  }
  return bytes;
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
    big[i] = (std::int64_t{1} << 53) + static_cast<std::int64_t>(i);  // beyond what float64 holds exactly
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
  std::printf("level %s, %d failures\n", tdcore::simd_level(), failures);
  return failures == 0 ? 0 : 1;
}
