#include "capture/capture_values.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "base/helper_pool.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

// Least bytes for which a helper is woken, and the bytes of small tensors that a helper takes at a time.
constexpr std::uint64_t kShareBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kPieceBytes = 256 * 1024;

struct RecordWrite {
  std::span<const PlannedTensor> items;
  Entry* entries;
  std::byte* payload;

  std::byte* destination(const PlannedTensor& item) const noexcept {
    return item.payload_offset == kNoPayload ? nullptr : payload + item.payload_offset;
  }
};

bool has_work(const PlannedTensor& item) noexcept { return item.stats || item.payload_bytes > 0; }

std::uint64_t work_bytes(const PlannedTensor& item) noexcept {
  return has_work(item) ? item.elements * dtype_bytes(item.request->tensor.dtype) : 0;
}

/// Reduces elements [first, first + elements) of an item.
TensorStats reduce_range(const PlannedTensor& item, std::byte* to, std::uint64_t first,
                         std::uint64_t elements) noexcept {
  const TensorView& view = item.request->tensor;
  const std::uint64_t begin = item.first_element + first;
  if (to == nullptr) return reduce_strided(view, begin, elements);
  return reduce_copy_strided(view, begin, elements, to + first * dtype_bytes(view.dtype));
}

void write_item(const RecordWrite& write, std::size_t i) noexcept {
  const PlannedTensor& item = write.items[i];
  const TensorView& view = item.request->tensor;
  if (!has_work(item)) return;
  std::byte* const to = write.destination(item);
  if (!item.stats) {
    copy_strided(view, item.first_element, item.elements, to);
  } else if (to == nullptr && item.parts == 1) {
    new (&write.entries[i].stats) TensorStats(reduce(view));  // constructed in place, without a copy
  } else {
    new (&write.entries[i].stats) TensorStats(reduce_range(item, to, 0, item.elements));
  }
}

// ---- with helpers ----

/// Items [first, last), or one chunk of item `first`, whose statistics are kept until all chunks are done.
struct Unit {
  std::size_t first = 0;
  std::size_t last = 0;
  std::uint64_t chunk = kWhole;
  TensorStats stats{};

  static constexpr std::uint64_t kWhole = ~std::uint64_t{0};
};

struct Job {
  const RecordWrite& write;
  std::vector<Unit>& units;
};

/// Whether chunks of the item can be reduced separately. A view without payload may be read in memory order,
/// which has no ranges in C order.
bool can_split(const PlannedTensor& item) noexcept {
  return item.elements > kChunkElements &&
         (item.payload_offset != kNoPayload || is_contiguous(item.request->tensor));
}

void plan_units(const RecordWrite& write, std::vector<Unit>& units) {
  units.clear();
  std::uint64_t bytes = kPieceBytes;  // size of the last unit; the first item begins a unit
  for (std::size_t i = 0; i < write.items.size(); ++i) {
    const PlannedTensor& item = write.items[i];
    if (has_work(item) && can_split(item)) {
      const std::uint64_t chunks = (item.elements - 1) / kChunkElements + 1;
      for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) units.push_back({i, i + 1, chunk, {}});
      bytes = kPieceBytes;
      continue;
    }
    if (bytes >= kPieceBytes) {
      units.push_back({i, i, Unit::kWhole, {}});
      bytes = 0;
    }
    units.back().last = i + 1;
    bytes += work_bytes(item);
  }
}

void run_unit(void* context, std::uint32_t index) noexcept {
  const Job& job = *static_cast<const Job*>(context);
  Unit& unit = job.units[index];
  if (unit.chunk == Unit::kWhole) {
    for (std::size_t i = unit.first; i < unit.last; ++i) write_item(job.write, i);
    return;
  }
  const PlannedTensor& item = job.write.items[unit.first];
  const TensorView& view = item.request->tensor;
  const std::uint64_t first = unit.chunk * kChunkElements;
  const std::uint64_t elements = std::min(kChunkElements, item.elements - first);
  std::byte* const to = job.write.destination(item);
  if (item.stats) {
    unit.stats = reduce_range(item, to, first, elements);
  } else {
    copy_strided(view, item.first_element + first, elements, to + first * dtype_bytes(view.dtype));
  }
}

void merge_chunks(const Job& job) noexcept {
  for (const Unit& unit : job.units) {
    if (unit.chunk == Unit::kWhole || !job.write.items[unit.first].stats) continue;
    TensorStats& stats = job.write.entries[unit.first].stats;
    if (unit.chunk == 0) {
      stats = unit.stats;
    } else {
      merge(stats, unit.stats);
    }
  }
}

/// Shares the work with helpers. False if the batch is too small, or there is no memory for the plan.
bool share(HelperPool& helpers, const RecordWrite& write) noexcept {
  std::uint64_t bytes = 0;
  for (const PlannedTensor& item : write.items) bytes += work_bytes(item);
  if (bytes < kShareBytes) return false;
  thread_local std::vector<Unit> units;  // keeps its capacity between calls
  try {
    plan_units(write, units);
  } catch (const std::bad_alloc&) {
    return false;
  }
  Job job{write, units};
  helpers.run(run_unit, &job, static_cast<std::uint32_t>(units.size()));
  merge_chunks(job);
  return true;
}

}  // namespace

void write_values(Ring& ring, std::span<const PlannedTensor> items, Entry* entries,
                  std::byte* payload) noexcept {
  const RecordWrite write{items, entries, payload};
  if (HelperPool* const helpers = ring.helpers(); helpers != nullptr && share(*helpers, write)) return;
  for (std::size_t i = 0; i < items.size(); ++i) write_item(write, i);
}

}  // namespace tdcore
