// Growth: the table of names and the ring allocate memory when they need it, and readers use it.
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/memory_limits.hpp"
#include "check.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/ring.hpp"
#include "rings.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;

RingConfig growing(std::uint64_t data_bytes, std::uint64_t first, std::uint64_t slots = 4096) {
  RingConfig result = config(data_bytes, slots);
  result.first_data_bytes = first;
  return result;
}

/// Limits the available memory until destruction.
class Short {
 public:
  explicit Short(std::uint64_t bytes) { pretend_available_memory(bytes); }
  ~Short() { pretend_available_memory(~std::uint64_t{0}); }
};

void rings() {
  it("a ring takes little memory at first, and a fixed part of what it may come to", [] {
    REQUIRE(first_data_bytes(256 * kMib) == kMib && first_data_bytes(2 * kMib) == 2 * kMib);
    REQUIRE(first_data_bytes(64 << 10) == 64 << 10 && first_data_bytes(512 * kMib) == 2 * kMib);
    Ring ring(config(256 * kMib, 16384));
    REQUIRE(ring.memory_bytes() < 3 * kMib && ring.data_bytes() == 256 * kMib);
  });
  it("records of a ring that grew while they waited are all there, in order and aligned", [] {
    for (const std::uint64_t wait : {1, 3, 7, 50, 400}) {
      Ring ring(growing(kMib, 4096));
      Consumer consumer(ring.memory());
      unsigned read = 0;
      const auto size_of = [](unsigned i) { return 1 + (i * std::uint64_t{7919}) % 9000; };
      for (unsigned i = 0; i < 2000; ++i) {
        if (!put(ring, size_of(i), i, i % 3 == 0 ? 4096 : 64)) {  // full: release some records
          while (read + 5 < i) {
            const std::optional<RecordView> record = consumer.next(false);
            REQUIRE(record && holds(*record, size_of(read), read) && record->ticket == read);
            REQUIRE(reinterpret_cast<std::uintptr_t>(record->data) % (read % 3 == 0 ? 4096 : 64) == 0);
            ++read;
          }
          release_all(consumer);
          REQUIRE(put(ring, size_of(i), i, i % 3 == 0 ? 4096 : 64));
        }
        if (i % wait == 0) {
          const std::optional<RecordView> record = consumer.next(false);
          REQUIRE(record && holds(*record, size_of(read), read));
          ++read;
          release_all(consumer);
        }
      }
      for (; read < 2000; ++read) {
        const std::optional<RecordView> record = consumer.next(false);
        REQUIRE(record && holds(*record, size_of(read), read) && record->ticket == read);
      }
      release_all(consumer);
      REQUIRE(consumer.pending_bytes() == 0 && !consumer.next(false));
    }
  });
  it("a ring that is emptied in time stays as small as it was", [] {
    Ring ring(config(256 * kMib, 16384));
    Consumer consumer(ring.memory());
    const std::uint64_t before = ring.memory_bytes();
    for (unsigned i = 0; i < 5000; ++i) {  // 100 MiB in total
      REQUIRE(put(ring, 20'000, i) && consumer.next(false));
      release_all(consumer);
    }
    REQUIRE(ring.memory_bytes() == before);
  });
  it("a record larger than the ring is now makes it large enough at once", [] {
    Ring ring(config(64 * kMib, 16));
    Consumer consumer(ring.memory());
    REQUIRE(put(ring, 100, 1) && put(ring, 8 * kMib, 2, 4096) && put(ring, 100, 3));
    for (const auto& [bytes, value] : {std::pair{std::uint64_t{100}, 1U}, {8 * kMib, 2U}, {100, 3U}}) {
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && holds(*record, bytes, value));
    }
  });
  it("without memory the ring is full as it is, says why, and grows when there is some again", [] {
    Ring ring(config(64 * kMib, 4096, FullPolicy::kBlock));
    Consumer consumer(ring.memory());
    {
      const Short memory(kMib / 2);
      while (put(ring, 100'000, 1)) {
      }
      REQUIRE(consumer.pending_bytes() > kMib / 2 && consumer.pending_bytes() <= kMib);
      REQUIRE(consumer.data_bytes() == kMib && consumer.fill() > 0.5);
      REQUIRE(ring.growth_refusal().find("bytes available") != std::string::npos);
      REQUIRE(!ring.wait_for_room(4 * kMib));  // no wait could help
    }
    while (!put(ring, 100'000, 1)) std::this_thread::yield();  // the ring tries again after a second
    REQUIRE(ring.growth_refusal().empty() && consumer.data_bytes() == 64 * kMib);
    REQUIRE(put(ring, 4 * kMib, 2));
  });
  it("memory that is expected to be needed is taken before it is", [] {
    Ring ring(config(64 * kMib, 16));
    ring.expect(10 * kMib);
    ring.expect(1000);
    while (ring.memory_bytes() < 16 * kMib) std::this_thread::yield();
    const std::uint64_t taken = ring.memory_bytes();
    REQUIRE(taken < 18 * kMib);
    REQUIRE(put(ring, 8 * kMib, 1) && ring.memory_bytes() == taken);
    ring.expect(1000 * kMib);
    while (ring.memory_bytes() < 64 * kMib) std::this_thread::yield();
    ring.close();
    ring.expect(1000 * kMib);
  });
  it("a ring that another thread makes large enough in the same moment does not grow further", [] {
    const std::uint64_t rest = Ring(growing(kMib, 4096)).memory_bytes() - 4096;
    for (unsigned i = 0; i < 300; ++i) {
      Ring ring(growing(kMib, 4096));
      ring.expect(10'000);
      while (ring.memory_bytes() < rest + 16384) {
      }
      REQUIRE(put(ring, 8000, 1) && ring.memory_bytes() == rest + 16384);
    }
  });
  it("several threads may find the ring too small at once", [] {
    Ring ring(growing(kMib, 4096));
    std::array<std::thread, 4> producers;
    for (unsigned p = 0; p < producers.size(); ++p) {
      producers[p] = std::thread([&ring, p] {
        for (unsigned i = 0; i < 60; ++i) REQUIRE(put(ring, 3000, p));
      });
    }
    for (std::thread& producer : producers) producer.join();
    Consumer consumer(ring.memory());
    unsigned records = 0;
    while (const std::optional<RecordView> record = consumer.next(false)) {
      REQUIRE(holds(*record, 3000, static_cast<unsigned>(record->data[0])));
      ++records;
    }
    REQUIRE(records == 240);
  });
  it("threads that write while the limit rises and memory is allocated ahead lose no record", [] {
    RingConfig limited = growing(4 * kMib, 4096);
    limited.limit_bytes = 64 << 10;
    Ring ring(limited);
    Consumer consumer(ring.memory());
    constexpr unsigned kRecords = 300;
    std::array<std::thread, 3> producers;
    for (unsigned p = 0; p < producers.size(); ++p) {
      producers[p] = std::thread([&ring, p] {
        for (unsigned i = 0; i < kRecords; ++i) {
          while (!put(ring, 3000, p)) std::this_thread::yield();
        }
      });
    }
    for (unsigned read = 0; read < kRecords * producers.size();) {
      const std::optional<RecordView> record = consumer.next(false);
      if (!record) continue;
      REQUIRE(holds(*record, 3000, static_cast<unsigned>(record->data[0])));
      if (++read % 100 == 0) {
        release_all(consumer);
        (void)ring.raise_limit(std::uint64_t{read} * 3000);
        ring.expect(std::uint64_t{read} * 3000);
      }
      if (read % 20 == 0) release_all(consumer);
    }
    for (std::thread& producer : producers) producer.join();
    release_all(consumer);
    REQUIRE(ring.limit_bytes() == 4 * kMib && consumer.pending_records() == 0);
  });
  it("positions wrap at the end of their bits while the ring grows", [] {
    Ring ring(growing(kMib, 4096));
    ControlPage& control = ring.memory()->control();
    const Cursor near{5, kPositionMask - 30};
    control.reservation.store(near.pack());
    control.head_ticket.store(5);
    control.head.store(near.pack());
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 60; ++i) REQUIRE(put(ring, 700, i));
    for (unsigned i = 0; i < 60; ++i) {
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && holds(*record, 700, i));
    }
    release_all(consumer);
    REQUIRE(consumer.pending_bytes() == 0);
  });
}

void names() {
  it("the table of names grows as names come", [] {
    RingConfig large = config(64 << 10);
    large.names_bytes = 256 * kMib;
    Ring ring(large);
    const std::uint64_t before = ring.memory_bytes();
    REQUIRE(before < kMib);
    constexpr unsigned kNames = kSanitized ? 20'000 : 200'000;
    const std::string padding(52, 'x');
    for (unsigned i = 0; i < kNames; ++i)
      REQUIRE(ring.intern(std::to_string(10'000'000 + i) + padding, 1, "Linear") == i);
    REQUIRE(ring.memory_bytes() > before + std::uint64_t{kNames} * 80);
    REQUIRE(ring.memory_bytes() < before + std::uint64_t{kNames} * 80 * 2);
    NameCursor cursor;
    const std::vector<Name> found = Consumer(ring.memory()).names(cursor);
    REQUIRE(found.size() == kNames);
    for (unsigned i = 0; i < kNames; ++i) REQUIRE(found[i].name == std::to_string(10'000'000 + i) + padding);
  });
  it("whoever reads names while the table grows sees whole ones", [] {
    RingConfig large = config(64 << 10);
    large.names_bytes = 16 * kMib;
    Ring ring(large);
    constexpr unsigned kNames = kSanitized ? 5'000 : 50'000;
    std::atomic<bool> done{false};
    std::thread writer([&ring, &done] {
      for (unsigned i = 0; i < kNames; ++i) {
        const std::string text(1 + i % 200, static_cast<char>('a' + i % 26));
        REQUIRE(ring.intern(std::to_string(i) + text, i, text).has_value());
      }
      done.store(true, std::memory_order_release);
    });
    Consumer consumer(ring.memory());
    NameCursor cursor;
    unsigned read = 0;
    for (bool last = false; !last;) {
      last = done.load(std::memory_order_acquire);
      for (const Name& name : consumer.names(cursor)) {
        const std::string text(1 + read % 200, static_cast<char>('a' + read % 26));
        REQUIRE(name.name == std::to_string(read) + text && name.kind == read && name.origin == text);
        ++read;
      }
    }
    writer.join();
    REQUIRE(read == kNames);
  });
  it("where memory is short names are left out, but not those of losses and scalars", [] {
    RingConfig large = config(64 << 10);
    large.names_bytes = 16 * kMib;
    Ring ring(large);
    const std::string padding(1000, 'x');
    const Short memory(1000);
    std::uint32_t known = 0;
    while (ring.intern(std::to_string(known) + padding, 1, "")) ++known;
    REQUIRE(known > 40 && known < 64);
    constexpr std::array<std::uint32_t, 4> kSmall{6, 7, 9, 11};  // TensorKind
    for (const std::uint32_t kind : kSmall) {
      REQUIRE(ring.intern("small", kind, "") == known);
      ++known;
    }
    REQUIRE(ring.intern("0" + padding, 1, "") == 0U);
  });
}

}  // namespace

int main() {
  rings();
  names();
  return tdcore::testing::result();
}
