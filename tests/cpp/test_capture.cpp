// Capture: plans, parts, policies and counts, read through a consumer of the same ring.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "capture/capture.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "stats/cpu.hpp"

namespace {

using namespace tdcore;

int failures = 0;

void check(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what);
    ++failures;
  }
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint8_t kBoth = kWantPayload | kWantStats;

RingConfig config(FullPolicy policy, std::uint64_t data_bytes, std::uint64_t slots = 64) {
  return {.data_bytes = data_bytes,
          .slots = slots,
          .names_bytes = 4096,
          .policy = policy,
          .block_timeout = std::chrono::milliseconds(1),
          .threads = 1};
}

/// A C contiguous float tensor with values 0, 1, 2, ...
struct Floats {
  explicit Floats(std::vector<std::int64_t> extents) : shape(std::move(extents)) {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    values.resize(count);
    std::iota(values.begin(), values.end(), 0.0F);
  }
  TensorView view() const {
    return {.data = values.data(),
            .shape = shape.data(),
            .strides = nullptr,
            .ndim = static_cast<int>(shape.size()),
            .dtype = Dtype::kF32};
  }
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

TensorRequest request(const TensorView& view, std::uint8_t flags = kBoth, std::uint32_t name = 0) {
  return {
      .tensor = view, .name = name, .flags = flags, .status = EntryStatus::kOk, .reason = DropReason::kNone};
}

std::uint64_t dropped(const Ring& ring, DropReason reason) {
  return ring.counters().drops[static_cast<std::size_t>(reason)].tensors;
}
std::uint64_t dropped_bytes(const Ring& ring, DropReason reason) {
  return ring.counters().drops[static_cast<std::size_t>(reason)].bytes;
}

std::vector<float> payload_of(const Consumer& consumer, const IndexRow& row) {
  std::vector<float> values(row.entry.payload_bytes / sizeof(float));
  if (!values.empty())
    std::memcpy(values.data(), consumer.memory()->data() + row.location, row.entry.payload_bytes);
  return values;
}

void tensors_of_a_call_share_one_record_in_order() {
  Ring ring(config(FullPolicy::kDrop, kMiB));
  Consumer consumer(ring.memory());
  const Floats a({3, 4});
  const Floats b({5});
  const Floats empty({0, 7});
  const TensorRequest requests[] = {request(a.view(), kBoth, 1),
                                    request(b.view(), kWantStats, 2),
                                    {.tensor = {},
                                     .name = 3,
                                     .flags = kBoth,
                                     .status = EntryStatus::kAbsent,
                                     .absent = AbsentReason::kNotStepped},
                                    {.tensor = {},
                                     .name = 4,
                                     .flags = kBoth,
                                     .status = EntryStatus::kSkipped,
                                     .reason = DropReason::kSparse},
                                    request(empty.view(), kBoth, 5),
                                    request(b.view(), kWantPayload, 6),
                                    request(a.view(), 0, 7)};
  const CaptureResult result = capture(ring, requests, {.step = 9, .mode_step = 8, .mode = 2, .call = 4});
  check(result.kept == 5 && result.not_kept == 1 && result.payload_bytes == 12 * 4 + 5 * 4,
        "result of a mixed call");
  check(dropped(ring, DropReason::kSparse) == 1, "the skipped tensor is counted with its reason");
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
  check(drained.records == 1 && drained.torn == 0 && drained.rows.size() == 7,
        "one sound record of seven rows");
  if (drained.rows.size() != 7) return;
  for (std::uint32_t i = 0; i < 7; ++i) {
    const Entry& entry = drained.rows[i].entry;
    check(entry.name == i + 1 && entry.seq == i && entry.call == 4 && entry.parts == 1,
          "rows keep the order of the call");
  }
  check(drained.rows[0].step == 9 && drained.rows[0].mode_step == 8 && drained.rows[0].mode == 2,
        "the moment is in the row");
  check(
      payload_of(consumer, drained.rows[0]) == a.values && payload_of(consumer, drained.rows[5]) == b.values,
      "payloads are bit-exact");
  check(drained.rows[0].entry.stats.count == 12 && drained.rows[0].entry.stats.max == 11,
        "statistics come with the payload");
  check(drained.rows[1].entry.payload_offset == kNoPayload && drained.rows[1].entry.stats.mean == 2,
        "statistics alone");
  check(drained.rows[2].entry.status == EntryStatus::kAbsent &&
            drained.rows[2].entry.absent == AbsentReason::kNotStepped && drained.rows[2].entry.has_stats == 0,
        "an absent row with its reason");
  check(drained.rows[3].entry.status == EntryStatus::kSkipped &&
            drained.rows[3].entry.reason == DropReason::kSparse,
        "a skipped row");
  check(drained.rows[4].entry.ndim == 2 && drained.rows[4].entry.stats.count == 0 &&
            std::isnan(drained.rows[4].entry.stats.min),
        "an empty tensor");
  check(drained.rows[5].entry.has_stats == 0, "payload alone");
  check(drained.rows[6].entry.ndim == 2 && drained.rows[6].entry.shape[1] == 4 &&
            drained.rows[6].entry.has_stats == 0,
        "shape alone");
}

void calls_that_do_not_fit_are_split_between_tensors() {
  Ring ring(config(FullPolicy::kDrop, kMiB));  // records of at most 128 KiB
  Consumer consumer(ring.memory());
  const Floats tensor({10'000});
  const std::vector<TensorRequest> requests(10, request(tensor.view()));
  const CaptureResult result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  check(result.kept == 10 && result.not_kept == 0, "all ten are kept");
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
  check(drained.records == 4 && drained.rows.size() == 10, "three tensors of 40 kB to a record");
  for (std::uint32_t i = 0; i < drained.rows.size(); ++i) {
    check(drained.rows[i].entry.seq == i && payload_of(consumer, drained.rows[i]) == tensor.values,
          "order and values survive the split");
  }
}

void a_tensor_larger_than_a_record_goes_in_parts(std::uint64_t data_bytes, bool transposed) {
  Ring ring(config(FullPolicy::kDrop, data_bytes, 128));
  Consumer consumer(ring.memory());
  const auto columns = static_cast<std::int64_t>(ring.max_record_bytes() / 4 / 100);
  const Floats tensor({transposed ? columns : 301, transposed ? 301 : columns});
  TensorView view = tensor.view();
  const std::int64_t shape[] = {301, columns};
  const std::int64_t strides[] = {1, 301};
  std::vector<float> expected = tensor.values;
  if (transposed) {
    view.shape = shape;
    view.strides = strides;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(columns);
      expected[i] = tensor.values[row + 301 * (i % static_cast<std::size_t>(columns))];
    }
  }
  const Floats small({2});
  const TensorRequest requests[] = {request(small.view(), kBoth, 1), request(view, kBoth, 2),
                                    request(small.view(), kBoth, 3)};
  const CaptureResult result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  check(result.kept == 3 && result.not_kept == 0, "whole and split tensors are kept");
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 1000, false);
  check(drained.torn == 0 && drained.rows.size() >= 2 + 3, "the large tensor came in parts");
  std::vector<float> values;
  TensorStats merged{};
  std::uint64_t count = 0;
  for (const IndexRow& row : drained.rows) {
    if (row.entry.name != 2) continue;
    check(row.entry.element_offset == values.size(), "parts follow each other");
    check(row.entry.shape[0] == 301 && row.entry.shape[1] == columns, "every part says the whole shape");
    const std::vector<float> part = payload_of(consumer, row);
    check(row.entry.elements == part.size() && row.entry.stats.count == part.size(),
          "every part has statistics of its own");
    check(row.entry.stats.max == *std::max_element(part.begin(), part.end()), "of its own elements");
    values.insert(values.end(), part.begin(), part.end());
    count += row.entry.stats.count;
    merged.max = std::max(merged.max, row.entry.stats.max);
  }
  check(values == expected && count == expected.size(), "the parts put together are the tensor");
  check(merged.max == static_cast<double>(expected.size() - 1), "merged maximum");
  for (const Batch& batch : drained.batches) {
    if (batch.payload_bytes >= kDirectPayloadBytes) check(batch.direct(), "large payloads lie on pages");
  }
}

void statistics_of_a_large_tensor_take_one_row() {
  Ring ring(config(FullPolicy::kDrop, 64 * 1024));
  Consumer consumer(ring.memory());
  const Floats tensor({1000, 100});
  const TensorRequest requests[] = {request(tensor.view(), kWantStats)};
  (void)capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 10, false);
  check(drained.rows.size() == 1 && drained.rows[0].entry.parts == 1 &&
            drained.rows[0].entry.stats.count == 100'000,
        "one row");
}

void a_full_ring_drops_and_counts_each_tensor_once() {
  Ring ring(config(FullPolicy::kDrop, 64 * 1024, 16));
  Consumer consumer(ring.memory());
  const Floats tensor({1024});
  const std::vector<TensorRequest> one(1, request(tensor.view()));
  std::uint64_t kept = 0;
  std::uint64_t lost = 0;
  for (int i = 0; i < 40; ++i) {
    const CaptureResult result = capture(ring, one, {.step = i, .mode_step = i, .mode = 1, .call = 0});
    kept += result.kept;
    lost += result.not_kept;
  }
  check(kept + lost == 40 && lost > 20, "every tensor is kept or counted");
  check(dropped(ring, DropReason::kRingFull) == lost &&
            dropped_bytes(ring, DropReason::kRingFull) == lost * 4096,
        "counted with its bytes");
  check(drain(consumer, ~std::uint64_t{0}, 100, false).rows.size() == kept, "what was kept is there");
}

void a_split_tensor_that_loses_a_part_is_counted_once_with_all_its_missing_bytes() {
  Ring ring(config(FullPolicy::kDrop, 64 * 1024, 16));
  Consumer consumer(ring.memory());
  const Floats tensor({64 * 1024});  // 256 KiB into 64 KiB
  const Floats small({2});
  const TensorRequest requests[] = {request(tensor.view(), kBoth, 1), request(small.view(), kBoth, 2)};
  const CaptureResult result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
  std::uint64_t there = 0;
  for (const IndexRow& row : drained.rows) there += row.entry.name == 1 ? row.entry.payload_bytes : 0;
  check(there > 0 && there < 256 * 1024, "some parts fitted");
  const std::uint64_t small_lost = drained.rows.back().entry.name == 2 ? 0 : 1;
  check(result.not_kept == 1 + small_lost && result.kept == 1 - small_lost,
        "one tensor is lost, not one per part");
  check(dropped(ring, DropReason::kRingFull) == 1 + small_lost, "and counted once");
  check(dropped_bytes(ring, DropReason::kRingFull) == 256 * 1024 - there + small_lost * 8,
        "with the bytes that are missing");
}

void policy_degrade_keeps_the_statistics_and_says_so() {
  Ring ring(config(FullPolicy::kDegrade, 64 * 1024, 64));
  Consumer consumer(ring.memory());
  const Floats tensor({1024});
  const Floats empty({0});
  std::uint64_t not_kept = 0;
  for (int i = 0; i < 16; ++i) {
    const TensorRequest requests[] = {request(tensor.view(), kWantPayload, 1),
                                      request(empty.view(), kBoth, 2), request(tensor.view(), kWantStats, 3)};
    not_kept += capture(ring, requests, {.step = i, .mode_step = i, .mode = 1, .call = 0}).not_kept;
  }
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
  check(drained.torn == 0, "degraded records are sound");
  std::uint64_t degraded = 0;
  for (const IndexRow& row : drained.rows) {
    if (row.entry.reason != DropReason::kDegraded) continue;
    ++degraded;
    check(row.entry.name == 1 && row.entry.status == EntryStatus::kOk && row.entry.has_stats == 1 &&
              row.entry.stats.count == 1024,
          "statistics stay");
    check(row.entry.payload_offset == kNoPayload && row.entry.payload_bytes == 0, "the payload is left out");
  }
  check(degraded > 0 && degraded == dropped(ring, DropReason::kDegraded), "degraded tensors are counted");
  check(dropped_bytes(ring, DropReason::kDegraded) == degraded * 4096, "with their bytes");
  check(not_kept == degraded + dropped(ring, DropReason::kRingFull), "and are the ones not kept as asked");
}

void policy_block_waits_for_the_consumer() {
  RingConfig blocking = config(FullPolicy::kBlock, 64 * 1024, 16);
  blocking.block_timeout = std::chrono::seconds(60);
  Ring ring(blocking);
  const Floats tensor({1500});
  const std::vector<TensorRequest> requests(200, request(tensor.view()));
  CaptureResult result;
  std::thread producer(
      [&] { result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0}); });
  Consumer consumer(ring.memory());
  std::size_t rows = 0;
  while (rows < requests.size()) {
    const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 4, false);
    for (const IndexRow& row : drained.rows)
      check(payload_of(consumer, row) == tensor.values, "values survive a full ring");
    rows += drained.rows.size();
    release(consumer, drained);
  }
  producer.join();
  check(result.kept == 200 && result.not_kept == 0 && dropped(ring, DropReason::kRingFull) == 0,
        "nothing is lost");
}

void a_blocking_capture_gives_up_after_its_timeout() {
  Ring ring(config(FullPolicy::kBlock, 64 * 1024, 16));
  const Floats tensor({1500});
  const std::vector<TensorRequest> requests(200, request(tensor.view()));
  const CaptureResult result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  check(result.kept + result.not_kept == 200 && result.not_kept == dropped(ring, DropReason::kRingFull) &&
            result.not_kept > 100,
        "then counts");
}

void a_tensor_without_name_or_statistics_is_counted() {
  Ring ring(config(FullPolicy::kDrop, kMiB));
  Consumer consumer(ring.memory());
  const double values[4] = {1, 2, 3, 4};
  const std::int64_t shape[] = {2};
  const TensorView complex{
      .data = values, .shape = shape, .strides = nullptr, .ndim = 1, .dtype = Dtype::kC128};
  const TensorRequest requests[] = {request(complex, kWantStats, 1), request(complex, kBoth, 2),
                                    request(complex, kBoth, kNoName)};
  const CaptureResult result = capture(ring, requests, {.step = 1, .mode_step = 1, .mode = 1, .call = 0});
  check(result.kept == 1 && result.not_kept == 2, "one of three is kept");
  check(dropped(ring, DropReason::kNamesFull) == 1 && dropped_bytes(ring, DropReason::kNamesFull) == 32,
        "no name, no row");
  check(dropped(ring, DropReason::kUnsupportedDtype) == 1, "no statistics of complex numbers");
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 10, false);
  check(drained.rows.size() == 2 && drained.rows[0].entry.status == EntryStatus::kSkipped &&
            drained.rows[0].entry.dtype == Dtype::kC128 && drained.rows[1].entry.payload_bytes == 32 &&
            drained.rows[1].entry.has_stats == 0,
        "payload alone");
}

void views_that_cannot_be_true_are_refused() {
  float value = 1;
  const std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  const std::int64_t large[] = {std::int64_t{1} << 62};
  const std::int64_t negative[] = {-1};
  const std::int64_t none[] = {0, std::int64_t{1} << 40, std::int64_t{1} << 40};
  const std::int64_t pair[] = {2};
  const std::int64_t far[] = {std::numeric_limits<std::int64_t>::min()};
  const std::int64_t back[] = {-1};
  const std::vector<std::int64_t> deep(17, 1);
  const auto view = [&](const std::int64_t* shape, int ndim, const std::int64_t* strides = nullptr) {
    return TensorView{.data = &value, .shape = shape, .strides = strides, .ndim = ndim, .dtype = Dtype::kF32};
  };
  check(check_view(view(huge, 2)) == DropReason::kTooLarge, "the number of elements overflows");
  check(check_view(view(large, 1)) == DropReason::kTooLarge, "the number of bytes overflows");
  check(check_view(view(negative, 1)) == DropReason::kUnreadable, "a negative extent");
  check(check_view(view(none, 3)) == DropReason::kNone, "nothing of something huge");
  check(check_view(view(pair, 1, far)) == DropReason::kTooLarge, "a stride out of the address space");
  check(check_view(view(pair, 1, back)) == DropReason::kNone, "a negative stride");
  check(check_view(view(deep.data(), 17)) == DropReason::kTooLarge, "too many dimensions");
  TensorView nothing = view(pair, 1);
  nothing.data = nullptr;
  check(check_view(nothing) == DropReason::kNoStorage, "no memory behind it");
  nothing.dtype = Dtype::kUnknown;
  check(check_view(nothing) == DropReason::kUnsupportedDtype, "an unknown dtype");
}

void seq_starts_again_with_every_step_and_is_shared_by_threads() {
  Ring ring(config(FullPolicy::kDrop, 4 * kMiB, 4096));
  Consumer consumer(ring.memory());
  const Floats tensor({4});
  const std::vector<TensorRequest> requests(3, request(tensor.view()));
  for (std::int64_t step = 5; step < 7; ++step) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i)
          (void)capture(ring, requests, {.step = step, .mode_step = step, .mode = 1, .call = 0});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 10'000, false);
  for (std::int64_t step = 5; step < 7; ++step) {
    std::vector<std::uint32_t> seen;
    for (const IndexRow& row : drained.rows) {
      if (row.step == step) seen.push_back(row.entry.seq);
    }
    std::sort(seen.begin(), seen.end());
    check(seen.size() == 600 && seen.front() == 0 && seen.back() == 599, "600 rows numbered from 0");
    check(std::adjacent_find(seen.begin(), seen.end()) == seen.end(), "each number once");
  }
}

}  // namespace

int main() {
  tensors_of_a_call_share_one_record_in_order();
  calls_that_do_not_fit_are_split_between_tensors();
  for (const bool transposed : {false, true}) {
    a_tensor_larger_than_a_record_goes_in_parts(64 * 1024, transposed);  // parts below a page-aligned payload
    a_tensor_larger_than_a_record_goes_in_parts(16 * kMiB, transposed);  // parts of whole pages
  }
  statistics_of_a_large_tensor_take_one_row();
  a_full_ring_drops_and_counts_each_tensor_once();
  a_split_tensor_that_loses_a_part_is_counted_once_with_all_its_missing_bytes();
  policy_degrade_keeps_the_statistics_and_says_so();
  policy_block_waits_for_the_consumer();
  a_blocking_capture_gives_up_after_its_timeout();
  a_tensor_without_name_or_statistics_is_counted();
  views_that_cannot_be_true_are_refused();
  seq_starts_again_with_every_step_and_is_shared_by_threads();
  if (failures == 0) std::puts("test_capture: ok");
  return failures == 0 ? 0 : 1;
}
