// gpu_kernels.cpp: compares the kernels with the CPU path, and their speed with a copy within the device.
//
// Speed is in bytes of the tensors per second. The time of a launch is the mean of many launches between two
// waits. A copy reads and writes each byte, so "traffic" counts the bytes of pack and copy twice; statistics
// only read. Before each round of a kernel, a copy of the same number of bytes is timed, so that a slow phase
// of the machine affects both.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "gpu_launches.hpp"
#include "stats/cpu.hpp"

namespace tdcore::bench {
namespace {

bool near(double got, double expected, double slack) {
  return (std::isnan(got) && std::isnan(expected)) || got == expected || std::fabs(got - expected) <= slack;
}

/// Counts, extremes and histogram must be equal; means and sums must agree within rounding.
bool same_statistics(const TensorStats& got, const TensorStats& expected) {
  const auto bits = [](double value) { return std::isnan(value) ? 0 : value; };
  const double n = static_cast<double>(finite_count(expected));
  return got.count == expected.count && got.nan_count == expected.nan_count &&
         got.pos_inf_count == expected.pos_inf_count && got.neg_inf_count == expected.neg_inf_count &&
         got.zero_count == expected.zero_count && got.subnormal_count == expected.subnormal_count &&
         bits(got.min) == bits(expected.min) && bits(got.max) == bits(expected.max) &&
         bits(got.abs_min) == bits(expected.abs_min) && bits(got.abs_max) == bits(expected.abs_max) &&
         std::memcmp(got.log2_counts, expected.log2_counts, sizeof got.log2_counts) == 0 &&
         near(got.mean, expected.mean, 1e-6 * expected.abs_sum / std::max(n, 1.0)) &&
         near(got.abs_sum, expected.abs_sum, 1e-6 * expected.abs_sum) &&
         near(got.square_sum, expected.square_sum, 1e-6 * expected.square_sum) &&
         near(got.m2, expected.m2, 1e-5 * expected.m2 + 1e-9 * expected.square_sum);
}

/// Number of tensors whose statistics or packed bytes differ from those of the CPU path.
std::uint64_t differing(Device& device, StreamHandle stream, Pool& pool, const List& list,
                        TensorStats* results) {
  pool.reset();
  const Placed placed(device, stream, pool, list, results);
  std::uint64_t different = 0;
  for (int round = 0; round < 2; ++round) {  // the second round uses the counters of the first
    std::memset(results, 0xA5, list.tensors.size() * sizeof(TensorStats));
    check(device, device.launch(stream, Kernel::kStats, placed.stats()), "the statistics kernel");
    check(device, device.launch(stream, Kernel::kPack, placed.pack()), "the pack kernel");
    wait(device, stream);
    for (std::size_t i = 0; i < list.tensors.size(); ++i) {
      const Shape& shape = list.tensors[i];
      const TensorView view{placed.contents(i).data(), shape.extents.data(),
                            shape.strides.empty() ? nullptr : shape.strides.data(),
                            static_cast<int>(shape.extents.size()), shape.dtype};
      std::vector<std::byte> expected(shape.elements() * dtype_bytes(shape.dtype)), got(expected.size());
      copy_strided(view, 0, shape.elements(), expected.data());
      if (!got.empty()) download(device, stream, got.data(), placed.packed(i), got.size());
      const bool equal = got == expected && same_statistics(results[i], reduce(view));
      if (!equal) {
        std::fprintf(stderr, "%s, tensor %zu, round %d: differs from the CPU path\n", list.name.c_str(), i,
                     round);
        ++different;
      }
    }
  }
  return different;
}

/// Tensors of one dtype with irregular sizes, and strided views.
List ragged(const List& one) {
  const Dtype dtype = one.tensors[0].dtype;
  List list{one.name + ", ragged", {}};
  for (const std::int64_t elements :
       {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 255, 257, 4097, 16383, 16384, 16385, 32768, 50001, 200003}) {
    list.tensors.push_back({{elements}, {}, dtype});
  }
  list.tensors.push_back({{130, 70}, {1, 130}, dtype});
  list.tensors.push_back({{3, 5, 7, 11}, {385, 1, 55, 5}, dtype});
  list.tensors.push_back({{100, 50}, {120, 2}, dtype});
  list.tensors.push_back({{40, 30}, {0, 1}, dtype});
  list.tensors.push_back({{500}, {0}, dtype});
  return list;
}

struct Rates {
  double copy = 0, pack = 0, stats = 0;  // seconds of one launch
};

Rates measure(Device& device, StreamHandle stream, const Options& options, const Placed& placed,
              std::uint64_t bytes, bool packs) {
  const PlainCopies plain(options.device);
  std::vector<double> copy, pack, stats;
  const auto time_copy = [&] {
    if (!plain.there()) return;
    copy.push_back(seconds_of(device, stream, options.seconds, [&] {
      check(device, plain.within(placed.target(), placed.begin(), bytes, stream), "a plain copy");
    }));
  };
  for (int round = 0; round < options.rounds; ++round) {
    time_copy();
    stats.push_back(seconds_of(device, stream, options.seconds, [&] {
      check(device, device.launch(stream, Kernel::kStats, placed.stats()), "the statistics kernel");
    }));
    if (!packs) continue;
    time_copy();
    pack.push_back(seconds_of(device, stream, options.seconds, [&] {
      check(device, device.launch(stream, Kernel::kPack, placed.pack()), "the pack kernel");
    }));
  }
  return {copy.empty() ? NAN : median(copy), pack.empty() ? NAN : median(pack), median(stats)};
}

std::string row(const List& list, const Rates& rates) {
  const double gigabytes = static_cast<double>(list.bytes()) / 1e9;
  std::vector<std::string> fields = {
      field("list", list.name), field("bytes", static_cast<double>(list.bytes())),
      field("tensors", static_cast<double>(list.tensors.size())), field("stats_us", rates.stats * 1e6),
      field("stats_gb_per_s", gigabytes / rates.stats)};
  const bool packed = !std::isnan(rates.pack), copied = !std::isnan(rates.copy);
  if (packed) {
    fields.push_back(field("pack_us", rates.pack * 1e6));
    fields.push_back(field("pack_gb_per_s", gigabytes / rates.pack));
  }
  if (copied) {
    fields.push_back(field("copy_gb_per_s", gigabytes / rates.copy));
    fields.push_back(field("stats_of_copy_traffic", rates.copy / 2 / rates.stats));
  }
  if (packed && copied) fields.push_back(field("pack_of_copy", rates.copy / rates.pack));
  return object(fields);
}

}  // namespace

std::string check_kernels(Device& device) {
  std::vector<List> all;
  for (const List& one : one_of_each_dtype(64)) all.push_back(ragged(one));
  for (const List& list : lists(std::uint64_t{8} << 20)) all.push_back(list);
  std::uint64_t pool_size = 0, most = 0, tensors = 0, different = 0;
  for (const List& list : all) {
    pool_size = std::max(pool_size, pool_bytes(list));
    most = std::max<std::uint64_t>(most, list.tensors.size());
  }
  const StreamHandle stream = device.make_stream();
  Pool pool(device, pool_size);
  auto* results = static_cast<TensorStats*>(pinned_memory(device, most * sizeof(TensorStats)));
  for (const List& list : all) {
    different += differing(device, stream, pool, list, results);
    tensors += list.tensors.size();
  }
  std::fprintf(stderr, "kernels checked: %llu tensors, %llu times not as on the CPU\n",
               static_cast<unsigned long long>(tensors), static_cast<unsigned long long>(different));
  return object(
      {field("tensors", static_cast<double>(tensors)), field("different", static_cast<double>(different))});
}

std::string kernel_rates(Device& device, const Options& options) {
  const std::uint64_t most = options.quick ? std::uint64_t{4} << 20 : std::uint64_t{1} << 30;
  const std::vector<List> mixed = lists(most), dtypes = one_of_each_dtype(most / 4);
  std::uint64_t pool_size = 0, tensors = 0;
  for (const auto* group : {&mixed, &dtypes}) {
    for (const List& list : *group) {
      pool_size = std::max(pool_size, pool_bytes(list));
      tensors = std::max<std::uint64_t>(tensors, list.tensors.size());
    }
  }
  const StreamHandle stream = device.make_stream();
  Pool pool(device, pool_size);
  auto* results = static_cast<TensorStats*>(pinned_memory(device, tensors * sizeof(TensorStats)));
  std::vector<std::string> rows;
  for (const auto* group : {&mixed, &dtypes}) {
    for (const List& list : *group) {
      pool.reset();
      const Placed placed(device, stream, pool, list, results);
      const std::string text =
          row(list, measure(device, stream, options, placed, list.bytes(), group == &mixed));
      std::fprintf(stderr, "%s\n", text.c_str());
      rows.push_back(text);
    }
  }
  return array(rows);
}

}  // namespace tdcore::bench
