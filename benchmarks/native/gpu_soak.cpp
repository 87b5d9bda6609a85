// gpu_soak.cpp: tests many times, in every commit mode, whether a commit word is visible before its bytes.
//
// Each record is written as in a capture: it is packed on one stream, an event follows, another stream copies
// the bytes into a pinned memory file, and then the commit word is written. A second thread polls the word,
// like a consumer. When the word has arrived, this thread compares the last bytes first, and then all bytes.
// Records are ranges of one random pattern, so they differ from the earlier record in the slot. Bytes that
// were wrong at the first comparison and correct within a second are an early commit; bytes that stay wrong
// are corrupt. Threads: a producer enqueues, and a consumer compares; they share only `seen` and the words.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "gpu_launches.hpp"
#include "stats/cpu.hpp"

namespace tdcore::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSlots = 16;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kPatternBytes = std::uint64_t{32} << 20;
constexpr auto kPatience =
    std::chrono::seconds(60);  // time without a record after which the device counts as stuck

struct Found {
  std::uint64_t records = 0, bytes = 0, early = 0, corrupt = 0;
  std::uint64_t longest_early_us = 0;
  bool stuck = false;
  double seconds = 0;
};

/// Producer and consumer of records in one commit mode; k is the number of a record.
struct Way {
  virtual ~Way() = default;
  virtual void produce(std::uint64_t k) = 0;
  virtual bool committed(std::uint64_t k) = 0;
  virtual bool whole(std::uint64_t k) = 0;  // compares the last bytes first
  virtual std::uint64_t bytes(std::uint64_t k) const = 0;
};

Found soak(Way& way, std::uint64_t records) {
  Found found;
  std::atomic<std::uint64_t> seen{0};  // release by the consumer, acquire by the producer: the slot is free
  std::atomic<bool> stop{false};       // relaxed: only ends both loops
  std::thread consumer([&] {
    for (std::uint64_t k = 0; k < records && !stop.load(std::memory_order_relaxed); ++k) {
      const auto begun = Clock::now();
      while (!way.committed(k)) {
        if (stop.load(std::memory_order_relaxed)) return;
        if (Clock::now() - begun > kPatience) {
          found.stuck = true;
          stop.store(true, std::memory_order_relaxed);
          return;
        }
      }
      const auto looked = Clock::now();
      if (!way.whole(k)) {
        ++found.early;
        while (!way.whole(k) && Clock::now() - looked < std::chrono::seconds(1)) {
        }
        const auto late = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - looked);
        found.longest_early_us = std::max(found.longest_early_us, static_cast<std::uint64_t>(late.count()));
        if (!way.whole(k)) ++found.corrupt, --found.early;
      }
      ++found.records;
      found.bytes += way.bytes(k);
      seen.store(k + 1, std::memory_order_release);
    }
  });
  const auto begun = Clock::now();
  try {
    for (std::uint64_t k = 0; k < records && !stop.load(std::memory_order_relaxed); ++k) {
      while (k >= kSlots + seen.load(std::memory_order_acquire) && !stop.load(std::memory_order_relaxed)) {
        std::this_thread::yield();
      }
      way.produce(k);
    }
  } catch (...) {
    stop.store(true, std::memory_order_relaxed);
    consumer.join();
    throw;
  }
  consumer.join();
  found.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  return found;
}

/// Random size (uniform on a logarithmic scale) and offset in the pattern, for each record.
struct Piece {
  std::uint64_t offset, bytes;
};

std::vector<Piece> pieces(std::uint64_t records, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> log_bytes(3, 20);
  std::vector<Piece> all(records);
  for (Piece& piece : all) {
    piece.bytes = std::min(kMostBytes, static_cast<std::uint64_t>(std::exp2(log_bytes(random))));
    piece.offset = random() % (kPatternBytes - piece.bytes) / 16 * 16;
  }
  return all;
}

/// Whether bytes that may still be arriving are correct. Each byte is read only once. memcmp() is not used:
/// it reads different bytes again, to compare them, and returns 0 if they have arrived in between.
bool have_arrived(const std::byte* got, const std::byte* expected, std::uint64_t bytes) {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  std::uint64_t at = 0;
  for (; at + kWord <= bytes; at += kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, expected + at, kWord);
    if (*reinterpret_cast<const volatile std::uint64_t*>(got + at) != word) return false;
  }
  for (; at < bytes; ++at) {
    if (*reinterpret_cast<const volatile std::byte*>(got + at) != expected[at]) return false;
  }
  return true;
}

/// The random pattern on the host and on the device.
struct Pattern {
  std::vector<std::byte> host;
  std::byte* device_side;

  Pattern(Device& device, StreamHandle stream) : host(kPatternBytes) {
    std::mt19937_64 random(7);
    for (std::size_t at = 0; at < kPatternBytes; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(host.data() + at, &word, 8);
    }
    device_side = static_cast<std::byte*>(device_memory(device, kPatternBytes));
    upload(device, stream, device_side, host.data(), kPatternBytes);
  }
};

/// Copies of records. A slot has the commit word of its record, then the bytes.
class Payloads final : public Way {
 public:
  Payloads(Device& device, CommitMode commit_mode, const Pattern& pattern, std::uint64_t records,
           std::byte* slots, std::byte* arena, device::Item* table)
      : device_(device),
        commit_mode_(commit_mode),
        pattern_(pattern),
        pieces_(pieces(records, 11)),
        slots_(slots),
        training_(device.make_stream()),
        copies_(device.make_stream()) {
    std::vector<device::Item> items(records);
    for (std::uint64_t k = 0; k < records; ++k) {
      items[k].data = pattern.device_side + pieces_[k].offset;
      items[k].elements = pieces_[k].bytes;
      items[k].packed = arena + k % kSlots * kMostBytes;
      items[k].layout = device::kContiguous;
      items[k].dtype = items[k].packed_dtype = static_cast<std::uint8_t>(Dtype::kU8);
    }
    upload(device, training_, table, items.data(), records * sizeof items[0]);
    items_ = table;
    arena_ = arena;
    for (std::uint64_t i = 0; i < kSlots; ++i) {
      packed_[i] = device.make_event();
      copied_[i] = device.make_event();
      *word(i) = 0;
    }
  }

  void produce(std::uint64_t k) override {
    const std::uint64_t i = k % kSlots;
    device::Launch launch{};
    launch.items = items_ + k;
    launch.count = 1;
    launch.tiles = device::tiles_of(pieces_[k].bytes);
    const bool taken =
        device_.launch(training_, Kernel::kPack, launch) && device_.record_event(packed_[i], training_) &&
        device_.wait_event(copies_, packed_[i]) &&
        device_.copy_to_host(copies_, payload(i), arena_ + i * kMostBytes, pieces_[k].bytes) &&
        (commit_mode_ == CommitMode::kPoll ? device_.record_event(copied_[i], copies_)
                                           : device_.write_word(copies_, word(i), k + 1, commit_mode_));
    check(device_, taken, "a record");
    produced_.store(k + 1, std::memory_order_release);  // pairs with the acquire in committed()
  }

  bool committed(std::uint64_t k) override {
    if (commit_mode_ == CommitMode::kPoll) {  // an event that was never recorded is reported as done
      return produced_.load(std::memory_order_acquire) > k &&
             device_.query_event(copied_[k % kSlots]) == EventState::kDone;
    }
    return std::atomic_ref(*word(k % kSlots)).load(std::memory_order_acquire) == k + 1;
  }

  bool whole(std::uint64_t k) override {
    const std::byte* got = payload(k % kSlots);
    const std::byte* expected = pattern_.host.data() + pieces_[k].offset;
    const std::uint64_t bytes = pieces_[k].bytes, last = bytes - std::min<std::uint64_t>(bytes, 64);
    const std::uint64_t tail = last / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    return have_arrived(got + tail, expected + tail, bytes - tail) && have_arrived(got, expected, tail);
  }

  std::uint64_t bytes(std::uint64_t k) const override { return pieces_[k].bytes; }

 private:
  std::uint64_t* word(std::uint64_t slot) const {
    return reinterpret_cast<std::uint64_t*>(slots_ + slot * (kMostBytes + 4096));
  }
  std::byte* payload(std::uint64_t slot) const { return slots_ + slot * (kMostBytes + 4096) + 4096; }

  Device& device_;
  const CommitMode commit_mode_;
  const Pattern& pattern_;
  const std::vector<Piece> pieces_;
  std::byte* const slots_;
  std::byte* arena_ = nullptr;
  const device::Item* items_ = nullptr;
  const StreamHandle training_, copies_;
  EventHandle packed_[kSlots] = {}, copied_[kSlots] = {};
  std::atomic<std::uint64_t> produced_{0};  // release in produce(), acquire in committed()
};

/// Statistics by a kernel that writes results and commit words directly into pinned memory.
class Statistics final : public Way {
 public:
  Statistics(Device& device, const Pattern& pattern, std::uint64_t records, std::byte* slots,
             device::Item* table)
      : device_(device),
        stream_(device.make_stream()),
        slots_(slots),
        choice_(records),
        kinds_(pieces(64, 13)) {
    std::mt19937_64 random(17);
    std::vector<device::Item> items(kSlots * kinds_.size());
    std::uint64_t most_tiles = 1;
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      kinds_[i].bytes = std::max<std::uint64_t>(kinds_[i].bytes / 2 * 2, 2);
      expected_.push_back(reduce(pattern.host.data() + kinds_[i].offset, kinds_[i].bytes / 2, Dtype::kI16));
      most_tiles = std::max(most_tiles, device::tiles_of(kinds_[i].bytes / 2));
      for (std::uint64_t slot = 0; slot < kSlots; ++slot) {
        device::Item& item = items[slot * kinds_.size() + i];
        item.data = pattern.device_side + kinds_[i].offset;
        item.elements = kinds_[i].bytes / 2;
        item.stats = static_cast<TensorStats*>(device.device_address(result(slot)));
        item.layout = device::kContiguous;
        item.dtype = item.packed_dtype = static_cast<std::uint8_t>(Dtype::kI16);
      }
    }
    for (std::uint64_t& each : choice_) each = random() % kinds_.size();
    upload(device, stream_, table, items.data(), items.size() * sizeof items[0]);
    launch_.count = 1;
    items_ = table;
    launch_.partials = static_cast<TensorStats*>(device_memory(device, most_tiles * sizeof(TensorStats)));
    const std::uint64_t counters = device::counters_of(most_tiles, 1);
    launch_.finished_tiles = static_cast<std::uint32_t*>(device_memory(device, 4 * (counters + 1)));
    launch_.finished_items = launch_.finished_tiles + counters;
    check(device, device.fill_zero(stream_, launch_.finished_tiles, 4 * (counters + 1)), "zeroing");
    wait(device, stream_);
    for (std::uint64_t slot = 0; slot < kSlots; ++slot) *word(slot) = 0;
  }

  void produce(std::uint64_t k) override {
    const std::uint64_t slot = k % kSlots;
    std::memset(static_cast<void*>(result(slot)), 0, sizeof(TensorStats));
    device::Launch launch = launch_;
    launch.items = items_ + slot * kinds_.size() + choice_[k];
    launch.tiles = device::tiles_of(kinds_[choice_[k]].bytes / 2);
    launch.commit_word = static_cast<std::uint64_t*>(device_.device_address(word(slot)));
    launch.commit_value = k + 1;
    check(device_, device_.launch(stream_, Kernel::kStats, launch), "the statistics kernel");
  }

  bool committed(std::uint64_t k) override {
    return std::atomic_ref(*word(k % kSlots)).load(std::memory_order_acquire) == k + 1;
  }

  /// For 16-bit integers everything is exact except the last digits of sums and moments, which must be equal
  /// each time.
  bool whole(std::uint64_t k) override {
    const TensorStats got = *result(k % kSlots);
    const TensorStats& expected = expected_[choice_[k]];
    return std::memcmp(got.log2_counts, expected.log2_counts, sizeof got.log2_counts) == 0 &&
           got.count == expected.count && got.zero_count == expected.zero_count && got.min == expected.min &&
           got.max == expected.max && got.abs_max == expected.abs_max &&
           std::fabs(got.square_sum - expected.square_sum) <= 1e-6 * expected.square_sum &&
           std::fabs(got.abs_sum - expected.abs_sum) <= 1e-6 * expected.abs_sum;
  }

  std::uint64_t bytes(std::uint64_t) const override { return sizeof(TensorStats); }

 private:
  std::uint64_t* word(std::uint64_t slot) const {
    return reinterpret_cast<std::uint64_t*>(slots_ + slot * 4096);
  }
  TensorStats* result(std::uint64_t slot) const {
    return reinterpret_cast<TensorStats*>(slots_ + slot * 4096 + 64);
  }

  Device& device_;
  const StreamHandle stream_;
  std::byte* const slots_;
  std::vector<std::uint64_t> choice_;
  std::vector<Piece> kinds_;
  std::vector<TensorStats> expected_;
  const device::Item* items_ = nullptr;
  device::Launch launch_{};
};

std::string row(const char* commit_mode, const Found& found) {
  const std::string text =
      object({field("rung", std::string(commit_mode)), field("records", static_cast<double>(found.records)),
              field("gigabytes", static_cast<double>(found.bytes) / 1e9),
              field("early_commits", static_cast<double>(found.early)),
              field("longest_early_us", static_cast<double>(found.longest_early_us)),
              field("corrupt", static_cast<double>(found.corrupt)), field("stuck", found.stuck ? 1.0 : 0.0),
              field("seconds", found.seconds)});
  std::fprintf(stderr, "soak: %s\n", text.c_str());
  return text;
}

}  // namespace

std::string commit_soak(Device& device, const Options& options) {
  const StreamHandle stream = device.make_stream();
  const Pattern pattern(device, stream);
  auto* slots = static_cast<std::byte*>(pinned_mapping(device, kSlots * (kMostBytes + 4096)));
  auto* arena = static_cast<std::byte*>(device_memory(device, kSlots * kMostBytes));
  const std::uint64_t items = std::max(options.records, kSlots * 64);
  auto* table = static_cast<device::Item*>(device_memory(device, items * sizeof(device::Item)));
  std::vector<std::string> rows;
  for (const CommitMode commit_mode :
       {CommitMode::kStreamWrite, CommitMode::kCommitKernel, CommitMode::kPoll}) {
    if (commit_mode < device.info().best_commit_mode)
      continue;  // the probe found that this mode does not work here
    Payloads way(device, commit_mode, pattern, options.records, slots, arena, table);
    rows.push_back(row(commit_mode_name(commit_mode), soak(way, options.records)));
  }
  if (device.info().best_commit_mode != CommitMode::kPoll) {
    Statistics way(device, pattern, options.records, slots, table);
    rows.push_back(row("statistics kernel", soak(way, options.records)));
  }
  return array(rows);
}

}  // namespace tdcore::bench
