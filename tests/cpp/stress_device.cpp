// Threads capture on several streams of two simulated devices with small arenas and rings, while a consumer
// reads the records. The test checks that every tensor is kept or counted, that every value is the value at
// its capture, and that no memory is used twice at a time. Random by seed; each round has another seed.
// Sanitizers check the memory accesses.
//
//   stress_device [ROUNDS [SEED]]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "device_rig.hpp"
#include "sim/sim_pace.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint32_t kThreads = 4;
constexpr std::uint32_t kCalls = kSanitized ? 60 : 150;  // of each thread
constexpr std::uint32_t kDevices = 2;
constexpr std::uint32_t kStreams = 2;      // of each thread on each device
constexpr std::uint32_t kNames = 1 << 20;  // of each thread

/// A tensor that changes with every call. Its values follow from its name.
struct Changing {
  Dtype dtype;
  std::int64_t elements;
  bool transposed;

  Tensor make() const {
    const std::int64_t rows = transposed ? 3 : 1;
    return {dtype,
            {rows, elements / rows},
            transposed ? std::vector<std::int64_t>{1, rows} : std::vector<std::int64_t>{}};
  }
};

/// The tensors of a thread, equal in every call.
std::vector<Changing> tensors_of(std::uint64_t seed, std::uint32_t thread) {
  SimPace draw(seed * 100 + thread, 0);
  constexpr Dtype kSome[] = {Dtype::kF32, Dtype::kBF16, Dtype::kU8, Dtype::kF64, Dtype::kF8E4M3, Dtype::kC64};
  std::vector<Changing> made;
  for (int i = 0; i < 4; ++i) {
    const auto size = static_cast<std::int64_t>(draw.draw(3) == 0 ? draw.draw(20'000) : draw.draw(300));
    made.push_back({kSome[draw.draw(6)], size - size % 3, draw.draw(2) == 0});
  }
  return made;
}

/// Memory that an abandoned device may read until the process ends.
std::vector<Tensor>& leak_on_purpose(std::uint64_t seed, std::uint32_t thread) {
  auto* const tensors = new std::vector<Tensor>;
  for (const Changing& changing : tensors_of(seed, thread)) tensors->push_back(changing.make());
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::vector<Tensor>*>;  // reachable to the end: no leak
  const std::scoped_lock lock(mutex);
  kept.push_back(tensors);
  return *tensors;
}

struct Job {
  std::uint64_t seed;
  std::unique_ptr<Ring> main;
  std::vector<SimDevice*> devices;
  std::vector<std::unique_ptr<DeviceCapture>> captures;
  std::atomic<std::uint64_t> asked{0};  // tensors; relaxed sums, read after join
  std::atomic<std::uint64_t> kept{0};
  std::atomic<std::uint32_t> running{kThreads};  // release by each thread, acquire by the consumer
};

void make_rings(Job& job, SimPace& draw) {
  constexpr FullPolicy kPolicies[] = {FullPolicy::kBlock, FullPolicy::kDrop, FullPolicy::kDegrade};
  constexpr CommitMode kCommitModes[] = {CommitMode::kStreamWrite, CommitMode::kCommitKernel,
                                         CommitMode::kPoll};
  RingConfig sizes = config(kMiB, 64, kPolicies[draw.draw(3)]);
  sizes.block_timeout = std::chrono::seconds(2);  // a lost device causes one wait
  sizes.device_lanes = kDevices;
  sizes.device_lane_bytes = (256 << 10) << draw.draw(3);
  sizes.device_lane_slots = 32 << draw.draw(4);
  job.main = std::make_unique<Ring>(sizes);
  for (std::uint32_t i = 0; i < kDevices; ++i) {
    auto device = std::make_unique<SimDevice>(
        SimDeviceOptions{.seed = draw.draw(1 << 30),
                         .delay_us = static_cast<std::uint32_t>(draw.draw(100)),
                         .best_commit_mode = kCommitModes[draw.draw(3)],
                         .fails_after = draw.draw(8) == 0 ? draw.draw(2000) : ~std::uint64_t{0},
                         .failure_loses_work = draw.draw(2) == 0});
    job.devices.push_back(device.get());
    DeviceCaptureConfig memory = small_memory((64 << 10) << draw.draw(4), (256 << 10) << draw.draw(2));
    memory.in_flight = 8 << draw.draw(5);
    job.captures.push_back(
        std::make_unique<DeviceCapture>(std::move(device), job.main->lanes()[i], *job.main, memory));
  }
}

void train(Job& job, std::uint32_t thread) {
  SimPace draw(job.seed * 77 + thread, 30);
  // Each stream of each device has its own tensors, which only work on this stream uses.
  std::vector<std::vector<Tensor>*> sets;
  for (std::uint32_t i = 0; i < kDevices * kStreams; ++i) sets.push_back(&leak_on_purpose(job.seed, thread));
  for (std::uint32_t call = 0; call < kCalls; ++call) {
    const std::uint64_t device = draw.draw(kDevices);
    const std::uint64_t which = draw.draw(kStreams);
    const StreamHandle stream = thread * kStreams + which;
    std::vector<Tensor>& tensors = *sets[device * kStreams + which];
    std::vector<TensorRequest> requests;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      if (draw.draw(3) == 0) continue;
      const std::uint32_t name = thread * kNames + call * 8 + i;
      Tensor& tensor = tensors[i];
      job.devices[device]->enqueue(stream, [&tensor, name] { tensor.fill(name); });
      constexpr std::uint8_t kFlags[] = {kAll, kWantPayload, kWantStats};
      const std::uint8_t flags = has_stats(tensor.dtype) ? kFlags[draw.draw(3)] : std::uint8_t{kWantPayload};
      requests.push_back(tensor.request(flags, name));
    }
    const CaptureResult result = job.captures[device]->capture(
        requests, {.step = call, .mode_step = call, .mode = 1, .call = 0}, stream);
    job.asked.fetch_add(requests.size(), std::memory_order_relaxed);
    job.kept.fetch_add(result.kept, std::memory_order_relaxed);
    DeviceCapture* const others[] = {job.captures[0].get(), job.captures[1].get()};
    if (draw.draw(10) == 0) (void)job.captures[device]->mark_step_end(0, others);
    draw.pause();
  }
  job.running.fetch_sub(1, std::memory_order_release);
}

/// Results of the consumer.
struct Seen {
  struct Parts {
    std::uint32_t there = 0;
    std::uint32_t all = 0;
    bool degraded = false;
  };
  std::map<std::uint32_t, Parts> tensors;  // by name, for tensors whose rows have values
  std::uint64_t wrong = 0;
  std::uint64_t torn = 0;
  std::uint64_t violations = 0;
};

void judge_row(const Job& job, const Consumer& consumer, std::uint32_t lane, const IndexRow& row,
               Seen& seen) {
  if (row.entry.status != EntryStatus::kOk) return;
  const std::uint32_t thread = row.entry.name / kNames;
  Tensor expected = tensors_of(job.seed, thread)[row.entry.name % 8].make();
  expected.fill(row.entry.name);
  const std::uint64_t size = dtype_bytes(expected.dtype);
  const std::vector<std::byte> values = values_of(expected.view());
  const std::byte* const part = values.data() + row.entry.element_offset * size;
  bool right = row.entry.element_offset + row.entry.elements <= values.size() / size;
  if (right && row.entry.payload_offset != kNoPayload && row.entry.payload_bytes > 0)
    right = std::memcmp(consumer.data()[lane] + row.location, part, row.entry.payload_bytes) == 0;
  if (right && row.entry.has_stats != 0) {
    const bool whole = row.entry.elements * size == values.size();
    const TensorStats stats =
        whole ? reduce(expected.view()) : reduce(part, row.entry.elements, expected.dtype);
    right = std::memcmp(&stats, &row.entry.stats, sizeof stats) == 0;
  }
  if (!right) ++seen.wrong;
  Seen::Parts& parts = seen.tensors[row.entry.name];
  if (parts.there++ != row.entry.part) ++seen.wrong;  // twice, or out of order
  parts.all = row.entry.parts;
  parts.degraded = parts.degraded || row.entry.reason == DropReason::kDegraded;
}

void consume(const Job& job, Consumer& consumer, Seen& seen) {
  for (bool last = false; !last;) {
    // Acquire: pairs with the release of each thread.
    last = job.running.load(std::memory_order_acquire) == 0;
    if (last) {
      for (SimDevice* const device : job.devices) seen.violations += device->violations();
      for (const auto& captures : job.captures) captures->close();
    }
    for (;;) {
      const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 16, false);
      for (const Batch& batch : drained.batches) {
        for (std::size_t i = 0; i < batch.rows; ++i)
          judge_row(job, consumer, batch.lane, drained.rows[batch.first_row + i], seen);
      }
      seen.torn += drained.torn;
      if (drained.first.ticket == drained.end.ticket) break;
      release(consumer, drained);
    }
    std::this_thread::yield();
  }
}

bool round(std::uint64_t seed) {
  Job job;
  job.seed = seed;
  SimPace draw(seed, 0);
  make_rings(job, draw);
  Consumer consumer(job.main->memories());
  Seen seen;
  std::thread reader([&] { consume(job, consumer, seen); });
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] { train(job, thread); });
  for (std::thread& thread : threads) thread.join();
  reader.join();
  std::uint64_t kept = 0;
  for (const auto& [name, parts] : seen.tensors) kept += parts.there == parts.all && !parts.degraded ? 1 : 0;
  std::uint64_t lost = 0;
  for (const auto& drop : job.main->counters().drops) lost += drop.tensors;
  const bool good = kept + lost == job.asked && seen.wrong == 0 && seen.torn == 0 && seen.violations == 0 &&
                    consumer.pending_records() == 0;
  if (!good) {
    const auto print = [](const char* what, std::uint64_t value) {
      std::fprintf(stderr, "%s %llu, ", what, static_cast<unsigned long long>(value));
    };
    print("seed", seed), print("asked", job.asked), print("kept", kept), print("said to be kept", job.kept);
    print("wrong", seen.wrong), print("torn", seen.torn), print("violations", seen.violations);
    print("pending", consumer.pending_records());
    for (std::size_t i = 0; i < static_cast<std::size_t>(DropReason::kCount); ++i) {
      const std::uint64_t tensors = job.main->counters().drops[i].tensors;
      if (tensors > 0)
        std::fprintf(stderr, "reason %zu: %llu, ", i, static_cast<unsigned long long>(tensors));
    }
    for (const auto& captures : job.captures) std::fprintf(stderr, "'%s' ", captures->report().error.c_str());
    std::fprintf(stderr, "\n");
  }
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int i, long long otherwise) {
    return count > i ? std::strtoull(arguments[i], nullptr, 10) : static_cast<unsigned long long>(otherwise);
  };
  const std::uint64_t rounds = number(1, kSanitized ? 12 : 30);
  const std::uint64_t first = number(2, 1);
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) failed += round(seed) ? 0 : 1;
  std::printf("%llu rounds, %llu wrong\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(failed));
  return failed == 0 ? 0 : 1;
}
