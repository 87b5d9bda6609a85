// kernel_launches.hpp: lists of tensors as launches of the kernels, run on the CPU (gpu_emulation.hpp).
// Threads: none of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu_emulation.hpp"
// Included after the names that it uses.
#include "cuda/kernels.cuh"
#include "device/device_table.hpp"
#include "stats/cpu.hpp"

namespace tdcore::testing {

/// A tensor, or a range of a tensor, for a launch. Empty shape and strides: contiguous.
struct Piece {
  const void* data = nullptr;
  std::uint64_t first = 0, elements = 0;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape, strides;
  Dtype packed_dtype = Dtype::kUnknown;  // kUnknown: same as dtype
  void* packed = nullptr;
  bool transposes = true;  // false: values are gathered element by element
};

/// Grid of a launch.
struct Spread {
  std::uint32_t blocks = 4, resident = 3;
  unsigned seed = 1;
  std::uint64_t part = ~std::uint64_t{0};  // largest number of tiles of a launch
};

inline constexpr std::uint64_t kCommitted = 0x1234567890ABCDEF;
inline constexpr std::uint64_t kGuard = 0xFEDCBA0987654321;

class LaunchTable {
 public:
  explicit LaunchTable(const std::vector<Piece>& pieces) : results_(pieces.size()) {
    std::uint64_t tiles = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      device::Item item{};
      item.data = piece.data;
      item.first_element = piece.first;
      item.elements = piece.elements;
      item.first_tile = tiles;
      item.packed = piece.packed;
      item.stats = &results_[i];
      item.layout = device::kContiguous;
      item.dtype = static_cast<std::uint8_t>(piece.dtype);
      item.packed_dtype =
          static_cast<std::uint8_t>(piece.packed_dtype == Dtype::kUnknown ? piece.dtype : piece.packed_dtype);
      if (!piece.strides.empty()) {
        item.layout = static_cast<std::uint32_t>(layouts_.size());
        device::ItemLayout layout{};
        layout.ndim = static_cast<std::uint32_t>(piece.shape.size());
        std::copy(piece.shape.begin(), piece.shape.end(), layout.shape);
        std::copy(piece.strides.begin(), piece.strides.end(), layout.strides);
        if (piece.transposes) layout.row_axes = row_axes_of(layout);
        layouts_.push_back(layout);
      }
      tiles += device::tiles_of(piece.elements);
      items_.push_back(item);
    }
    partials_.resize(tiles);
    counters_.assign(device::counters_of(tiles, items_.size()) + 1, 0);
    launch_.items = items_.data();
    launch_.layouts = layouts_.data();
    launch_.tiles = tiles;
    launch_.count = static_cast<std::uint32_t>(items_.size());
    launch_.partials = partials_.data();
    launch_.finished_tiles = counters_.data() + 1;
    launch_.finished_items = counters_.data();
    launch_.commit_word = &word_;
    launch_.commit_value = kCommitted;
  }
  LaunchTable(const LaunchTable&) = delete;
  LaunchTable& operator=(const LaunchTable&) = delete;

  /// Statistics of all pieces; the word is committed once, after all results.
  std::vector<TensorStats> stats(const Spread& spread) {
    return committed(
        [&] { run(spread, [](const device::Launch& part) { tdcore_stats(with_table(part)); }); });
  }

  /// As stats(), with the table in the parameters. Pieces with `packed` are also packed, and `guards` (if
  /// they are not null) are written, by the same launch.
  std::vector<TensorStats> inlined(const Spread& spread, std::uint64_t* before = nullptr,
                                   std::uint64_t* after = nullptr) {
    device::InlineLaunch all{};
    all.launch = launch_;
    all.launch.items = nullptr;
    all.launch.layouts = nullptr;
    all.stats_tiles = launch_.tiles;
    REQUIRE(layouts_.size() <= device::kInlineLayouts);
    std::copy(layouts_.begin(), layouts_.end(), all.layouts);
    REQUIRE(items_.size() <= device::kInlineItems);
    std::copy(items_.begin(), items_.end(), all.items);
    for (device::Item item : items_) {
      if (item.packed == nullptr) continue;
      item.first_tile = all.launch.tiles;
      all.launch.tiles += device::tiles_of(item.elements);
      REQUIRE(items_.size() + all.packs < device::kInlineItems);
      all.items[items_.size() + all.packs++] = item;
    }
    all.pack_tiles = all.launch.tiles - all.stats_tiles;
    all.guards[0] = before;
    all.guards[1] = after;
    all.guard = kGuard;
    return committed([&] {
      const std::uint64_t tiles = all.launch.tiles;
      do {
        all.launch.tiles = std::min(tiles - all.launch.first_tile, spread.part) + all.launch.first_tile;
        emulation::run_blocks(spread.blocks, device::kThreads, spread.resident, spread.seed,
                              [&] { tdcore_stats(all); });
        all.launch.first_tile = all.launch.tiles;
      } while (all.launch.first_tile < tiles);
    });
  }

  void pack(const Spread& spread) {
    run(spread, [](const device::Launch& part) { tdcore_pack(part); });
  }

  static bool same_bits(const std::vector<TensorStats>& a, const std::vector<TensorStats>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(TensorStats)) == 0);
  }

  /// Called when the word is committed.
  std::function<void()> on_commit;

 private:
  static device::InlineLaunch with_table(const device::Launch& launch) {
    device::InlineLaunch all{};
    all.launch = launch;
    return all;
  }

  template <class Launches>
  std::vector<TensorStats> committed(Launches launches) {
    for (std::vector<TensorStats>* stats : {&results_, &partials_}) {
      if (!stats->empty()) std::memset(stats->data(), 0xA5, stats->size() * sizeof(TensorStats));
    }
    word_ = 0;
    std::uint32_t stores = 0;
    std::vector<TensorStats> at_commit;
    device::on_store_release = [&](std::uint64_t*, std::uint64_t) {
      ++stores;
      at_commit = results_;
      if (on_commit) on_commit();
    };
    launches();
    device::on_store_release = nullptr;
    REQUIRE(stores == 1 && word_ == kCommitted);
    REQUIRE(at_commit.size() == results_.size() && same_bits(at_commit, results_));
    for (std::uint32_t counter : counters_) REQUIRE(counter == 0);
    return results_;
  }

  template <class Kernel>
  void run(const Spread& spread, Kernel kernel) {
    device::Launch part = launch_;
    do {
      part.tiles = std::min(launch_.tiles - part.first_tile, spread.part) + part.first_tile;
      emulation::run_blocks(spread.blocks, device::kThreads, spread.resident, spread.seed,
                            [&] { kernel(part); });
      part.first_tile = part.tiles;
    } while (part.first_tile < launch_.tiles);
  }

  std::vector<device::Item> items_;
  std::vector<device::ItemLayout> layouts_;
  std::vector<TensorStats> results_, partials_;
  std::vector<std::uint32_t> counters_;
  std::uint64_t word_ = 0;
  device::Launch launch_{};
};

}  // namespace tdcore::testing
