// Capture on a simulated device: its records are equal to the records of the same tensors on the CPU.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "device/device_table.hpp"
#include "device_rig.hpp"
#include "sim/sim_kernels.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

/// Captures on the device and on the CPU. True if all rows and payloads are equal, bit for bit.
bool agrees_with_the_cpu(const std::vector<TensorRequest>& requests, const SimDeviceOptions& options = {}) {
  Rig rig(options);
  Ring ring(config(8 * kMiB, 256));
  Consumer host(ring.memory());
  const CaptureResult expected = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 3});
  const CaptureResult result = rig.capture(requests);
  const DrainedBatches want = drain(host, ~std::uint64_t{0}, 1000, false);
  const DrainedBatches got = rig.drain_all();
  bool same = result.kept == expected.kept && result.not_kept == expected.not_kept &&
              result.payload_bytes == expected.payload_bytes && got.rows.size() == want.rows.size() &&
              got.torn == 0 && rig.device->violations() == 0;
  for (std::size_t i = 0; same && i < want.rows.size(); ++i) {
    same = same_row(want.rows[i], got.rows[i]) &&
           payload_bytes_of(host, want.rows[i]) == payload_bytes_of(*rig.consumer, got.rows[i]);
  }
  for (std::size_t reason = 0; reason < static_cast<std::size_t>(DropReason::kCount); ++reason) {
    const auto of = static_cast<DropReason>(reason);
    same = same && rig.dropped(of) == ring.counters().drops[reason].tensors &&
           rig.dropped_bytes(of) == ring.counters().drops[reason].bytes;
  }
  return same;
}

constexpr Dtype kEvery[] = {Dtype::kBool, Dtype::kU8,  Dtype::kI8,  Dtype::kU16,    Dtype::kI16,
                            Dtype::kU32,  Dtype::kI32, Dtype::kU64, Dtype::kI64,    Dtype::kF16,
                            Dtype::kBF16, Dtype::kF32, Dtype::kF64, Dtype::kF8E4M3, Dtype::kF8E5M2,
                            Dtype::kC64,  Dtype::kC128};

void values_and_rows() {
  for (const CommitMode commit_mode :
       {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll}) {
    it("every dtype has the CPU path's rows and values, on every rung", [&] {
      std::vector<Tensor> tensors;
      for (const Dtype dtype : kEvery) tensors.emplace_back(dtype, std::vector<std::int64_t>{7, 33});
      std::vector<TensorRequest> requests;
      for (const Tensor& tensor : tensors) {
        const auto name = static_cast<std::uint32_t>(requests.size());
        requests.push_back(tensor.request(kAll, name));
        requests.push_back(tensor.request(kWantPayload, name + 1));
        requests.push_back(tensor.request(kWantStats, name + 2));
      }
      REQUIRE(agrees_with_the_cpu(requests, {.best_commit_mode = commit_mode}));
    });
  }
  it("a mixed call keeps its order, its absent and its skipped rows", [] {
    const Tensor a(Dtype::kF32, {3, 4});
    const Tensor empty(Dtype::kF32, {0, 7});
    const Tensor scalar(Dtype::kF64, {});
    REQUIRE(agrees_with_the_cpu({a.request(kAll, 1), a.request(kWantStats, 2),
                                 without_value(EntryStatus::kAbsent, DropReason::kNone, 3),
                                 without_value(EntryStatus::kSkipped, DropReason::kSparse, 4),
                                 empty.request(kAll, 5), a.request(0, 6), scalar.request(kAll, 7),
                                 a.request(kAll, kNoName)}));
  });
  it("an absent row of a device has its reason", [] {
    const Tensor a(Dtype::kF32, {3, 4});
    TensorRequest absent = without_value(EntryStatus::kAbsent, DropReason::kNone, 2);
    absent.absent = AbsentReason::kCleared;
    Rig rig;
    (void)rig.capture({a.request(kAll, 1), absent});
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 2 && drained.rows[1].entry.absent == AbsentReason::kCleared);
  });
  it("a call without any work for the device is a record all the same", [] {
    const Tensor empty(Dtype::kI32, {0});
    REQUIRE(agrees_with_the_cpu(
        {empty.request(kAll, 1), without_value(EntryStatus::kAbsent, DropReason::kNone, 2)}));
    REQUIRE(agrees_with_the_cpu({empty.request(kWantStats, 1)}));
  });
  it("statistics alone are committed by the kernel that makes them", [] {
    const Tensor a(Dtype::kF32, {40'000});
    const Tensor b(Dtype::kBF16, {17});
    REQUIRE(agrees_with_the_cpu({a.request(kWantStats, 1), b.request(kWantStats, 2)}));
  });
  it("large payloads begin on a page, with zeros up to the next", [] {
    const Tensor a(Dtype::kF32, {11, 10'001});
    const Tensor b(Dtype::kU8, {13});
    Rig rig({}, config(8 * kMiB, 256), small_memory(8 * kMiB));
    (void)rig.capture({b.request(kAll, 1), a.request(kAll, 2)});
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.batches.size() == 1 && drained.rows.size() == 2);
    for (const Batch& batch : drained.batches) {
      REQUIRE(batch.payload_bytes >= kDirectPayloadBytes && batch.direct());
      const IndexRow& row = drained.rows[1];
      const std::byte* const payload = rig.consumer->data()[batch.lane] + batch.location;
      REQUIRE(std::all_of(payload + row.entry.payload_offset + row.entry.payload_bytes,
                          payload + batch.payload_bytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
    }
  });
  it("what lies between payloads is zero, whatever lay in the arena before", [] {
    const Tensor a(Dtype::kU8, {3});
    const Tensor b(Dtype::kU8, {100'001});
    Rig rig({}, config(8 * kMiB, 256), small_memory());
    for (int round = 0; round < 20; ++round) {
      (void)rig.capture({b.request(kWantPayload, 1), a.request(kWantPayload, 2), a.request(kWantPayload, 3)});
      const DrainedBatches drained = rig.drain_all();
      REQUIRE(drained.batches.size() == 1 && drained.rows.size() == 3);
      const Batch& batch = drained.batches[0];
      const std::byte* const payload = rig.consumer->data()[batch.lane] + batch.location;
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < batch.payload_bytes; ++i) sum += static_cast<std::uint64_t>(payload[i]);
      for (const IndexRow& row : drained.rows) {
        for (const std::byte byte : payload_bytes_of(*rig.consumer, row))
          sum -= static_cast<std::uint64_t>(byte);
      }
      REQUIRE(sum == 0);
      release(*rig.consumer, drained);
    }
  });
}

void strides() {
  const auto strided = [](Dtype dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> steps,
                          std::uint64_t behind, std::uint64_t first = 0) {
    Tensor tensor(dtype, std::move(shape), std::move(steps), behind);
    tensor.first = first;
    return tensor;
  };
  for (const Dtype dtype : {Dtype::kU8, Dtype::kF16, Dtype::kF32, Dtype::kF64, Dtype::kC128}) {
    it("views of any strides are gathered in C order", [&] {
      const Tensor transposed = strided(dtype, {31, 17}, {1, 31}, 31 * 17);
      const Tensor expanded = strided(dtype, {5, 4, 3}, {0, 3, 1}, 12);
      const Tensor backwards = strided(dtype, {50}, {-2}, 100, 99);
      const Tensor gaps = strided(dtype, {6, 1, 5}, {20, 999, 2}, 200);
      const Tensor joined = strided(dtype, {4, 5, 6}, {60, 12, 2}, 300);
      const Tensor ones = strided(dtype, {1, 8, 1}, {5, 1, 3}, 8);
      for (const std::uint8_t flags : {kAll, std::uint8_t{kWantPayload}}) {
        REQUIRE(
            agrees_with_the_cpu({expanded.request(flags, 2), backwards.request(flags, 3),
                                 gaps.request(flags, 4), joined.request(flags, 5), ones.request(flags, 6)}));
      }
      REQUIRE(agrees_with_the_cpu({transposed.request(kWantPayload, 1), transposed.request(kWantStats, 2)}));
    });
  }
  it("statistics of a dense permutation are, bit for bit, those of its memory read as one dimension", [&] {
    for (const std::uint8_t flags : {std::uint8_t{kWantStats}, kAll}) {
      Tensor permuted = strided(Dtype::kF32, {31, 17, 6}, {6, 186, 1}, 31 * 17 * 6);
      Tensor backwards = strided(Dtype::kF32, {3162}, {-1}, 3162, 3161);
      Tensor flat(Dtype::kF32, {3162});
      permuted.bytes = backwards.bytes = flat.bytes;
      Rig rig({}, config(kMiB, 64), small_memory(kMiB));
      (void)rig.capture({permuted.request(flags, 1), backwards.request(flags, 2), flat.request(flags, 3)});
      const DrainedBatches drained = rig.drain_all();
      REQUIRE(drained.rows.size() == 3);
      for (const IndexRow& row : drained.rows) {
        REQUIRE(std::memcmp(&row.entry.stats, &drained.rows[2].entry.stats, sizeof(TensorStats)) == 0);
      }
      if (flags == kWantStats) continue;
      REQUIRE(payload_bytes_of(*rig.consumer, drained.rows[0]) == values_of(permuted.view()));
      REQUIRE(payload_bytes_of(*rig.consumer, drained.rows[1]) == values_of(backwards.view()));
    }
  });
  it("statistics alone of a dense permutation need no layout, and tensors with gaps need one", [&] {
    const Tensor permuted = strided(Dtype::kF32, {31, 17}, {1, 31}, 31 * 17);
    const Tensor gaps = strided(Dtype::kF32, {31, 17}, {1, 40}, 40 * 17);
    const auto layouts_of = [](const Tensor& tensor, std::uint8_t flags) {
      const TensorRequest request = tensor.request(flags, 1);
      PlannedTensor item{};
      item.request = &request;
      item.elements = element_count(request.tensor);
      item.stats = (flags & kWantStats) != 0;
      item.payload_bytes = (flags & kWantPayload) != 0 ? 1 : 0;
      return measure_table({&item, 1}).layouts;
    };
    REQUIRE(layouts_of(permuted, kWantStats) == 0 && layouts_of(permuted, kAll) == 1);
    REQUIRE(layouts_of(gaps, kWantStats) == 1 && layouts_of(gaps, kAll) == 1);
  });
  it("layouts are joined where memory allows and extents of 1 are left out", [&] {
    const Tensor tensor = strided(Dtype::kF32, {4, 1, 5, 6}, {30, 7, 6, 1}, 200);
    device::ItemLayout layout{};
    join_layout(tensor.view(), layout);
    REQUIRE(layout.ndim == 1 && layout.shape[0] == 120 && layout.strides[0] == 1);
    const Tensor rows = strided(Dtype::kF32, {4, 5, 6}, {60, 12, 1}, 300);
    join_layout(rows.view(), layout);
    REQUIRE(layout.ndim == 2 && layout.shape[0] == 20 && layout.strides[0] == 12 && layout.shape[1] == 6);
  });
}

void parts() {
  it("a tensor larger than a quarter of the arena goes in parts with statistics of their own", [] {
    for (const bool transposed : {false, true}) {
      const Tensor large(Dtype::kF32, {700, 301},
                         transposed ? std::vector<std::int64_t>{1, 700} : std::vector<std::int64_t>{});
      const Tensor small(Dtype::kF32, {5});
      Rig rig({}, config(16 * kMiB, 256), small_memory(kMiB));
      const CaptureResult result =
          rig.capture({small.request(kAll, 1), large.request(kAll, 2), small.request(kAll, 3)});
      const DrainedBatches drained = rig.drain_all();
      const Whole whole = whole_of(*rig.consumer, drained, 2);
      const TensorStats expected = reduce(values_of(large.view()).data(), 700 * 301, Dtype::kF32);
      REQUIRE(whole.rows >= 4 || rig.dropped(DropReason::kArenaFull) == 1);
      if (rig.dropped(DropReason::kArenaFull) == 0) {
        REQUIRE(result.kept == 3 && result.not_kept == 0);
        REQUIRE(whole.bytes == values_of(large.view()));
        REQUIRE(whole.stats.count == expected.count && whole.stats.max == expected.max &&
                whole.stats.nan_count == expected.nan_count);
      }
      REQUIRE(whole_of(*rig.consumer, drained, 3).bytes == small.bytes);
      REQUIRE(rig.device->violations() == 0);
    }
  });
  it("statistics of more tiles than the scratch has results for come in parts", [] {
    const Tensor large(Dtype::kU8, {40, 1000, 1000});
    Rig rig({}, config(kMiB, 64), small_memory(kMiB, kMiB));
    const CaptureResult result = rig.capture({large.request(kWantStats, 1)});
    const Whole whole = whole_of(*rig.consumer, rig.drain_all(), 1);
    const TensorStats expected = reduce(large.view());
    REQUIRE(result.kept == 1 && whole.rows > 1 && whole.bytes.empty());
    REQUIRE(whole.stats.count == expected.count && whole.stats.min == expected.min &&
            whole.stats.zero_count == expected.zero_count);
  });
}

void the_training_goes_on() {
  it("a record has the values of its moment, though the training overwrites them at once", [] {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Rig rig({.seed = seed, .delay_us = 200});
      Tensor tensor(Dtype::kF32, {5000});
      const std::vector<std::byte> before = tensor.bytes;
      (void)rig.capture({tensor.request()});
      rig.device->enqueue(kTraining, [&] { tensor.fill(99); });
      const DrainedBatches drained = rig.drain_all();
      REQUIRE(drained.rows.size() == 1 && payload_bytes_of(*rig.consumer, drained.rows[0]) == before);
      const TensorStats expected = reduce(before.data(), 5000, Dtype::kF32);
      REQUIRE(std::memcmp(&drained.rows[0].entry.stats, &expected, sizeof expected) == 0);
      REQUIRE(rig.device->synchronize(kTraining));
    }
  });
  it("shapes and requests may go when the call has returned", [] {
    Rig rig({.seed = 3, .delay_us = 500});
    rig.device->pause();
    const auto memory = std::make_unique<Tensor>(Dtype::kF32, std::vector<std::int64_t>{10, 10});
    {
      Tensor view(Dtype::kF32, {10, 10}, {1, 10}, 1);
      TensorRequest request = view.request();
      request.tensor.data = memory->bytes.data();
      (void)rig.capture({request});
      std::fill(view.shape.begin(), view.shape.end(), 0);
    }
    rig.device->resume();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 1 && drained.rows[0].entry.stats.count == 100);
  });
  it("a stream that is captured into a graph is left alone", [] {
    Rig rig;
    const Tensor tensor(Dtype::kF32, {10});
    const std::uint64_t before = rig.device->operations();
    rig.device->set_capturing(kTraining, true);
    const CaptureResult result = rig.capture({tensor.request(), tensor.request(kWantStats, 1)});
    REQUIRE(result.kept == 0 && result.not_kept == 2 && rig.drain_all().rows.empty());
    REQUIRE(rig.dropped(DropReason::kGraphCapture) == 2 &&
            rig.dropped_bytes(DropReason::kGraphCapture) == 40);
    REQUIRE(rig.device->operations() == before);
    rig.device->set_capturing(kTraining, false);
    REQUIRE(rig.capture({tensor.request()}).kept == 1 && rig.drain_all().rows.size() == 1);
  });
  it("with computing at once only copies are late", [] {
    Rig rig({.delay_us = 100, .sync_compute = true});
    Tensor tensor(Dtype::kF32, {100});
    const std::vector<std::byte> before = tensor.bytes;
    (void)rig.capture({tensor.request()});
    tensor.fill(5);
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 1 && payload_bytes_of(*rig.consumer, drained.rows[0]) == before);
  });
}

void several_streams_and_devices() {
  it("threads on streams of their own keep all records, each whole and numbered once", [] {
    RingConfig lane = config(8 * kMiB, 1024, FullPolicy::kBlock);
    lane.block_timeout = std::chrono::seconds(60);
    Rig rig({.seed = 11, .delay_us = 30}, lane);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&rig, t] {
        Tensor tensor(Dtype::kF32, {257 + static_cast<std::int64_t>(t)});
        for (std::uint32_t i = 0; i < 40; ++i) {
          rig.device->enqueue(t, [&tensor, i, t] { tensor.fill(i * 10 + t); });
          (void)rig.captures->capture(std::vector<TensorRequest>{tensor.request(kAll, t * 100 + i)},
                                      {.step = 1, .mode_step = 1, .mode = 1, .call = 0}, t);
        }
        (void)rig.device->synchronize(t);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 160 && drained.torn == 0);
    std::vector<bool> seen(160, false);
    for (const IndexRow& row : drained.rows) {
      const std::uint32_t t = row.entry.name / 100;
      Tensor expected(Dtype::kF32, {257 + static_cast<std::int64_t>(t)});
      expected.fill(row.entry.name % 100 * 10 + t);
      REQUIRE(payload_bytes_of(*rig.consumer, row) == expected.bytes);
      REQUIRE(row.entry.seq < 160 && !seen[row.entry.seq]);
      if (row.entry.seq < 160) seen[row.entry.seq] = true;
    }
    REQUIRE(rig.device->violations() == 0);
  });
  for (const CommitMode commit_mode : {CommitMode::kStreamWrite, CommitMode::kPoll}) {
    it("a step's mark is committed after all that was captured before, on every stream", [&] {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Rig rig({.seed = seed, .delay_us = 200, .best_commit_mode = commit_mode});
        const Tensor tensor(Dtype::kF32, {300});
        (void)rig.capture({tensor.request(kWantStats)}, 1);
        (void)rig.capture({tensor.request(kAll)}, 2);
        (void)rig.capture({tensor.request(kWantStats)}, 3);
        REQUIRE(rig.captures->mark_step_end(0, {}));
        const std::shared_ptr<RingMemory> memory = rig.lane->memory();
        const auto committed = [&](std::uint64_t ticket) {
          return memory->slots()[ticket].commit.load(std::memory_order_acquire) == ticket + 1;
        };
        while (!committed(3)) std::this_thread::yield();
        REQUIRE(committed(0) && committed(1) && committed(2));
      }
    });
  }
  it("a mark comes after the records of other devices, too", [] {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Rig first({.seed = seed, .delay_us = 300});
      Rig second({.seed = seed + 100, .delay_us = 10});
      const Tensor tensor(Dtype::kF32, {300});
      (void)first.capture({tensor.request(kWantStats)}, 1);
      (void)first.capture({tensor.request(kAll)}, 2);
      (void)second.capture({tensor.request(kAll)}, 1);
      DeviceCapture* const others[] = {first.captures.get()};
      REQUIRE(second.captures->mark_step_end(0, others));
      const auto committed = [](const Rig& rig, std::uint64_t ticket) {
        return rig.lane->memory()->slots()[ticket].commit.load(std::memory_order_acquire) == ticket + 1;
      };
      while (!committed(second, 1)) std::this_thread::yield();
      REQUIRE(committed(first, 0) && committed(first, 1) && committed(second, 0));
      second.captures->close();  // its stream may still query events of the other device
    }
  });
  it("a mark with nothing before it is there at once", [] {
    Rig rig;
    rig.device->pause();
    REQUIRE(rig.captures->mark_step_end(0, {}));
    REQUIRE(rig.consumer->next(false).has_value());
    rig.device->resume();
  });
}

void narrow_floats() {
  it("values are narrowed to the nearest, ties to even", [] {
    REQUIRE(narrow_float(1.0, 5, 10) == 0x3c00 && narrow_float(-2.0, 5, 10) == 0xc000);
    REQUIRE(narrow_float(65504.0, 5, 10) == 0x7bff && narrow_float(65520.0, 5, 10) == 0x7c00);
    REQUIRE(narrow_float(65519.99, 5, 10) == 0x7bff && narrow_float(0x1p-24, 5, 10) == 0x0001);
    REQUIRE(narrow_float(0x1p-25, 5, 10) == 0x0000 && narrow_float(0x1.8p-25, 5, 10) == 0x0001);
    REQUIRE(narrow_float(1.0 + 0x1p-11, 5, 10) == 0x3c00 && narrow_float(1.0 + 0x3p-11, 5, 10) == 0x3c02);
    REQUIRE(narrow_float(1.0 + 0x1p-8, 8, 7) == 0x3f80 && narrow_float(1.0 + 0x3p-8, 8, 7) == 0x3f82);
    REQUIRE(narrow_float(0x1.ffp127, 8, 7) == 0x7f80 && narrow_float(-0.0, 8, 7) == 0x8000);
    REQUIRE(narrow_float(-__builtin_inf(), 5, 10) == 0xfc00 &&
            (narrow_float(__builtin_nan(""), 8, 7) & 0x7fff) > 0x7f80);
  });
}

}  // namespace

int main() {
  values_and_rows();
  strides();
  parts();
  the_training_goes_on();
  several_streams_and_devices();
  narrow_floats();
  return result();
}
