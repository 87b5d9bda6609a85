// One order of tickets over all lanes: turns, markers, restart at any moment, death, many threads.
// (model_lanes.cpp checks all interleavings of the protocol; stress_lanes.cpp kills processes.)
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "lanes.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/consumer/drained_batches.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kGuard = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kAll = ~std::uint64_t{0};

Ring& lane_of(Ring& ring, std::size_t lane) { return lane == 0 ? ring : *ring.lanes()[lane - 1]; }

bool torn_is(const Consumer& consumer, std::uint64_t count) {
  return consumer.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors == count;
}

/// A marker in any lane, like a marker of a device's capture.
void mark(Ring& lane, std::int64_t time_ns) {
  const Reservation room = lane.try_reserve(RecordKind::kBatch, sizeof(BatchHeader), kTensorAlignBytes);
  REQUIRE(static_cast<bool>(room));
  if (!room) return;
  const BatchHeader header = marker_header(0, time_ns);
  std::memcpy(room.data, &header, sizeof(header));
  lane.commit(room);
}

/// The lanes of the next records, in the order of their tickets: "0121"; 'm' after a marker.
std::string taken(Consumer& consumer, std::size_t most = 1000) {
  std::string lanes;
  for (std::size_t i = 0; i < most; ++i) {
    const std::optional<RecordView> record = consumer.next(false);
    if (!record) break;
    std::int64_t time_ns = 0;
    lanes += static_cast<char>('0' + record->lane);
    if (is_marker(*record, time_ns)) lanes += 'm';
  }
  return lanes;
}

// ---- turns

void turns() {
  it("full lanes are served in turn", [] {
    Ring ring(laned(2));
    take_all(ring);
    Consumer consumer(ring.memories());
    for (unsigned i = 0; i < 4; ++i) {
      for (std::size_t lane = 0; lane < 3; ++lane) REQUIRE(put(lane_of(ring, lane), 64, i));
    }
    REQUIRE(taken(consumer) == "012012012012");
  });
  it("a drain stops at its limits, and the next one goes on there", [] {
    Ring ring(laned(2, 64));
    take_all(ring);
    Consumer consumer(ring.memories());
    std::vector<DrainedBatches> drains;
    for (std::uint32_t i = 0; i < 30; ++i) DeviceRecord(lane_of(ring, i % 3), 640, i, kGuard, i).finish();
    std::uint64_t ticket = 0;
    for (std::uint64_t size = 1; ticket < 30; size = size % 5 + 1) {
      drains.push_back(drain(consumer, 2'100 * size, 3 * size, false));
      REQUIRE(drains.back().first.ticket == ticket && drains.back().end.ticket > ticket);
      for (const IndexRow& row : drains.back().rows)
        REQUIRE(row.ticket == ticket++ && row.step == row.entry.name);
    }
    for (const DrainedBatches& each : drains) release(consumer, each);
    REQUIRE(consumer.pending_records() == 0 && consumer.released().ticket == 30);
  });
}

// ---- markers

void markers() {
  it("a marker comes behind all that is committed in the other lanes", [] {
    for (std::size_t where = 0; where < 3; ++where) {
      Ring ring(laned(2));
      take_all(ring);
      Consumer consumer(ring.memories());
      mark(lane_of(ring, where), 1);
      for (unsigned i = 0; i < 3; ++i) {
        for (std::size_t lane = 0; lane < 3; ++lane) {
          if (lane != where) REQUIRE(put(lane_of(ring, lane), 64, i));
        }
      }
      const std::string order = taken(consumer);
      REQUIRE(order.size() == 8 && order[6] == static_cast<char>('0' + where) && order[7] == 'm');
    }
  });
  it("a marker waits neither for what the device has not done nor for what comes later", [] {
    Ring ring(laned(2));
    take_all(ring);
    Consumer consumer(ring.memories());
    const DeviceRecord open(*ring.lanes()[0], 64, 1, kGuard);
    REQUIRE(put(*ring.lanes()[1], 64, 1) && put(*ring.lanes()[1], 64, 2));
    REQUIRE(ring.mark_step_end(0));
    REQUIRE(taken(consumer, 1) == "2");  // has seen the marker or not
    std::string order;
    for (unsigned i = 0; i < 8 && order.find('m') == std::string::npos; ++i) {
      REQUIRE(put(*ring.lanes()[1], 64, i));  // as fast as they are taken
      order += taken(consumer, 1);
    }
    REQUIRE(order.find('m') != std::string::npos && order.size() <= 6);
    open.finish();
    REQUIRE(taken(consumer).find('1') != std::string::npos);
  });
  it("of markers that wait in several lanes the oldest comes first, then what is behind it", [] {
    for (const bool swapped : {false, true}) {
      Ring ring(laned(2));
      take_all(ring);
      Consumer consumer(ring.memories());
      mark(*ring.lanes()[0], swapped ? 2 : 1);
      REQUIRE(put(*ring.lanes()[0], 64, 1));
      mark(*ring.lanes()[1], swapped ? 1 : 2);
      REQUIRE(put(*ring.lanes()[1], 64, 1));
      REQUIRE(taken(consumer) == (swapped ? "2m21m1" : "1m12m2"));
    }
  });
  it("the main ring's markers carry their time, and only where there are lanes", [] {
    for (const std::uint32_t lanes : {0U, 1U}) {
      Ring ring(laned(lanes));
      Consumer consumer(ring.memories());
      REQUIRE(ring.mark_step_end(0));
      std::int64_t time_ns = -1;
      REQUIRE(is_marker(*consumer.next(false), time_ns) && (time_ns > 0) == (lanes > 0));
    }
  });
  it("whatever was committed before a marker, all before it in its lane too, has a smaller ticket", [] {
    std::mt19937_64 random{7};
    for (int round = 0; round < 300; ++round) {
      Ring ring(laned(2));
      take_all(ring);
      auto consumer = std::make_unique<Consumer>(ring.memories());
      std::array<std::deque<std::pair<DeviceRecord, bool>>, 3> open;  // reserved: is it committed?
      std::array<std::uint64_t, 3> read{};
      std::array<std::uint64_t, 3> reserved{};
      std::array<std::uint64_t, 3> needed{};  // for the waiting marker
      bool waits = false;
      const auto whole_prefix = [&](std::size_t lane) {
        std::uint64_t whole = reserved[lane] - open[lane].size();
        for (const auto& [record, done] : open[lane]) {
          if (!done) break;
          ++whole;
        }
        return whole;
      };
      for (int step = 0; step < 200; ++step) {
        const std::size_t lane = random() % 3;
        const std::uint64_t kind = random() % 10;
        if (kind < 3) {
          const DeviceRecord record(lane_of(ring, lane), 64, 1, kGuard);
          if (!record) continue;
          open[lane].emplace_back(record, false);
          ++reserved[lane];
        } else if (kind < 6 && !open[lane].empty()) {
          auto& [record, done] = open[lane][random() % open[lane].size()];
          if (!done) record.finish();
          done = true;
          while (!open[lane].empty() && open[lane].front().second) open[lane].pop_front();
        } else if (kind == 6 && !waits && open[0].empty()) {
          if (!ring.mark_step_end(0)) continue;
          ++reserved[0];
          for (std::size_t i = 0; i < 3; ++i) needed[i] = whole_prefix(i);
          waits = true;
        } else if (kind == 7) {
          release_all(*consumer);
          if (random() % 2 == 0) consumer = std::make_unique<Consumer>(ring.memories());
        } else if (const std::optional<RecordView> record = consumer->next(false)) {
          std::int64_t time_ns = 0;
          ++read[record->lane];
          if (!is_marker(*record, time_ns)) continue;
          waits = false;
          for (std::size_t i = 0; i < 3; ++i) REQUIRE(read[i] >= needed[i]);
        }
      }
    }
  });
}

// ---- restart

void restarts() {
  it("a new consumer reads the same records under the same tickets, whenever the old one was dropped", [] {
    std::mt19937_64 random{11};
    for (int round = 0; round < 100; ++round) {
      Ring ring(laned(3));
      take_all(ring);
      auto consumer = std::make_unique<Consumer>(ring.memories());
      std::vector<std::pair<std::uint32_t, std::int64_t>> seen;  // by ticket: lane and step
      std::array<std::int64_t, 4> next{};  // by lane: the step that a new ticket must have
      std::array<unsigned, 4> made{};
      for (int step = 0; step < 600; ++step) {
        const std::size_t lane = random() % 4;
        const std::uint64_t kind = random() % 8;
        if (kind < 4) {
          const DeviceRecord record(lane_of(ring, lane), random() % 2 == 0 ? 0 : 64, made[lane], kGuard);
          if (!record) continue;
          record.finish();
          ++made[lane];
        } else if (kind == 4 && random() % 3 == 0) {
          consumer = std::make_unique<Consumer>(ring.memories());
        } else if (kind == 5) {
          release_all(*consumer);
        } else if (const std::optional<RecordView> record = consumer->next(false)) {
          BatchHeader header{};
          std::memcpy(&header, record->data, sizeof(header));
          const std::pair<std::uint32_t, std::int64_t> what{record->lane, header.step};
          if (record->ticket == seen.size()) {
            REQUIRE(header.step == next[record->lane]++);
            seen.push_back(what);
          } else {
            REQUIRE(record->ticket < seen.size() && seen[record->ticket] == what);
          }
        }
      }
      REQUIRE(seen.size() > 50);
    }
  });
  it("a release that was cut short after its one step is ended by the next consumer", [] {
    for (std::size_t stored = 0; stored <= 3; ++stored) {
      Ring ring(laned(2));
      take_all(ring);
      const auto memories = ring.memories();
      for (std::size_t lane = 0; lane < 3; ++lane) REQUIRE(put(lane_of(ring, lane), 64, 1));
      {
        Consumer first(memories);
        REQUIRE(taken(first) == "012");
        first.release(first.released(), first.mark(), 2);
      }
      for (std::size_t lane = stored; lane < 3; ++lane) memories[lane]->control().head.store(0);
      memories[0]->control().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.store(0);
      Consumer second(memories);
      REQUIRE(second.mark().ticket == 3 && second.pending_records() == 0 && !second.next(false));
      REQUIRE(second.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors == 2);
    }
  });
  it("a note of a release that was not made changes nothing", [] {
    for (const std::uint64_t note : {std::uint64_t{4}, kAll}) {
      Ring ring(laned(1));
      take_all(ring);
      const auto memories = ring.memories();
      for (unsigned i = 0; i < 2; ++i) REQUIRE(put(ring, 64, i) && put(*ring.lanes()[0], 64, i));
      {
        Consumer first(memories);
        REQUIRE(taken(first, 2) == "01");
        release_all(first);
      }
      ControlPage& control = memories[0]->control();
      control.note_heads[1].store(Cursor{2, 2}.pack());
      control.note_torn.store(7);
      control.note_ticket.store(note);
      Consumer second(memories);
      REQUIRE(taken(second) == "01" && second.mark().ticket == 4);
      REQUIRE(torn_is(second, 0));
    }
  });
  it("a consumer that another one has replaced follows its order and cannot give back", [] {
    Ring ring(laned(1));
    take_all(ring);
    Consumer stale(ring.memories());
    REQUIRE(put(*ring.lanes()[0], 64, 1));
    Consumer fresh(ring.memories());
    REQUIRE(taken(fresh) == "1");
    REQUIRE(put(ring, 64, 1));
    REQUIRE(taken(stale) == "10" && taken(fresh) == "0");
    release_all(fresh);
    REQUIRE(message_of<std::logic_error>([&] { release_all(stale); }).find("another consumer") !=
            std::string::npos);
  });
}

// ---- death

void death() {
  it("uncommitted records of a dead trainer are torn in every lane, committed ones kept", [] {
    Ring ring(laned(2));
    take_all(ring);
    Consumer consumer(ring.memories());
    std::vector<DeviceRecord> records;
    for (unsigned i = 0; i < 9; ++i) {
      records.emplace_back(lane_of(ring, i % 3), 64, i, kGuard);
      if (i % 2 == 0) records.back().finish();
    }
    const DrainedBatches drained = drain(consumer, kAll, 100, true);
    REQUIRE(drained.torn == 4 && drained.rows.size() == 5 && drained.end.ticket == 9);
    for (const IndexRow& row : drained.rows) REQUIRE(row.step % 2 == 0);
    release(consumer, drained);
    REQUIRE(torn_is(consumer, 4) && consumer.pending_bytes() == 0);
    for (std::size_t lane = 0; lane < 3; ++lane) REQUIRE(!put(lane_of(ring, lane), 64, 1));
  });
  it("a record that was found torn stays so, however late the device commits it", [] {
    Ring ring(laned(1));
    take_all(ring);
    const DeviceRecord late(*ring.lanes()[0], 64, 1, kGuard);
    const DeviceRecord good(*ring.lanes()[0], 64, 2, kGuard);
    good.finish();
    {
      Consumer first(ring.memories());
      REQUIRE(first.next(true)->torn && !first.next(true)->torn);
    }
    for (int round = 0; round < 2; ++round) {  // before and after the late commit
      Consumer next(ring.memories());
      const std::optional<RecordView> torn = next.next(false);  // has not detected the death yet
      REQUIRE(torn && torn->torn && torn->ticket == 0 && torn->lane == 1);
      const std::optional<RecordView> kept = next.next(false);
      REQUIRE(kept && !kept->torn && kept->ticket == 1);
      late.finish();
    }
    Consumer last(ring.memories());
    const DrainedBatches drained = drain(last, kAll, 100, true);
    release(last, drained);
    REQUIRE(drained.torn == 1 && torn_is(last, 1) && last.pending_bytes() == 0);
  });
}

// ---- threads

/// Host threads, "device" threads that commit out of order, and a consumer that is dropped at times.
void crowd() {
  it("no record is lost, repeated, torn or reordered among lanes, devices and a consumer", [] {
    constexpr std::size_t kCrowd = 3;
    constexpr unsigned kEach = kSanitized ? 3'000 : 20'000;
    Ring ring(laned(kCrowd - 1, 256));
    take_all(ring);
    std::vector<std::thread> threads;
    for (std::size_t lane = 0; lane < kCrowd; ++lane) {
      threads.emplace_back([&ring, lane] {
        std::deque<DeviceRecord> open;
        std::mt19937_64 random{lane};
        for (unsigned n = 0; n < kEach || !open.empty();) {
          if (n < kEach && open.size() < 5) {
            const DeviceRecord record(lane_of(ring, lane), 64 * (random() % 20), n, kGuard + n);
            if (record) {
              open.push_back(record);
              ++n;
            } else {
              std::this_thread::yield();
            }
          }
          if (open.empty() || random() % 2 == 0) continue;
          const auto which = static_cast<std::ptrdiff_t>(random() % open.size());
          open[static_cast<std::size_t>(which)].finish();
          open.erase(open.begin() + which);
        }
      });
    }
    auto consumer = std::make_unique<Consumer>(ring.memories());
    std::array<std::int64_t, kCrowd> expected{};
    std::uint64_t bad = 0;
    std::uint64_t new_from = 0;
    unsigned turn = 0;
    while (new_from < kCrowd * kEach) {
      const DrainedBatches drained = drain(*consumer, kAll, 100, false);
      bad += drained.torn;
      for (const IndexRow& row : drained.rows) {
        if (row.ticket < new_from) continue;  // already read by a dropped consumer
        const Batch& batch = drained.batches[static_cast<std::size_t>(&row - drained.rows.data())];
        bad += row.ticket != new_from++ || row.step != expected[batch.lane]++ ? 1 : 0;
        for (std::uint64_t i = 0; i < row.entry.payload_bytes; ++i)
          bad += consumer->data()[batch.lane][row.location + i] != static_cast<std::byte>(row.step & 0xff);
      }
      if (++turn % 11 == 0) {
        consumer = std::make_unique<Consumer>(ring.memories());
        continue;
      }
      release(*consumer, drained);
      if (drained.rows.empty()) std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
    release(*consumer,
            drain(*consumer, kAll, 100, false));  // records that the last dropped consumer had read
    REQUIRE(bad == 0 && ring.early_commits() == 0 && ring.progress().pending_records == 0);
  });
}

}  // namespace

int main() {
  turns();
  markers();
  restarts();
  death();
  crowd();
  return tdcore::testing::result();
}
