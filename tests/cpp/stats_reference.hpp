// stats_reference.hpp: statistics by a plain loop in long double, written independently of the code under
// test, and inputs that are difficult for that code. Threads: pure functions; check() from any thread.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "stats/cpu.hpp"

namespace tdcore::testing {

inline void check(bool ok, const std::string& what) {
  if (!ok && failures.fetch_add(1, std::memory_order_relaxed) < 40) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  }
}

inline constexpr Dtype kFloats[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16};
inline constexpr Dtype kIntegers[] = {Dtype::kBool, Dtype::kU8,  Dtype::kI8,  Dtype::kU16, Dtype::kI16,
                                      Dtype::kU32,  Dtype::kI32, Dtype::kU64, Dtype::kI64};

inline const char* name(Dtype dtype) {
  constexpr const char* kNames[] = {"unknown", "bool", "u8",     "i8",     "u16", "i16",
                                    "u32",     "i32",  "u64",    "i64",    "f16", "bf16",
                                    "f32",     "f64",  "f8e4m3", "f8e5m2", "c64", "c128"};
  return kNames[static_cast<int>(dtype)];
}

using Bytes = std::vector<unsigned char>;

inline bool same_bytes(const void* a, const void* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

// ---- encoding and decoding, written independently of the code under test ----

inline double decode_small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool has_inf) {
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

inline double decode(const unsigned char* data, std::size_t i, Dtype dtype) {
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

inline double smallest_normal(Dtype dtype) {
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

/// Bits of the float16 or bfloat16 next to `value` towards zero; Inf if the value is too large.
inline std::uint16_t encode_half(double value, Dtype dtype) {
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

inline Bytes encode(const std::vector<double>& values, Dtype dtype) {
  const std::size_t width = dtype_bytes(dtype);
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
  TensorStats exact = empty_stats();  // counts, extremes, histogram
  long double sum = 0, m2 = 0, abs_sum = 0, square_sum = 0;
};

inline Reference reference_of(const unsigned char* data, std::size_t elements, Dtype dtype) {
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
      const int bin = std::ilogb(magnitude) - kLog2Min;
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

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline bool near(double got, long double want, long double tolerance) {
  if (want > static_cast<long double>(DBL_MAX)) {
    return std::isinf(got) && got > 0;
  }
  return std::fabs(static_cast<long double>(got) - want) <= tolerance;
}

/// float32_sums: whether short sums may be computed in float32, as for float16 and bfloat16.
inline void compare(const TensorStats& got, const Reference& want, bool float32_sums,
                    const std::string& where) {
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
  const std::uint64_t finite = finite_count(e);
  if (finite == 0) {
    check(std::isnan(got.mean) && got.m2 == 0 && got.abs_sum == 0, where + ": nothing finite");
    return;
  }
  const long double relative = float32_sums ? 1e-6L : 1e-11L;
  const long double sum = static_cast<long double>(got.mean) * static_cast<long double>(finite);
  check(std::isfinite(got.mean) && std::fabs(sum - want.sum) <= relative * want.abs_sum, where + ": mean");
  check(near(got.abs_sum, want.abs_sum, relative * want.abs_sum), where + ": abs_sum");
  check(near(got.square_sum, want.square_sum, relative * want.square_sum + 1e-300L), where + ": square_sum");
  // Means are rounded: 2^-51 |mean| / std of the value, and for constant data the square of the mean's last
  // bit.
  constexpr long double kEps = 0x1p-53L;
  const long double noise =
      4 * kEps * std::sqrt(want.square_sum * want.m2) + 4 * kEps * kEps * want.square_sum + 1e-300L;
  check(near(got.m2, want.m2, relative * want.m2 + noise), where + ": m2");
}

inline void compare(const TensorStats& got, const Reference& want, Dtype dtype, const std::string& where) {
  compare(got, want, dtype == Dtype::kF16 || dtype == Dtype::kBF16, where);
}

// ---- inputs ----

struct Case {
  std::string name;
  std::vector<double> values;
};

inline std::vector<Case> float_cases() {
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

inline Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random{seed};
  Bytes bytes(count);
  for (auto& byte : bytes) {
    byte = static_cast<unsigned char>(random());
  }
  return bytes;
}

}  // namespace tdcore::testing
