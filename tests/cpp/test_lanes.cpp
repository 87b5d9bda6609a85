// Rings with lanes: their memory and life, records that a device commits, early records. (test_lane_order.cpp
// tests their order.)
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory_limits.hpp"
#include "check.hpp"
#include "lanes.hpp"
#include "ring/consumer/consumer.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "segment/segment.hpp"

namespace {

using namespace tdcore;
using namespace tdcore::testing;

constexpr std::uint64_t kGuard = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kAll = ~std::uint64_t{0};

std::uint64_t taken_bytes(int fd) {
  struct stat status{};
  REQUIRE(::fstat(fd, &status) == 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

std::uint64_t torn_of(const Ring& ring) {
  return ring.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors;
}

// ---- memory

void memory() {
  it("lanes are made with the ring, up to eight of them, and sizes that cannot be are refused", [] {
    const Ring ring(laned(8));
    REQUIRE(ring.lanes().size() == 8 && ring.fds().size() == 9 && ring.fds()[0] == ring.fd());
    REQUIRE(message_of<std::invalid_argument>([] { Ring more(laned(9)); }) ==
            "device_lanes must be from 0 to 8, got 9");
    RingConfig odd = laned(1);
    odd.device_lane_bytes = 100'000;
    REQUIRE(message_of<std::invalid_argument>([&] { Ring bad(odd); }).find("device lanes: data_bytes") == 0);
    odd = laned(1);
    odd.device_lane_slots = std::uint64_t{1} << 40;
    REQUIRE(message_of<std::invalid_argument>([&] { Ring bad(odd); }).find("device lanes: slots") == 0);
    REQUIRE(Ring(config()).lanes().empty());
  });
  it("a lane takes memory at its first use only, and no record before", [] {
    Ring ring(laned(1, 1024, 1 << 20));
    Ring& lane = *ring.lanes()[0];
    Consumer consumer(ring.memories());
    REQUIRE(!consumer.next(false));
    REQUIRE(taken_bytes(lane.fd()) <= 64 << 10);
    REQUIRE(!put(lane, 64, 1));
    std::string why;
    REQUIRE(lane.take_memory(&why) && why.empty() && lane.take_memory());
    REQUIRE(taken_bytes(lane.fd()) >= 1 << 20);
    REQUIRE(put(lane, 64, 1) && consumer.next(false));
    REQUIRE(ring.take_memory());  // long since
    const Mapping all = lane.mapping();
    REQUIRE(all.base != nullptr && all.bytes > (1 << 20) &&
            reinterpret_cast<std::uintptr_t>(all.base) % kPageBytes == 0);
  });
  it("a lane whose memory is refused says why, again and again, and the ring goes on", [] {
    RingConfig huge = laned(2);
    huge.device_lane_bytes = std::uint64_t{64} << 30;
    if (available_memory_bytes() > huge.device_lane_bytes) return;  // this machine has enough memory
    Ring ring(huge);
    Consumer consumer(ring.memories());
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&ring] {
        std::string why;
        REQUIRE(!ring.lanes()[0]->take_memory(&why));
        REQUIRE(why.find("make device_lane_bytes smaller") != std::string::npos);
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(!put(*ring.lanes()[0], 64, 1));
    REQUIRE(put(ring, 64, 7));
    const std::optional<RecordView> record = consumer.next(false);
    REQUIRE(record && record->lane == 0 && holds(*record, 64, 7));
  });
  it("the lanes of another ring, too few of them or in another order are refused", [] {
    Ring ring(laned(2));
    Ring other(laned(2));
    const auto refusal = [](std::vector<std::shared_ptr<RingMemory>> lanes) {
      return message_of<std::invalid_argument>([&] { Consumer consumer(std::move(lanes)); });
    };
    const auto mine = ring.memories();
    REQUIRE(refusal(mine).empty());
    REQUIRE(refusal({}).find("needs the descriptor") != std::string::npos);
    REQUIRE(refusal({mine[0]}).find("has 2 device lanes") != std::string::npos);
    REQUIRE(refusal({mine[0], mine[2], mine[1]}).find("not that lane") != std::string::npos);
    REQUIRE(refusal({mine[0], mine[1], other.memories()[2]}).find("not that lane") != std::string::npos);
    REQUIRE(refusal({mine[1], mine[1]}).find("has 0 device lanes") != std::string::npos);
  });
}

// ---- life

void life() {
  it("closing and close hold for all lanes, and a forked child finds everything off", [] {
    Ring ring(laned(2));
    take_all(ring);
    const int child = ::fork();
    if (child == 0) {
      const bool off = !ring.lanes()[0]->take_memory() && ring.lanes()[0]->mapping().base == nullptr &&
                       !put(*ring.lanes()[1], 64, 1) && ring.early_commits() == 0;
      ring.close();
      ::_exit(off ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    Ring& lane = *ring.lanes()[0];
    REQUIRE(put(lane, 64, 1));
    ring.set_closing();
    REQUIRE(!put(ring, 64, 1) && !put(lane, 64, 1) && !put(*ring.lanes()[1], 64, 1));
    const DeviceRecord late(lane, 64, 1, kGuard);
    REQUIRE(!late);
    const std::shared_ptr<Ring> kept = ring.lanes()[0];
    ring.close();
    REQUIRE(!kept->usable() && kept->mapping().base == nullptr && kept->fd() == -1 && ring.fds().empty());
  });
  it("pending records and the fill are those of all lanes, and of the fullest", [] {
    Ring ring(laned(2));
    take_all(ring);
    Consumer consumer(ring.memories());
    REQUIRE(put(ring, 64, 1) && put(*ring.lanes()[0], 64, 1));
    for (unsigned i = 0; i < 8; ++i) REQUIRE(put(*ring.lanes()[1], 64, i));
    REQUIRE(consumer.pending_records() == 10 && consumer.pending_bytes() == 640 && consumer.fill() == 0.5);
    REQUIRE(ring.progress().pending_records == 10 && ring.progress().pending_bytes == 640);
    while (consumer.next(false)) continue;
    release_all(consumer);
    REQUIRE(consumer.pending_records() == 0 && ring.progress().pending_records == 0 && consumer.fill() == 0);
    REQUIRE(consumer.released().ticket == 10);
  });
}

// ---- records that a device commits

void device_records() {
  it("a record that was handed over is read once its word is there, and holds up its own lane only", [] {
    Ring ring(laned(2));
    take_all(ring);
    Consumer consumer(ring.memories());
    const DeviceRecord first(*ring.lanes()[0], 640, 1, kGuard);
    const DeviceRecord second(*ring.lanes()[0], 640, 2, kGuard);
    second.finish();
    for (unsigned i = 0; i < 100; ++i) {
      REQUIRE(put(ring, 64, i) && put(*ring.lanes()[1], 64, i));
      REQUIRE(consumer.next(false) && consumer.next(false) && !consumer.next(false));
      release_all(consumer);
    }
    first.finish();
    for (unsigned i = 1; i <= 2; ++i) {
      const std::optional<RecordView> record = consumer.next(false);
      REQUIRE(record && record->lane == 1 && record->ticket == 199 + i && !record->torn);
    }
    REQUIRE(ring.early_commits() == 0);
  });
  it("close does not wait for a record that was handed over", [] {
    Ring ring(laned(1));
    take_all(ring);
    const DeviceRecord open(*ring.lanes()[0], 64, 1, kGuard);
    REQUIRE(static_cast<bool>(open));
    ring.close();
    REQUIRE(!ring.usable());
  });
  it("a batch committed before its guards is taken later and counted once", [] {
    for (const int order : {0, 1, 2}) {
      Ring ring(laned(1));
      take_all(ring);
      Consumer consumer(ring.memories());
      const DeviceRecord early(*ring.lanes()[0], 640, 5, kGuard);
      const DeviceRecord next(*ring.lanes()[0], 640, 6, kGuard + 1);
      early.write_word();
      next.finish();
      std::byte* const payload =
          early.data() + round_up(sizeof(BatchHeader) + sizeof(Entry) + kGuardBytes, 64);
      if (order == 1) std::memcpy(payload - kGuardBytes, &kGuard, sizeof(kGuard));
      if (order == 2) std::memcpy(payload + 640, &kGuard, sizeof(kGuard));
      for (int look = 0; look < 5; ++look) REQUIRE(!consumer.next(false));
      REQUIRE(ring.early_commits() == 1 && consumer.early_commits() == 1);
      early.write_values();
      REQUIRE(put(ring, 64, 1));
      const DrainedBatches drained = drain(consumer, kAll, 100, false);
      REQUIRE(drained.records == 2 && drained.torn == 1);  // the main ring's is not a batch
      REQUIRE(drained.rows.size() == 2 && drained.payload_bytes == 1280);
      REQUIRE(ring.early_commits() == 1);
      ring.close();
      REQUIRE(ring.early_commits() == 1);
    }
  });
  it("statistics that are committed before they are counted are early, too", [] {
    Ring ring(laned(1));
    take_all(ring);
    Consumer consumer(ring.memories());
    const DeviceRecord early(*ring.lanes()[0], 0, 5, kGuard);
    early.write_word();
    REQUIRE(!consumer.next(false) && ring.early_commits() == 1);
    early.write_values();
    const DrainedBatches drained = drain(consumer, kAll, 100, false);
    REQUIRE(drained.rows.size() == 1 && drained.rows[0].entry.stats.count == 12);
  });
  it("what is early when the trainer dies is torn", [] {
    Ring ring(laned(1));
    take_all(ring);
    Consumer consumer(ring.memories());
    const DeviceRecord early(*ring.lanes()[0], 640, 5, kGuard);
    early.write_word();
    const DeviceRecord whole(*ring.lanes()[0], 640, 6, kGuard);
    whole.finish();
    const DrainedBatches drained = drain(consumer, kAll, 100, true);
    REQUIRE(drained.torn == 1 && drained.rows.size() == 1 && drained.rows[0].step == 6);
    release(consumer, drained);
    REQUIRE(torn_of(ring) == 1 && consumer.pending_bytes() == 0);
  });
  it("guards that do not lie in the record make it torn, and are not followed", [] {
    for (const int fault : {0, 1, 2}) {
      Ring ring(laned(1));
      take_all(ring);
      Consumer consumer(ring.memories());
      DeviceRecord bad(*ring.lanes()[0], 640, 5, kGuard);
      BatchHeader& header = bad.header();
      if (fault == 0) header.payload_bytes += kGuardBytes;  // to the record's end
      if (fault == 1) header.payload_offset = sizeof(BatchHeader) + sizeof(Entry);
      if (fault == 2) header.payload_offset += 4;
      bad.rewrite_header();
      bad.finish();
      const DrainedBatches drained = drain(consumer, kAll, 100, false);
      REQUIRE(drained.torn == 1 && drained.rows.empty());
    }
  });
  it("payloads go into one segment from the lanes that they lie in, and guards do not", [] {
    Ring ring(laned(3, 64, 16 << 20));
    take_all(ring);
    Consumer consumer(ring.memories());
    for (std::uint32_t i = 0; i < 12; ++i) {
      const std::uint64_t bytes = i % 2 == 0 ? 640 : kDirectPayloadBytes;
      DeviceRecord(i % 4 == 0 ? ring : *ring.lanes()[i % 4 - 1], bytes, 100 + i, kGuard + i, i).finish();
    }
    DrainedBatches drained = drain(consumer, kAll, 100, false);
    REQUIRE(drained.rows.size() == 12 && drained.payload_bytes == 6 * (640 + kDirectPayloadBytes));
    const std::vector<std::string> names(12, "t");
    const Segment segment = plan_segment(drained.rows, drained.batches, consumer.data(), names);
    REQUIRE(segment.direct.size() == 6);
    std::string file;
    for (const SegmentPiece& piece : segment.pieces())
      file.append(reinterpret_cast<const char*>(piece.data), piece.bytes);
    REQUIRE(file.size() == segment.file_bytes);
    for (const IndexRow& row : drained.rows) {
      const char value = static_cast<char>(100 + row.entry.name);
      REQUIRE(file.substr(row.segment_offset, row.entry.payload_bytes) ==
              std::string(row.entry.payload_bytes, value));
    }
  });
}

}  // namespace

int main() {
  memory();
  life();
  device_records();
  return tdcore::testing::result();
}
