// Small captures: their table is in the parameters of one launch (device_small.hpp). Their records are equal
// to those with an uploaded table, and the number of pieces of work that a capture enqueues has a limit.
#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/device_small.hpp"
#include "device_rig.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr CommitMode kModes[] = {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll};

DeviceCaptureConfig uploading() {
  DeviceCaptureConfig memory = small_memory();
  memory.inline_tables = false;
  return memory;
}

/// A rig whose counters are zeroed, so that small captures are inlined.
struct SmallRig : Rig {
  explicit SmallRig(const SimDeviceOptions& options = {}, const DeviceCaptureConfig& memory = small_memory())
      : Rig(options, config(8 * kMiB, 256), memory) {
    const Tensor tensor(Dtype::kF32, {3});
    while (works(tensor.request(kWantStats)) != 2) release(*consumer, drain_all());
    release(*consumer, drain_all());
  }
  /// Number of pieces of work of one capture.
  std::uint64_t works(const std::vector<TensorRequest>& requests) {
    const std::uint64_t before = device->operations();
    REQUIRE(capture(requests).not_kept == 0);
    return device->operations() - before;
  }
  std::uint64_t works(const TensorRequest& request) { return works(std::vector<TensorRequest>{request}); }
};

/// Records of one capture are equal with a table in the parameters and with an uploaded table.
void require_same(SmallRig& small, Rig& uploaded, const std::vector<TensorRequest>& requests) {
  const CaptureResult a = small.capture(requests);
  const CaptureResult b = uploaded.capture(requests);
  REQUIRE(a.kept == b.kept && a.payload_bytes == b.payload_bytes && a.not_kept == 0);
  const DrainedBatches got = small.drain_all();
  const DrainedBatches want = uploaded.drain_all();
  REQUIRE(got.rows.size() == requests.size() && want.rows.size() == requests.size() && got.torn == 0);
  for (std::size_t i = 0; i < got.rows.size(); ++i) {
    IndexRow row = got.rows[i];
    row.entry.seq = want.rows[i].entry.seq;  // the rigs have captured different numbers of tensors before
    REQUIRE(same_row(row, want.rows[i]));
    REQUIRE(payload_bytes_of(*small.consumer, got.rows[i]) ==
            payload_bytes_of(*uploaded.consumer, want.rows[i]));
  }
  release(*small.consumer, got);
  release(*uploaded.consumer, want);
}

void same_records() {
  for (const CommitMode mode : kModes) {
    const std::string name = std::string("1 to 33 items have the records of an uploaded table: ");
    it((name + commit_mode_name(mode)).c_str(), [&] {
      SmallRig small({.best_commit_mode = mode});
      Rig uploaded({.best_commit_mode = mode}, config(8 * kMiB, 256), uploading());
      std::vector<Tensor> tensors;
      for (std::int64_t i = 0; i < 33; ++i)
        tensors.emplace_back(static_cast<Dtype>(static_cast<int>(Dtype::kBool) + i % 15),
                             std::vector<std::int64_t>{1 + i * 7});
      for (const std::size_t count : {1, 2, 15, 16, 17, 31, 32, 33}) {
        for (const std::uint8_t flags : {std::uint8_t{kWantStats}, std::uint8_t{kWantPayload}, kAll}) {
          std::vector<TensorRequest> requests;
          for (std::size_t i = 0; i < count; ++i)
            requests.push_back(tensors[i].request(flags, static_cast<std::uint32_t>(i)));
          require_same(small, uploaded, requests);
        }
      }
      REQUIRE(small.device->violations() == 0);
    });
  }
  it("tensors around a tile have the records of an uploaded table", [] {
    DeviceCaptureConfig memory = small_memory(8 * kMiB);
    SmallRig small({}, memory);
    memory.inline_tables = false;
    Rig uploaded({}, config(8 * kMiB, 256), memory);
    for (const std::int64_t elements : {16'383, 16'384, 16'385, 32'769, 70'000}) {
      for (const Dtype dtype : {Dtype::kU8, Dtype::kBF16, Dtype::kF32}) {
        const Tensor tensor(dtype, {elements});
        const Tensor transposed(dtype, {elements / 7, 7}, {1, elements / 7},
                                static_cast<std::uint64_t>(elements / 7 * 7));
        require_same(small, uploaded, {tensor.request(kAll, 1), transposed.request(kAll, 2)});
        require_same(small, uploaded, {tensor.request(kWantStats, 1), transposed.request(kWantStats, 2)});
      }
    }
    REQUIRE(small.device->violations() == 0);
  });
  it("eight layouts are in the parameters, and nine are uploaded", [] {
    SmallRig small;
    Rig uploaded({}, config(8 * kMiB, 256), uploading());
    const Tensor gaps(Dtype::kF32, {5, 3}, {4, 1}, 20);
    for (const std::size_t count : {8, 9}) {
      const std::vector<TensorRequest> requests(count, gaps.request(kWantStats, 1));
      require_same(small, uploaded, requests);
      REQUIRE(small.works(requests) == (count == 8 ? 2 : 3));
      release(*small.consumer, small.drain_all());
    }
  });
}

void counted_work() {
  it("statistics are one launch and one event, values up to 64 KiB too", [] {
    for (const CommitMode mode : kModes) {
      SmallRig rig({.best_commit_mode = mode});
      Rig uploaded({.best_commit_mode = mode}, config(8 * kMiB, 256), uploading());
      const Tensor small(Dtype::kF32, {16'384});
      const Tensor large(Dtype::kF32, {16'400});
      const std::uint64_t word = mode == CommitMode::kPoll ? 0 : 1;
      REQUIRE(rig.works(small.request(kWantStats)) == 2 && rig.works(large.request(kWantStats)) == 2);
      REQUIRE(rig.works(std::vector<TensorRequest>(32, small.request(kWantStats))) == 2);
      REQUIRE(rig.works(small.request(kWantPayload)) == 2 && rig.works(small.request(kAll)) == 2);
      // Launch, event, wait, copy, word, event.
      REQUIRE(rig.works(large.request(kAll)) == 5 + word);
      // A table of 33 items is uploaded.
      REQUIRE(rig.works(std::vector<TensorRequest>(33, small.request(kWantStats))) == 3);
      const std::uint64_t before = uploaded.device->operations();
      (void)uploaded.capture({small.request(kAll)});
      REQUIRE(uploaded.device->operations() - before == 7 + word);
      rig.settle();
      uploaded.settle();
    }
  });
  it("a capture with more tiles than one launch may have is uploaded", [] {
    SmallRig rig({.launch_tiles = 3});
    const Tensor three(Dtype::kU8, {3 * 16'384});
    const Tensor four(Dtype::kU8, {3 * 16'384 + 1});
    REQUIRE(rig.works(three.request(kWantStats)) == 2 && rig.works(four.request(kWantStats)) == 3);
    REQUIRE(rig.drain_all().rows.size() == 2 && rig.device->violations() == 0);
  });
  it("large values that are transposed have a table that is uploaded, for the pack kernel", [] {
    SmallRig rig;
    const Tensor small(Dtype::kF32, {60, 70}, {1, 60}, 4'200);
    const Tensor large(Dtype::kF32, {100, 300}, {1, 100}, 30'000);
    REQUIRE(rig.works(small.request(kWantPayload, 1)) == 2);
    REQUIRE(rig.works(large.request(kWantPayload, 2)) == 7 && rig.works(large.request(kWantStats, 3)) == 2);
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 3);
    REQUIRE(payload_bytes_of(*rig.consumer, drained.rows[0]) == values_of(small.view()));
    REQUIRE(payload_bytes_of(*rig.consumer, drained.rows[1]) == values_of(large.view()));
  });
  it("values in the arena need no upload either", [] {
    DeviceCaptureConfig memory = small_memory();
    memory.direct_bytes = 0;
    SmallRig small({}, memory);
    Rig uploaded({}, config(8 * kMiB, 256), uploading());
    const Tensor tensor(Dtype::kBF16, {4'000});
    require_same(small, uploaded, {tensor.request(kAll, 1), tensor.request(kWantPayload, 2)});
  });
  it("counters that cannot be zeroed are zeroed later, and tables are uploaded until then", [] {
    Rig rig({.delay_us = 0, .rejects_from = 0, .rejects = 2});
    const Tensor tensor(Dtype::kF32, {10});
    std::uint64_t works = 0;
    for (int i = 0; i < 10'000 && works != 2; ++i) {
      const std::uint64_t before = rig.device->operations();
      REQUIRE(rig.capture({tensor.request(kWantStats)}).kept == 1);
      works = rig.device->operations() - before;
      release(*rig.consumer, rig.drain_all());
    }
    REQUIRE(works == 2 && rig.device->violations() == 0);
  });
  it("a device without memory for counters uploads its tables", [] {
    Rig rig({.memory_bytes = 3 * kMiB});
    const Tensor tensor(Dtype::kF32, {10});
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = rig.device->operations();
      REQUIRE(rig.capture({tensor.request(kWantStats)}).kept == 1);
      REQUIRE(rig.device->operations() - before == 3);
      release(*rig.consumer, rig.drain_all());
    }
  });
}

void the_record() {
  it("gaps between small values are zero, whatever an earlier record had there", [] {
    SmallRig rig({}, small_memory());
    const Tensor full(Dtype::kU8, {60'000});
    const Tensor a(Dtype::kU8, {3});
    const Tensor b(Dtype::kU8, {301});
    for (int round = 0; round < 100; ++round) {
      (void)rig.capture({full.request(kWantPayload, 1)});
      (void)rig.capture({a.request(kWantPayload, 2), b.request(kWantPayload, 3), a.request(kWantPayload, 4)});
      const DrainedBatches drained = rig.drain_all();
      REQUIRE(drained.batches.size() == 2 && drained.rows.size() == 4);
      const Batch& batch = drained.batches[1];
      const std::byte* const payload = rig.consumer->data()[batch.lane] + batch.location;
      std::uint64_t sum = 0;
      for (std::uint64_t i = 0; i < batch.payload_bytes; ++i) sum += static_cast<std::uint64_t>(payload[i]);
      for (const Tensor* const tensor : {&a, &b, &a})
        for (const std::byte byte : tensor->bytes) sum -= static_cast<std::uint64_t>(byte);
      REQUIRE(sum == 0);
      release(*rig.consumer, drained);
    }
  });
  it("small captures of many threads and streams leave every counter at zero", [] {
    DeviceCaptureConfig memory = small_memory();
    memory.in_flight = 8;
    SmallRig rig({.delay_us = 30}, memory);
    const Tensor tensor(Dtype::kF32, {40'000});
    const TensorStats expected = reduce(tensor.view());
    std::vector<std::thread> threads;
    for (StreamHandle stream = 1; stream <= 4; ++stream) {
      threads.emplace_back([&, stream] {
        for (int i = 0; i < 60; ++i) (void)rig.capture({tensor.request(kWantStats)}, stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const DrainedBatches drained = rig.drain_all();
    std::uint64_t rows = 0;
    for (const IndexRow& row : drained.rows) {
      if (row.entry.status != EntryStatus::kOk) continue;
      REQUIRE(std::memcmp(&row.entry.stats, &expected, sizeof expected) == 0);
      ++rows;
    }
    REQUIRE(rows + rig.dropped(DropReason::kArenaFull) + rig.dropped(DropReason::kRingFull) == 240);
    REQUIRE(rows > 0 && rig.device->violations() == 0);
  });
}

}  // namespace

int main() {
  same_records();
  counted_work();
  the_record();
  return result();
}
