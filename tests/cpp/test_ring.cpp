// The ring's protocol: space, order, wrap-around, restart, death, waiting, many threads.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/ring.hpp"
#include "rings.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

// ---- space

void sizes() {
  it("sizes that are no powers of two or out of range are refused with limits and value", [] {
    const std::string message = message_of<std::invalid_argument>([] { Ring ring(config(100'000)); });
    REQUIRE(message == "data_bytes must be a power of two from 65536 to 68719476736, got 100000");
    REQUIRE(!message_of<std::invalid_argument>([] { Ring ring(config(32 << 10)); }).empty());
    REQUIRE(!message_of<std::invalid_argument>([] { Ring ring(config(kSmallData, 8)); }).empty());
    REQUIRE(!message_of<std::invalid_argument>([] {
               Ring ring(config(kSmallData, std::uint64_t{1} << 21));
             }).empty());
    RingConfig bad = config();
    bad.block_timeout = std::chrono::nanoseconds(-1);
    REQUIRE(!message_of<std::invalid_argument>([&] { Ring ring(bad); }).empty());
    bad = config();
    bad.threads = 0;
    REQUIRE(!message_of<std::invalid_argument>([&] { Ring ring(bad); }).empty());
  });
  it("a record of no bytes, of too many, or with an odd alignment is refused", [] {
    Ring ring(config());
    REQUIRE(ring.max_record_bytes() == kSmallData / 8);
    REQUIRE(!ring.try_reserve(RecordKind::kBatch, 0, 64));
    REQUIRE(!ring.try_reserve(RecordKind::kBatch, ring.max_record_bytes() + 1, 64));
    REQUIRE(!ring.try_reserve(RecordKind::kBatch, std::numeric_limits<std::uint64_t>::max(), 64));
    REQUIRE(!ring.try_reserve(RecordKind::kBatch, 64, 128));
    REQUIRE(put(ring, ring.max_record_bytes(), 1, 4096));
  });
  it("a ring without free slots refuses until the consumer has released", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 16; ++i) REQUIRE(put(ring, 64, i));
    REQUIRE(!put(ring, 64, 16));
    REQUIRE(consumer.pending_records() == 16);
    REQUIRE(consumer.next(false).has_value());
    REQUIRE(!put(ring, 64, 16));  // read is not released
    release_all(consumer);
    REQUIRE(put(ring, 64, 16));
    REQUIRE(!put(ring, 64, 17));
  });
  it("a ring without free bytes refuses until the consumer has released", [] {
    Ring ring(config(kSmallData, 1024));
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 8; ++i) REQUIRE(put(ring, kSmallData / 8, i));
    REQUIRE(!put(ring, 1, 9));
    REQUIRE(consumer.pending_bytes() == kSmallData);
    for (unsigned i = 0; i < 3; ++i) (void)consumer.next(false);
    release_all(consumer);
    for (unsigned i = 0; i < 3; ++i) REQUIRE(put(ring, kSmallData / 8, i));
    REQUIRE(!put(ring, 1, 9));
  });
  it("records never wrap, start where asked, and keep their bytes over many laps", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    std::uint64_t ticket = 0;
    for (unsigned i = 0; i < 5000; ++i) {
      const std::uint64_t bytes = 1 + (i * 2654435761U) % ring.max_record_bytes();
      const std::uint64_t align = i % 3 == 0 ? 4096 : 64;
      REQUIRE(put(ring, bytes, i, align));
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && holds(*record, bytes, i) && record->ticket == ticket);
      REQUIRE(record && reinterpret_cast<std::uintptr_t>(record->data) % align == 0);
      ++ticket;
      if (i % 2 == 1) release_all(consumer);
    }
  });
  it("an aborted record is skipped by its kind and its space comes back", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    {
      ScopedReservation left(ring, ring.try_reserve(RecordKind::kBatch, 100, 64));
    }
    REQUIRE(put(ring, 64, 5));
    const std::optional<RecordView> aborted = consumer.next(false);
    REQUIRE(aborted && aborted->kind == RecordKind::kAborted && !aborted->torn);
    const std::optional<RecordView> kept = consumer.next(false);
    REQUIRE(kept && holds(*kept, 64, 5));
    release_all(consumer);
    REQUIRE(consumer.pending_bytes() == 0);
  });
  it("tickets and positions go on over the end of their 24 and 36 bits", [] {
    Ring ring(config());
    ControlPage& control = ring.memory()->control();
    const std::uint64_t full = (std::uint64_t{1} << 32) - 7;  // the low 24 bits are near their end
    const Cursor near{full & kTicketMask, kPositionMask - 500};
    control.reservation.store(near.pack());
    control.head_ticket.store(full);
    control.head.store(near.pack());
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 200; ++i) {
      const std::uint64_t bytes = 1 + (i * 977) % ring.max_record_bytes();
      REQUIRE(put(ring, bytes, i, i % 2 == 0 ? 64 : 4096));
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && holds(*record, bytes, i) && record->ticket == full + i);
      if (i % 3 == 0) release_all(consumer);
    }
    release_all(consumer);
    REQUIRE(control.head.load() == control.reservation.load());
    REQUIRE(Consumer(ring.memory()).released().ticket == full + 200);
  });
}

// ---- consumer

void consumers() {
  it("the consumer stops at the first uncommitted record", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    const Reservation open = ring.try_reserve(RecordKind::kBatch, 64, 64);
    REQUIRE(put(ring, 64, 2));
    REQUIRE(!consumer.next(false));
    ring.commit(open);
    REQUIRE(consumer.next(false) && consumer.next(false) && !consumer.next(false));
  });
  it("a restarted consumer reads what was not released again, under the same tickets", [] {
    Ring ring(config());
    for (unsigned i = 0; i < 5; ++i) REQUIRE(put(ring, 64, i));
    {
      Consumer first(ring.memory());
      REQUIRE(first.epoch() == 1);
      (void)first.next(false);
      (void)first.next(false);
      release_all(first);
      (void)first.next(false);
    }
    Consumer second(ring.memory());
    REQUIRE(second.epoch() == 2);
    for (unsigned i = 2; i < 5; ++i) {
      const std::optional<RecordView> record = second.next(false);
      REQUIRE(record && record->ticket == i && holds(*record, 64, i));
    }
  });
  it("a consumer killed between storing its count and its head leaves the right count behind", [] {
    Ring ring(config());
    ControlPage& control = ring.memory()->control();
    const std::uint64_t full = (std::uint64_t{5} << kTicketBits) - 2;
    const Cursor at{full & kTicketMask, 0};
    control.reservation.store(at.pack());
    control.head.store(at.pack());
    for (const std::uint64_t ahead : {0, 1, 2, 15}) {
      control.head_ticket.store(full + ahead);
      REQUIRE(Consumer(ring.memory()).mark().ticket == full);
    }
  });
  it("releases out of order are refused", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    REQUIRE(put(ring, 64, 1) && put(ring, 64, 2));
    const Mark begin = consumer.mark();
    (void)consumer.next(false);
    const Mark middle = consumer.mark();
    (void)consumer.next(false);
    REQUIRE(!message_of<std::logic_error>([&] { consumer.release(middle, consumer.mark()); }).empty());
    consumer.release(begin, middle);
    consumer.release(middle, consumer.mark());
    REQUIRE(!message_of<std::logic_error>([&] { consumer.release(begin, middle); }).empty());
  });
  it("a consumer that another one has replaced cannot move the head", [] {
    Ring ring(config());
    REQUIRE(put(ring, 64, 1) && put(ring, 64, 2));
    Consumer stale(ring.memory());
    (void)stale.next(false);
    Consumer fresh(ring.memory());
    (void)fresh.next(false);
    (void)fresh.next(false);
    release_all(fresh);
    REQUIRE(message_of<std::logic_error>([&] { release_all(stale); }).find("another consumer") !=
            std::string::npos);
    REQUIRE(fresh.pending_records() == 0);
  });
  it("a slot that cannot be true is torn, and the records behind it are kept", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 4; ++i) REQUIRE(put(ring, 64, i));
    Slot* const slots = ring.memory()->slots();
    slots[0].bytes = kSmallData;
    slots[1].position = kPositionMask + 1;
    slots[2].offset = kSmallData - kUnitBytes;
    slots[2].bytes = 128;  // beyond the end
    for (unsigned i = 0; i < 3; ++i) {
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && record->torn && record->data == nullptr);
    }
    const std::optional<RecordView> kept = consumer.next(false);
    REQUIRE(kept && holds(*kept, 64, 3));
    const Mark begin = consumer.released();
    consumer.release(begin, consumer.mark(), 3);
    REQUIRE(consumer.pending_bytes() == 0);
    REQUIRE(ring.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors == 3);
    REQUIRE(put(ring, 64, 9));  // the producer lives: the ring goes on
  });
}

// ---- death

void death() {
  it("unfinished records of a dead producer are torn and skipped, committed ones kept", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    REQUIRE(put(ring, 64, 0));
    const Reservation torn = ring.try_reserve(RecordKind::kBatch, 640, 64);
    REQUIRE(torn && put(ring, 64, 2));
    const Reservation last = ring.try_reserve(RecordKind::kBatch, 640, 64);
    REQUIRE(static_cast<bool>(last));
    std::vector<bool> seen;
    while (const std::optional<RecordView> record = consumer.next(true)) seen.push_back(record->torn);
    REQUIRE((seen == std::vector<bool>{false, true, false, true}));
    consumer.release(consumer.released(), consumer.mark(), 2);
    REQUIRE(consumer.pending_records() == 0 && consumer.pending_bytes() == 0);
    REQUIRE(!put(ring, 64, 3));  // if the verdict was wrong: no producer writes any more
    ring.abort(torn);
    ring.abort(last);
  });
  it("torn records are counted once, wherever a consumer is killed while counting", [] {
    // The note of a release that did not happen, of a release that did happen, and a partial note.
    const auto total = [](std::uint64_t note_ticket, std::uint64_t note_total, std::uint64_t already) {
      Ring ring(config());
      ControlPage& control = ring.memory()->control();
      REQUIRE(put(ring, 64, 0));
      {
        Consumer before(ring.memory());
        (void)before.next(false);
        release_all(before);
      }
      control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.store(already);
      control.note_torn.store(note_total);
      control.note_ticket.store(note_ticket);
      const Consumer restarted(ring.memory());
      return restarted.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors;
    };
    REQUIRE(total(2, 5, 3) == 3);
    REQUIRE(total(1, 5, 3) == 5);
    REQUIRE(total(1, 5, 5) == 5);
    REQUIRE(total(~std::uint64_t{0}, 5, 3) == 3);
  });
  it("what a killed process committed survives it, whole", [] {
    std::array<int, 2> pipe_ends{};
    REQUIRE(::pipe(pipe_ends.data()) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Ring ring(config(1 << 20, 64));
      for (unsigned i = 0; i < 10; ++i) {
        if (i % 4 == 3) {
          const Reservation torn = ring.try_reserve(RecordKind::kBatch, 5000, 4096);
          std::memset(torn.data, 0xee, 100);
        } else if (!put(ring, 3000, i)) {
          ::_exit(1);
        }
      }
      const int fd = ring.fd();
      if (::write(pipe_ends[1], &fd, sizeof(fd)) != sizeof(fd)) ::_exit(1);
      for (;;) ::pause();
    }
    int fd = -1;
    REQUIRE(::read(pipe_ends[0], &fd, sizeof(fd)) == sizeof(fd));
    const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd);
    const int mine = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(mine >= 0);
    Consumer consumer(RingMemory::attach(mine));
    ::close(mine);
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    for (unsigned i = 0; i < 10; ++i) {
      const std::optional<RecordView> record = consumer.next(true);
      REQUIRE(record && (i % 4 == 3 ? record->torn : holds(*record, 3000, i)));
    }
    REQUIRE(!consumer.next(true));
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
  });
}

// ---- waiting

void waiting() {
  it("only the block policy waits", [] {
    for (const FullPolicy policy : {FullPolicy::kDrop, FullPolicy::kDegrade}) {
      Ring ring(config(kSmallData, 16, policy));
      REQUIRE(!ring.wait_for_room(64));
    }
  });
  it("a producer that waits goes on once the consumer releases", [] {
    RingConfig patient = config(kSmallData, 16, FullPolicy::kBlock);
    patient.block_timeout = std::chrono::seconds(60);
    Ring ring(patient);
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 16; ++i) REQUIRE(put(ring, 64, i));
    std::thread waiter([&] {
      REQUIRE(ring.wait_for_room(64));
      REQUIRE(put(ring, 64, 16));
    });
    (void)consumer.next(false);
    release_all(consumer);
    waiter.join();
  });
  it("after one timeout nobody waits until the consumer has moved", [] {
    Ring ring(config(kSmallData, 16, FullPolicy::kBlock));
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 16; ++i) REQUIRE(put(ring, 64, i));
    for (int i = 0; i < 50'000; ++i) {  // 1000 s if each call waited
      if (ring.wait_for_room(64)) REQUIRE(false);
    }
    (void)consumer.next(false);
    release_all(consumer);
    REQUIRE(ring.wait_for_room(64));
    REQUIRE(put(ring, 64, 16));
    REQUIRE(!ring.wait_for_room(64));  // waits again, once
  });
  it("closing ends a wait and takes no more records", [] {
    RingConfig patient = config(kSmallData, 16, FullPolicy::kBlock);
    patient.block_timeout = std::chrono::hours(1);
    Ring ring(patient);
    Consumer consumer(ring.memory());
    for (unsigned i = 0; i < 16; ++i) REQUIRE(put(ring, 64, i));
    std::thread waiter([&] { REQUIRE(!ring.wait_for_room(64)); });
    ring.set_closing();
    waiter.join();
    REQUIRE(consumer.closing());
    (void)consumer.next(false);
    release_all(consumer);
    REQUIRE(!put(ring, 64, 16));
  });
}

// ---- threads

/// Four producers and one consumer on a ring so small that it is nearly always full; every byte is checked.
/// ThreadSanitizer checks the memory orders here, because both sides use one mapping.
void crowd() {
  it("no record is lost, torn or reordered among four producers and a consumer", [] {
    constexpr unsigned kThreads = 4;
    constexpr std::uint64_t kEach = kSanitized ? 10'000 : 100'000;
    Ring ring(config(kSmallData, 16));
    const auto bytes_of = [](std::uint64_t n) { return 16 + (n * 7919) % (n % 50 == 0 ? 8000 : 400); };
    std::vector<std::thread> producers;
    for (unsigned p = 0; p < kThreads; ++p) {
      producers.emplace_back([&ring, &bytes_of, p] {
        for (std::uint64_t n = 0; n < kEach; ++n) {
          Reservation taken;
          while (!(taken = ring.try_reserve(RecordKind::kBatch, bytes_of(n), n % 7 == 0 ? 4096 : 64)))
            std::this_thread::yield();
          const std::uint64_t stamp[2] = {p, n};
          std::memset(taken.data, static_cast<int>((p + n) & 0xff), taken.bytes);
          std::memcpy(taken.data, stamp, sizeof(stamp));
          ring.commit(taken);
        }
      });
    }
    Consumer consumer(ring.memory());
    std::array<std::uint64_t, kThreads> expected{};
    std::uint64_t bad = 0;
    for (std::uint64_t ticket = 0; ticket < kThreads * kEach;) {
      const std::optional<RecordView> record = consumer.next(false);
      if (!record) {
        release_all(consumer);
        std::this_thread::yield();
        continue;
      }
      std::uint64_t stamp[2] = {};
      std::memcpy(stamp, record->data, sizeof(stamp));
      bool ok = !record->torn && record->ticket == ticket++ && stamp[0] < kThreads &&
                stamp[1] == expected[stamp[0] % kThreads]++ && record->bytes == bytes_of(stamp[1]);
      for (std::uint64_t i = sizeof(stamp); ok && i < record->bytes; ++i) {
        ok = record->data[i] == static_cast<std::byte>((stamp[0] + stamp[1]) & 0xff);
      }
      bad += ok ? 0 : 1;
      if (ticket % 5 == 0) release_all(consumer);
    }
    for (std::thread& producer : producers) producer.join();
    REQUIRE(bad == 0);
  });
}

}  // namespace

int main() {
  sizes();
  consumers();
  death();
  waiting();
  crowd();
  return tdcore::testing::result();
}
