#include "sim/sim_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "stats/cpu.hpp"

namespace tdcore {
namespace {

TensorView view_of(const device::Launch& launch, const device::Item& item,
                   const std::int64_t& elements) noexcept {
  const auto dtype = static_cast<Dtype>(item.dtype);
  if (item.layout == device::kContiguous)
    return {.data = item.data, .shape = &elements, .strides = nullptr, .ndim = 1, .dtype = dtype};
  const device::ItemLayout& layout = launch.layouts[item.layout];
  return {.data = item.data,
          .shape = layout.shape,
          .strides = layout.strides,
          .ndim = static_cast<int>(layout.ndim),
          .dtype = dtype};
}

/// Whether the tile numbers of the items agree with the launch.
bool tiles_agree(const device::Launch& launch) noexcept {
  std::uint64_t tiles = 0;
  for (std::uint32_t i = 0; i < launch.count; ++i) {
    if (launch.items[i].first_tile != tiles) return false;
    tiles += device::tiles_of(launch.items[i].elements);
  }
  return tiles == launch.tiles;
}

/// Packs elements of kF32 or kF64 as kF16 or kBF16.
void pack_narrowed(const TensorView& view, const device::Item& item) noexcept {
  const bool half = static_cast<Dtype>(item.packed_dtype) == Dtype::kF16;
  auto* const to = static_cast<std::uint16_t*>(item.packed);
  for (std::uint64_t i = 0; i < item.elements; ++i) {
    std::byte element[8];
    copy_strided(view, item.first_element + i, 1, element);
    double value = 0;
    if (view.dtype == Dtype::kF64) {
      std::memcpy(&value, element, sizeof value);
    } else {
      float narrow = 0;
      std::memcpy(&narrow, element, sizeof narrow);
      value = static_cast<double>(narrow);
    }
    to[i] = half ? narrow_float(value, 5, 10) : narrow_float(value, 8, 7);
  }
}

void pack_item(SimPace& pace, const device::Launch& launch, const device::Item& item) noexcept {
  const auto elements = static_cast<std::int64_t>(item.elements);
  const TensorView view = view_of(launch, item, elements);
  if (item.packed_dtype != item.dtype) return pack_narrowed(view, item);
  const std::uint64_t size = dtype_bytes(view.dtype);
  const std::uint64_t cut = item.elements / 2;
  // The end is written first, so that code that waits only for the last byte reads too early.
  copy_strided(view, item.first_element + cut, item.elements - cut,
               static_cast<std::byte*>(item.packed) + cut * size);
  pace.pause();
  copy_strided(view, item.first_element, cut, item.packed);
}

}  // namespace

void copy_in_pieces(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (bytes < 2 || pace.draw(2) == 0) {
    std::memcpy(target, source, bytes);
    return;
  }
  const std::uint64_t cut = 1 + pace.draw(bytes - 1);
  const bool end_first = pace.draw(2) == 0;
  for (const bool end : {end_first, !end_first}) {
    std::memcpy(target + (end ? cut : 0), source + (end ? cut : 0), end ? bytes - cut : cut);
    pace.pause();
  }
}

void copy_out(SimPace& pace, void* to, const void* from, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (bytes < 2 * kWord || (reinterpret_cast<std::uintptr_t>(to) | bytes) % kWord != 0)
    return copy_in_pieces(pace, to, from, bytes);
  copy_in_pieces(pace, target + kWord, source + kWord, bytes - 2 * kWord);
  for (const std::uint64_t at : {std::uint64_t{0}, bytes - kWord}) {
    std::uint64_t word = 0;
    std::memcpy(&word, source + at, kWord);
    // Release: pairs with the acquire of the consumer that reads the guards.
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(target + at))
        .store(word, std::memory_order_release);
    pace.pause();
  }
}

bool run_stats(SimPace& pace, const device::Launch& launch) noexcept {
  bool sound = tiles_agree(launch) && *launch.finished_items == 0;
  for (std::uint32_t i = 0; i < launch.count; ++i) sound = sound && launch.finished_tiles[i] == 0;
  for (std::uint32_t turn = launch.count; turn > 0; --turn) {  // the last item first
    const device::Item& item = launch.items[turn - 1];
    launch.finished_tiles[turn - 1] = 1;
    const std::uint64_t tiles = device::tiles_of(item.elements);
    // The partial results are written, as by the kernel.
    for (std::uint64_t tile = 0; tiles > 1 && tile < tiles; ++tile)
      launch.partials[item.first_tile + tile] = empty_stats();
    const auto elements = static_cast<std::int64_t>(item.elements);
    const TensorStats stats =
        reduce_strided(view_of(launch, item, elements), item.first_element, item.elements);
    pace.pause();
    auto* const to = reinterpret_cast<std::byte*>(item.stats);
    const auto* const from = reinterpret_cast<const std::byte*>(&stats);
    // The count is stored last, because it marks the other values as complete.
    std::memcpy(to + sizeof stats.count, from + sizeof stats.count, sizeof stats - sizeof stats.count);
    // Release: pairs with the acquire of the consumer that checks for early commit words.
    std::atomic_ref<std::uint64_t>(item.stats->count).store(stats.count, std::memory_order_release);
    launch.finished_tiles[turn - 1] = 0;
  }
  return sound;
}

bool run_pack(SimPace& pace, const device::Launch& launch) noexcept {
  for (std::uint32_t turn = launch.count; turn > 0; --turn) {
    pack_item(pace, launch, launch.items[turn - 1]);
    pace.pause();
  }
  return tiles_agree(launch);
}

bool run_inline(SimPace& pace, const device::InlineLaunch& launch) noexcept {
  device::Launch stats = launch.launch;
  stats.items = launch.items;
  stats.layouts = launch.layouts;
  stats.tiles = launch.stats_tiles;
  bool sound = run_stats(pace, stats);
  std::uint64_t tiles = launch.stats_tiles;
  for (std::uint32_t i = 0; i < launch.packs; ++i) {
    sound = sound && launch.items[launch.launch.count + i].first_tile == tiles;
    tiles += device::tiles_of(launch.items[launch.launch.count + i].elements);
  }
  sound = sound && tiles == launch.launch.tiles && tiles - launch.stats_tiles == launch.pack_tiles;
  for (std::uint32_t turn = launch.packs; turn > 0; --turn) {
    pack_item(pace, stats, launch.items[launch.launch.count + turn - 1]);
    pace.pause();
  }
  for (void* const place : launch.guards) {
    if (place == nullptr) continue;
    auto* const words = static_cast<std::uint64_t*>(place);
    std::fill_n(words + 1, device::kGuardWords - 1, 0);
    // Release: pairs with the acquire of the consumer that reads the guards.
    std::atomic_ref<std::uint64_t>(words[0]).store(launch.guard, std::memory_order_release);
    pace.pause();
  }
  return sound;
}

CollectedResults choose_results(const device::Collection& collection,
                                const device::CollectedRecord& record) noexcept {
  std::array<bool, device::kCollectedEntries> counts{};
  device::CollectionOutcome sum{};
  bool any = false;
  for (std::uint32_t i = 0; i < record.batch_count; ++i) {
    const device::CollectedBatch& batch = record.batches[i];
    counts[i] = *batch.ran == collection.epoch && *batch.claim != collection.epoch;
    if (!counts[i]) continue;
    any = true;
    *batch.claim = collection.epoch;
    sum.tensors += batch.tensors;
    sum.without_values += batch.without_values;
    sum.without_value_bytes += batch.without_value_bytes;
  }
  *record.outcome = sum;
  if (!any) *record.kind = collection.aborted;
  CollectedResults results{};
  auto* const entries = reinterpret_cast<std::byte*>(record.entries);
  for (std::uint32_t entry = 0; entry < record.count; ++entry) {
    const device::CollectedEntry& source = record.sources[entry];
    if (counts[source.batch]) {
      results[entry] = source.result;
    } else {
      entries[std::uint64_t{entry} * collection.entry_bytes + collection.status_offset] =
          std::byte(collection.no_row);
    }
  }
  return results;
}

void copy_results(SimPace& pace, const device::Collection& collection, const device::CollectedRecord& record,
                  const CollectedResults& results) noexcept {
  constexpr std::size_t kCountBytes = sizeof(TensorStats::count);
  for (std::uint32_t entry = record.count; entry-- > 0;) {
    if (results[entry] == nullptr) continue;
    const auto* const from = reinterpret_cast<const std::byte*>(results[entry]);
    auto* const to =
        reinterpret_cast<std::byte*>(record.entries) + std::uint64_t{entry} * collection.entry_bytes;
    std::memcpy(to + kCountBytes, from + kCountBytes, sizeof(TensorStats) - kCountBytes);
    pace.pause();
    std::uint64_t count = 0;
    std::memcpy(&count, from, kCountBytes);
    // Release: pairs with the acquire of the consumer that checks for early commit words.
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(to))
        .store(count, std::memory_order_release);
  }
}

std::uint16_t narrow_float(double value, int exponent_bits, int mantissa_bits) noexcept {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned infinity = ((1U << exponent_bits) - 1U) << mantissa_bits;
  const unsigned sign = std::signbit(value) ? 1U << (exponent_bits + mantissa_bits) : 0U;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | infinity | (1U << (mantissa_bits - 1)));
  const double size = std::fabs(value);
  if (size == 0 || std::isinf(value)) return static_cast<std::uint16_t>(sign | (size == 0 ? 0U : infinity));
  const int exponent = std::clamp(std::ilogb(size), 1 - bias, bias + 1);
  // In units of the last place. The scaling is exact, and its result is rounded once.
  const double units = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
  const double limit = std::ldexp(1.0, mantissa_bits + 2);
  // The leading bit of the mantissa adds one to the exponent; a carry also adds one.
  const unsigned bits = (static_cast<unsigned>(exponent + bias - 1) << mantissa_bits) +
                        static_cast<unsigned>(std::min(units, limit));
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

}  // namespace tdcore
