// Capture on a device without room in the ring, in the arena or in the tables, under every policy.
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "device/device_allocations.hpp"
#include "device_rig.hpp"
#include "sim/sim_pace.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kTensorBytes = 50'000 * sizeof(float);  // five of them fill an arena of 1 MiB

DrainedBatches drain_now(const Rig& rig) {
  return drain(*rig.consumer, ~std::uint64_t{0}, ~std::uint64_t{0}, false);
}

/// Number of rows with this reason.
std::uint64_t rows_with(const DrainedBatches& drained, DropReason reason, EntryStatus status) {
  std::uint64_t count = 0;
  for (const IndexRow& row : drained.rows)
    count += row.entry.reason == reason && row.entry.status == status ? 1 : 0;
  return count;
}

RingConfig lane_with(FullPolicy policy, std::uint64_t bytes = 8 * kMiB) {
  RingConfig lane = config(bytes, 1024, policy);
  lane.block_timeout = std::chrono::seconds(60);
  return lane;
}

void fifo_space() {
  it("stretches in use never overlap, also after places that were asked for and not taken", [] {
    constexpr std::uint64_t kSize = 100;
    FifoSpace space(kSize);
    std::deque<Extent> used;
    SimPace draw(7, 0);
    std::uint64_t taken = 0;
    for (int i = 0; i < 20'000; ++i) {
      const Extent extent = space.place(1 + draw.draw(i % 2 == 0 ? kSize : kSize / 8));
      const bool fits = space.fits(extent);
      if (fits && draw.draw(2) == 0) {
        space.take(extent);
        used.push_back(extent);
        ++taken;
        std::uint64_t owners[kSize] = {};
        for (const Extent& each : used) {
          REQUIRE(space.at(each) + (each.end - each.begin) <= kSize);
          for (std::uint64_t at = each.begin; at < each.end; ++at) REQUIRE(++owners[at % kSize] == 1);
        }
      } else if (!used.empty() && draw.draw(2) == 0) {
        space.free_to(used.front().end);
        used.pop_front();
      }
    }
    REQUIRE(taken > 2000);
  });
}

/// Two unfinished allocations on one stream, each half of a memory. A third allocation takes the first half.
void taking_what_is_in_use() {
  constexpr std::uint64_t kHalf = 100;
  struct Half {
    explicit Half(StreamHandle stream) {
      REQUIRE(allocations.make(device, 4));
      device.pause();
      for (int i = 0; i < 2; ++i) {
        Allocation& allocation = allocations.next();
        allocation.start(stream);
        allocation.memory = space.place(kHalf);
        space.take(allocation.memory);
        REQUIRE(device.record_event(allocation.event, stream));
        allocations.push();
      }
    }
    ~Half() { device.resume(); }
    bool take(StreamHandle stream, Reuse reuse) {
      bool refused = false;
      const bool taken = make_room(device, allocations, space, space.place(kHalf), stream, reuse, refused);
      REQUIRE(!refused);
      return taken;
    }
    std::uint64_t waits() const { return device.operations() - 2; }

    SimDevice device;
    FifoSpace space{2 * kHalf};
    AllocationList allocations;
  };
  it("work under a known handle waits for what it overwrites: another stream may have had the handle", [] {
    for (const Reuse reuse : {Reuse::kBehindSameStream, Reuse::kStreamWaits}) {
      Half half(kTraining);
      REQUIRE(half.take(kTraining, reuse) && half.waits() == 1);  // for the first of the two
    }
  });
  it("work of another stream waits only where the policy lets it", [] {
    Half half(kTraining);
    REQUIRE(!half.take(kTraining + 1, Reuse::kBehindSameStream) && half.waits() == 0);
    REQUIRE(!half.take(kTraining, Reuse::kNever) && half.waits() == 0);
    REQUIRE(half.take(kTraining + 1, Reuse::kStreamWaits) && half.waits() == 1);
  });
}

void full_arenas() {
  it("a full arena leaves a row that says so under policy drop", [] {
    Rig rig({}, lane_with(FullPolicy::kDrop));
    const Tensor tensor(Dtype::kF32, {50'000});
    const Tensor small(Dtype::kF32, {4});
    rig.device->pause();
    std::uint64_t kept = 0;
    for (int i = 0; i < 8; ++i)
      kept += rig.capture({tensor.request(kAll), small.request(kWantStats, 1)}).kept;
    rig.device->resume();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(kept == 5 + 8 && drained.rows.size() == 16);
    REQUIRE(rows_with(drained, DropReason::kArenaFull, EntryStatus::kSkipped) == 3);
    REQUIRE(rig.dropped(DropReason::kArenaFull) == 3 &&
            rig.dropped_bytes(DropReason::kArenaFull) == 3 * kTensorBytes);
    REQUIRE(rig.capture({tensor.request()}).kept == 1);  // there is room again
    rig.settle();
  });
  it("a full arena keeps the statistics under policy degrade", [] {
    Rig rig({}, lane_with(FullPolicy::kDegrade));
    const Tensor tensor(Dtype::kF32, {50'000});
    rig.device->pause();
    for (int i = 0; i < 8; ++i) (void)rig.capture({tensor.request(kWantPayload)});
    rig.device->resume();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(rows_with(drained, DropReason::kDegraded, EntryStatus::kOk) == 3);
    REQUIRE(rig.dropped(DropReason::kDegraded) == 3 && drained.torn == 0);
    for (const IndexRow& row : drained.rows) {
      if (row.entry.reason != DropReason::kDegraded) continue;
      REQUIRE(row.entry.has_stats == 1 && row.entry.stats.count == 50'000 && row.entry.payload_bytes == 0);
    }
  });
  it("a full arena makes the stream wait under policy block, and loses nothing", [] {
    Rig rig({.seed = 5, .delay_us = 100}, lane_with(FullPolicy::kBlock));
    Tensor tensor(Dtype::kF32, {50'000});
    rig.device->pause();
    for (std::uint64_t i = 0; i < 20; ++i) {
      rig.device->enqueue(kTraining, [&tensor, i] { tensor.fill(i); });
      REQUIRE(rig.capture({tensor.request(kAll, static_cast<std::uint32_t>(i))}).kept == 1);
    }
    rig.device->resume();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(drained.rows.size() == 20);
    for (const IndexRow& row : drained.rows) {
      Tensor expected(Dtype::kF32, {50'000});
      expected.fill(row.entry.name);
      REQUIRE(payload_bytes_of(*rig.consumer, row) == expected.bytes);
    }
    REQUIRE(rig.device->violations() == 0);
  });
  it("a tensor in parts that finds no room for one is counted once, with the bytes that are missing", [] {
    Rig rig({}, lane_with(FullPolicy::kDrop));
    const Tensor tensor(Dtype::kF32, {500'000});
    const Tensor small(Dtype::kF32, {4});
    rig.device->pause();
    const CaptureResult result =
        rig.capture({tensor.request(kWantPayload, 1), small.request(kWantPayload, 2)});
    rig.device->resume();
    const Whole there = whole_of(*rig.consumer, rig.drain_all(), 1);
    REQUIRE(there.rows > 1 && result.not_kept == 1 + rig.dropped(DropReason::kArenaFull) - 1);
    REQUIRE(result.kept + result.not_kept == 2 && rig.dropped(DropReason::kArenaFull) == result.not_kept);
    REQUIRE(rig.dropped_bytes(DropReason::kArenaFull) ==
            500'000 * sizeof(float) - there.bytes.size() + (result.kept == 0 ? 16 : 0));
  });
  it("more launches under way than there are places for are counted, not waited for", [] {
    Rig rig({}, lane_with(FullPolicy::kBlock));
    const Tensor tensor(Dtype::kF32, {4});
    rig.device->pause();
    std::uint64_t kept = 0;
    for (int i = 0; i < 300; ++i) kept += rig.capture({tensor.request(kAll)}).kept;
    rig.device->resume();
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(kept == 256 && rig.dropped(DropReason::kArenaFull) == 44 && drained.rows.size() == 300);
  });
  it("statistics reuse scratch behind the same stream, whatever is under way", [] {
    Rig rig({}, lane_with(FullPolicy::kDrop));
    const Tensor tensor(Dtype::kU8, {10'000'000});  // 380 kB of partial results, of 1 MiB
    rig.device->pause();
    std::uint64_t kept = 0;
    for (int i = 0; i < 10; ++i) kept += rig.capture({tensor.request(kWantStats)}).kept;
    rig.device->resume();
    REQUIRE(kept == 10);
    for (const IndexRow& row : rig.drain_all().rows) REQUIRE(row.entry.stats.count == 10'000'000);
    REQUIRE(rig.device->violations() == 0);
  });
  it("statistics of another stream find no scratch then, and say so", [] {
    Rig rig({}, lane_with(FullPolicy::kDrop));
    const Tensor tensor(Dtype::kU8, {10'000'000});
    rig.device->pause();
    std::uint64_t kept = 0;
    for (StreamHandle stream = 1; stream <= 4; ++stream)
      kept += rig.capture({tensor.request(kWantStats)}, stream).kept;
    rig.device->resume();
    REQUIRE(kept == 2 && rig.dropped(DropReason::kArenaFull) == 2 && rig.drain_all().rows.size() == 4);
    REQUIRE(rig.device->violations() == 0);
  });
  it("the arena serves thousands of captures", [] {
    Rig rig({.seed = 9, .delay_us = 5}, lane_with(FullPolicy::kBlock), small_memory(64 << 10));
    Tensor tensor(Dtype::kBF16, {1501});
    std::uint64_t rows = 0;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      rig.device->enqueue(kTraining, [&tensor, i] { tensor.fill(i); });
      REQUIRE(rig.capture({tensor.request(kAll, static_cast<std::uint32_t>(i))}).not_kept == 0 || i == 0);
      if (i % 50 != 49) continue;
      const DrainedBatches drained = rig.drain_all();
      for (const IndexRow& row : drained.rows) {
        Tensor expected(Dtype::kBF16, {1501});
        expected.fill(row.entry.name);
        REQUIRE(payload_bytes_of(*rig.consumer, row) == expected.bytes);
      }
      rows += drained.rows.size();
      release(*rig.consumer, drained);
    }
    REQUIRE(rows == 3000 && rig.device->violations() == 0);
  });
}

void full_rings() {
  it("a full ring in the middle of a call drops under policy drop, and counts each tensor once", [] {
    Rig rig({}, lane_with(FullPolicy::kDrop, kMiB));
    const Tensor tensor(Dtype::kF32, {20'000});
    std::vector<TensorRequest> requests(40, tensor.request());
    const CaptureResult result = rig.capture(requests);
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(result.kept + result.not_kept == 40 && result.not_kept > 20);
    REQUIRE(rig.dropped(DropReason::kRingFull) + rig.dropped(DropReason::kArenaFull) == result.not_kept);
    std::uint64_t with_values = 0;
    for (const IndexRow& row : drained.rows) with_values += row.entry.status == EntryStatus::kOk ? 1 : 0;
    REQUIRE(with_values == result.kept && rig.dropped(DropReason::kRingFull) > 0);
  });
  it("a full ring keeps the statistics under policy degrade", [] {
    Rig rig({}, lane_with(FullPolicy::kDegrade, kMiB));
    const Tensor tensor(Dtype::kF32, {20'000});
    const CaptureResult result = rig.capture(std::vector<TensorRequest>(40, tensor.request()));
    const DrainedBatches drained = rig.drain_all();
    REQUIRE(result.kept + rig.dropped(DropReason::kRingFull) == 40 && drained.rows.size() == result.kept);
    REQUIRE(rows_with(drained, DropReason::kDegraded, EntryStatus::kOk) ==
            rig.dropped(DropReason::kDegraded));
    REQUIRE(rig.dropped(DropReason::kDegraded) > 10);
    for (const IndexRow& row : drained.rows) REQUIRE(row.entry.stats.count == 20'000);
  });
  it("a full ring is waited for under policy block", [] {
    Rig rig({.seed = 2, .delay_us = 20}, lane_with(FullPolicy::kBlock, kMiB));
    const Tensor tensor(Dtype::kF32, {20'000});
    CaptureResult result;
    std::thread producer([&] { result = rig.capture(std::vector<TensorRequest>(60, tensor.request())); });
    std::size_t rows = 0;
    while (rows < 60) {
      const DrainedBatches drained = drain_now(rig);
      for (const IndexRow& row : drained.rows) REQUIRE(payload_bytes_of(*rig.consumer, row) == tensor.bytes);
      rows += drained.rows.size();
      release(*rig.consumer, drained);
      std::this_thread::yield();
    }
    producer.join();
    REQUIRE(result.kept == 60 && result.not_kept == 0);
  });
  it("a blocking capture gives up after its timeout", [] {
    RingConfig lane = lane_with(FullPolicy::kBlock, kMiB);
    lane.block_timeout = std::chrono::milliseconds(1);
    Rig rig({}, lane);
    const Tensor tensor(Dtype::kF32, {20'000});
    const CaptureResult result = rig.capture(std::vector<TensorRequest>(60, tensor.request()));
    REQUIRE(result.kept < 20 && result.kept + rig.dropped(DropReason::kRingFull) == 60);
    rig.settle();
  });
}

}  // namespace

int main() {
  fifo_space();
  taking_what_is_in_use();
  full_arenas();
  full_rings();
  return result();
}
