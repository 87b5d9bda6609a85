// Records that a drain accepts and rejects, the layout of their payloads in a file, and the write of the
// file. (tests/test_ring.py opens the files with the safetensors library.)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "base/crc32c.hpp"
#include "check.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "ring/ring.hpp"
#include "segment/file_writer.hpp"
#include "segment/segment.hpp"

namespace {

using namespace tdcore;
using tdcore::testing::it;
using tdcore::testing::message_of;

RingConfig config(std::uint64_t data_bytes = std::uint64_t{8} << 20) {
  RingConfig result;
  result.data_bytes = data_bytes;
  result.slots = 64;
  result.names_bytes = 4096;
  result.policy = FullPolicy::kDrop;
  return result;
}

/// A valid entry of a 1-d F32 tensor with `elements` at `offset` of the payload.
Entry floats(std::uint32_t name, std::uint64_t elements, std::uint64_t offset) {
  Entry entry{};
  entry.payload_offset = offset;
  entry.payload_bytes = elements * 4;
  entry.elements = elements;
  entry.shape[0] = static_cast<std::int64_t>(elements);
  entry.name = name;
  entry.parts = 1;
  entry.dtype = Dtype::kF32;
  entry.ndim = 1;
  return entry;
}

/// An entry with only statistics.
Entry without_payload() {
  Entry entry = floats(0, 100, kNoPayload);
  entry.payload_bytes = 0;
  entry.has_stats = 1;
  return entry;
}

struct BatchToPut {
  std::vector<Entry> entries;
  std::uint64_t payload_bytes = 0;  // padded
  std::int64_t step = 7;
  std::function<void(BatchHeader&, std::byte* record)> spoil = {};
};

/// Commits the batch. Its payload bytes increase from `seed`.
void put(Ring& ring, const BatchToPut& batch, unsigned seed = 1) {
  const std::uint64_t entries_end = sizeof(BatchHeader) + batch.entries.size() * sizeof(Entry);
  const std::uint64_t align = batch.payload_bytes >= kDirectPayloadBytes ? kPageBytes : kTensorAlignBytes;
  BatchHeader header{};
  header.magic = kBatchMagic;
  header.entries = static_cast<std::uint32_t>(batch.entries.size());
  header.entry_bytes = sizeof(Entry);
  header.mode = 2;
  header.step = batch.step;
  header.mode_step = 3;
  header.time_ns = 99;
  header.payload_bytes = batch.payload_bytes;
  header.payload_offset = batch.payload_bytes == 0 ? 0 : round_up(entries_end, align);
  const std::uint64_t total =
      batch.payload_bytes == 0 ? entries_end : header.payload_offset + batch.payload_bytes;
  const Reservation room = ring.try_reserve(RecordKind::kBatch, total, align);
  REQUIRE(static_cast<bool>(room));
  if (!room) return;
  std::memset(room.data, 0xee, room.bytes);
  for (std::size_t i = 0; i < batch.entries.size(); ++i) {
    std::memcpy(room.data + sizeof(header) + i * sizeof(Entry), &batch.entries[i], sizeof(Entry));
  }
  for (std::uint64_t i = 0; i < batch.payload_bytes; ++i) {
    room.data[header.payload_offset + i] = static_cast<std::byte>((seed + i * 7) & 0xff);
  }
  if (batch.spoil) batch.spoil(header, room.data);
  std::memcpy(room.data, &header, sizeof(header));
  ring.commit(room);
}

std::string joined(const std::vector<SegmentPiece>& pieces) {
  std::string all;
  for (const SegmentPiece& piece : pieces) all.append(reinterpret_cast<const char*>(piece.data), piece.bytes);
  return all;
}

std::string json_of(const std::string& file) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, file.data(), sizeof(bytes));
  return file.substr(sizeof(bytes), bytes);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- drain

void draining() {
  it("rows carry their entry, their batch's moment, and the ticket", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    put(ring, {.entries = {floats(1, 4, 0), without_payload()}, .payload_bytes = 64});
    REQUIRE(ring.put_document("collections.json", "{}"));
    put(ring, {.entries = {floats(2, 1, 0)}, .payload_bytes = 64, .step = 8});
    const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
    REQUIRE(drained.records == 3 && drained.torn == 0 && drained.rows.size() == 3 &&
            drained.payload_bytes == 20);
    const IndexRow& first = drained.rows.at(0);
    REQUIRE(first.step == 7 && first.mode == 2 && first.mode_step == 3 && first.time_ns == 99 &&
            first.ticket == 0);
    REQUIRE(first.entry.name == 1 && first.location != kNoPayload);
    REQUIRE(drained.rows.at(1).location == kNoPayload && drained.rows.at(1).segment_offset == kNoPayload);
    REQUIRE(drained.rows.at(2).ticket == 2 && drained.rows.at(2).step == 8);
    REQUIRE(drained.documents.at(0).first == "collections.json" && drained.documents.at(0).second == "{}");
    release(consumer, drained);
    REQUIRE(consumer.pending_records() == 0);
  });
  it("limits are kept, but one record is always taken", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    for (int i = 0; i < 5; ++i) put(ring, {.entries = {floats(1, 4, 0)}, .payload_bytes = 64});
    REQUIRE(drain(consumer, 1, 100, false).records == 1);
    REQUIRE(drain(consumer, ~std::uint64_t{0}, 0, false).records == 1);
    REQUIRE(drain(consumer, ~std::uint64_t{0}, 2, false).records == 2);
    const DrainedBatches last = drain(consumer, ~std::uint64_t{0}, 100, false);
    REQUIRE(last.records == 1 && last.first.ticket == 4 && last.end.ticket == 5);
    REQUIRE(drain(consumer, 1, 1, false).records == 0);
  });
  it("a batch that cannot be true is torn, counted once, and nothing of it is kept", [] {
    using Spoil = std::function<void(BatchHeader&, Entry&)>;
    const std::vector<Spoil> cases = {
        [](BatchHeader& header, Entry&) { header.magic = 1; },
        [](BatchHeader& header, Entry&) { header.entry_bytes = 8; },
        [](BatchHeader& header, Entry&) { header.entries = 1000; },
        [](BatchHeader& header, Entry&) { header.entries = ~std::uint32_t{0}; },
        [](BatchHeader& header, Entry&) { header.payload_offset = 64; },
        [](BatchHeader& header, Entry&) { header.payload_offset = ~std::uint64_t{0}; },
        [](BatchHeader& header, Entry&) { header.payload_bytes = ~std::uint64_t{0}; },
        [](BatchHeader&, Entry& entry) { entry.payload_offset = 4096; },
        [](BatchHeader&, Entry& entry) { entry.payload_bytes = ~std::uint64_t{0}; },
        [](BatchHeader&, Entry& entry) { entry.payload_bytes = 8; },
        [](BatchHeader&, Entry& entry) { entry.elements = ~std::uint64_t{0}; },
        [](BatchHeader&, Entry& entry) { entry.shape[0] = -1; },
        [](BatchHeader&, Entry& entry) { entry.ndim = 17; },
        [](BatchHeader&, Entry& entry) { entry.dtype = Dtype::kCount; },
        [](BatchHeader&, Entry& entry) { entry.dtype = Dtype::kUnknown; },
        [](BatchHeader&, Entry& entry) { entry.status = static_cast<EntryStatus>(9); },
        [](BatchHeader&, Entry& entry) { entry.reason = DropReason::kCount; },
        [](BatchHeader&, Entry& entry) {
          entry.status = EntryStatus::kAbsent, entry.absent = AbsentReason::kCount;
        },
        [](BatchHeader&, Entry& entry) { entry.parts = 0; },
        [](BatchHeader&, Entry& entry) { entry.parts = 2, entry.part = 2; },
    };
    for (const Spoil& spoil : cases) {
      Ring ring(config());
      Consumer consumer(ring.memory());
      put(ring, {.entries = {floats(1, 4, 0)}, .payload_bytes = 64});
      put(ring, {.entries = {floats(1, 4, 0), floats(2, 4, 64)},
                 .payload_bytes = 128,
                 .spoil = [&](BatchHeader& header, std::byte* record) {
                   Entry entry{};
                   std::memcpy(&entry, record + sizeof(BatchHeader) + sizeof(Entry), sizeof(Entry));
                   spoil(header, entry);
                   std::memcpy(record + sizeof(BatchHeader) + sizeof(Entry), &entry, sizeof(Entry));
                 }});
      put(ring, {.entries = {floats(3, 4, 0)}, .payload_bytes = 64});
      const DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
      REQUIRE(drained.records == 2 && drained.torn == 1 && drained.rows.size() == 2 &&
              drained.payload_bytes == 32);
      REQUIRE(drained.rows.back().entry.name == 3);
      release(consumer, drained);
      REQUIRE(consumer.counters().drops[static_cast<std::size_t>(DropReason::kTorn)].tensors == 1);
    }
  });
  it("payloads of one batch that overlap are torn", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    put(ring, {.entries = {floats(1, 32, 0), floats(2, 4, 64)}, .payload_bytes = 128});
    REQUIRE(drain(consumer, ~std::uint64_t{0}, 100, false).torn == 1);
  });
  it("documents with an impossible key and records of an unknown kind are torn", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    for (const RecordKind kind :
         {RecordKind::kDocument, RecordKind::kDocument, static_cast<RecordKind>(77)}) {
      const Reservation room = ring.try_reserve(kind, kind == RecordKind::kDocument ? 3 : 64, 64);
      std::memset(room.data, 0xff, room.bytes);
      ring.commit(room);
    }
    REQUIRE(drain(consumer, ~std::uint64_t{0}, 100, false).torn == 3);
  });
  it("aborted records are neither kept nor torn", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    ring.abort(ring.try_reserve(RecordKind::kBatch, 64, 64));
    const DrainedBatches drained = drain(consumer, 1, 1, false);
    REQUIRE(drained.records == 0 && drained.torn == 0 && drained.end.ticket == 1);
  });
}

// ---- plan

void planning() {
  it("every payload lies where its row says, page-aligned ones in the ring itself", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    constexpr std::uint64_t kLarge = 512 << 10;
    put(ring, {.entries = {floats(0, 3, 0), without_payload(), floats(1, 5, 64)}, .payload_bytes = 128}, 1);
    put(ring, {.entries = {floats(2, 1000, 0), floats(3, 100'000, 4032)}, .payload_bytes = kLarge}, 2);
    put(ring, {.entries = {floats(0, 16, 0)}, .payload_bytes = 64, .step = 8}, 3);
    DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
    const std::vector<std::string> names = {"a", "b\"\\\n", "c", "d\xc3\xbc"};
    const Segment segment = plan_segment(drained.rows, drained.batches, consumer.data(), names);
    const std::vector<SegmentPiece> pieces = segment.pieces();
    const std::string file = joined(pieces);
    REQUIRE(file.size() == segment.file_bytes && file.size() % kPageBytes == 0);
    REQUIRE(segment.direct.size() == 1 && segment.direct[0].bytes == kLarge);
    const std::byte* const ring_data = consumer.memory()->data();
    REQUIRE(segment.direct[0].data >= ring_data &&
            segment.direct[0].data < ring_data + consumer.data_bytes());
    for (const SegmentPiece& piece : pieces) {
      REQUIRE(reinterpret_cast<std::uintptr_t>(piece.data) % kPageBytes == 0 &&
              piece.bytes % kPageBytes == 0);
    }
    for (const IndexRow& row : drained.rows) {
      if (row.location == kNoPayload) {
        REQUIRE(row.segment_offset == kNoPayload && row.crc32c == 0);
        continue;
      }
      REQUIRE(row.segment_offset % kTensorAlignBytes == 0);
      REQUIRE(std::memcmp(file.data() + row.segment_offset, ring_data + row.location,
                          row.entry.payload_bytes) == 0);
      REQUIRE(row.crc32c == crc32c(ring_data + row.location, row.entry.payload_bytes));
    }
    const std::string json = json_of(file);
    REQUIRE((sizeof(std::uint64_t) + json.size()) % kPageBytes == 0);
    REQUIRE(contains(json, R"("a@7":{"dtype":"F32","shape":[3],"data_offsets":[)"));
    REQUIRE(contains(json, R"("a@8":{)"));
    REQUIRE(contains(json, R"("b\"\\\u000a@7":{)"));
    REQUIRE(contains(json, "\"d\xc3\xbc@7\":{"));
    REQUIRE(contains(json, R"("__pad__0":{"dtype":"U8")"));
  });
  it("keys tell calls, parts and repetitions apart, and unknown ids have a name", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    Entry call = floats(0, 1, 128);
    call.call = 2;
    Entry part = floats(0, 1, 192);
    part.parts = 3;
    part.part = 1;
    part.shape[0] = 100;
    Entry pairs = floats(0, 1, 256);
    pairs.dtype = Dtype::kC128;
    pairs.payload_bytes = 16;
    pairs.call = 9;
    put(ring, {.entries = {floats(0, 1, 0), floats(0, 1, 64), call, part, pairs, floats(5, 1, 320)},
               .payload_bytes = 384,
               .step = -1});
    put(ring, {.entries = {floats(0, 1, 0), floats(1, 1, 64)}, .payload_bytes = 128, .step = -1});
    DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
    const std::vector<std::string> names = {"w", "w@-1~3"};
    const std::string json =
        json_of(joined(plan_segment(drained.rows, drained.batches, consumer.data(), names).pieces()));
    for (const char* key :
         {R"("w@-1":)", R"("w@-1~2":)", R"("w@-1~3":)", R"("w@-1:2":)", R"("?5@-1":)", R"("w@-1~3@-1":)"}) {
      REQUIRE(contains(json, key));
    }
    REQUIRE(contains(json, R"("w@-1+1":{"dtype":"F32","shape":[1],)"));
    REQUIRE(contains(json, R"("w@-1:9":{"dtype":"F64","shape":[1,2],)"));
  });
  it("a drain without payload makes no file", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    put(ring, {.entries = {without_payload()}});
    DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
    const Segment segment = plan_segment(drained.rows, drained.batches, consumer.data(), {});
    REQUIRE(drained.rows.size() == 1 && segment.file_bytes == 0 && segment.pieces().empty());
  });
  it("tensors without elements have a place and no bytes", [] {
    Ring ring(config());
    Consumer consumer(ring.memory());
    put(ring, {.entries = {floats(0, 0, 0)}});
    DrainedBatches drained = drain(consumer, ~std::uint64_t{0}, 100, false);
    const std::vector<std::string> names = {"empty"};
    const Segment segment = plan_segment(drained.rows, drained.batches, consumer.data(), names);
    REQUIRE(segment.file_bytes == kPageBytes && drained.rows.at(0).segment_offset == kPageBytes);
    REQUIRE(contains(json_of(joined(segment.pieces())),
                     R"("empty@7":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})"));
  });
}

// ---- write

class Folder {
 public:
  Folder() {
    const char* const base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/tdcore-test-XXXXXX";
    REQUIRE(::mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() {
    ::unlink(file().c_str());
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file() const { return path_ + "/file"; }

 private:
  std::string path_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void writing() {
  it("the file holds the pieces, however they lie and however long they are", [] {
    PageBuffer memory(std::uint64_t{4} << 20);
    for (std::uint64_t i = 0; i < memory.size(); ++i)
      memory.data()[i] = static_cast<std::byte>((i * 31 + i / 4096) & 0xff);
    const std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> layouts = {
        {},
        {{0, 0}},
        {{0, 4096}},
        {{0, 1}},
        {{1, 8192}},
        {{0, std::uint64_t{4} << 20}},
        {{3, (std::uint64_t{3} << 20) + 5}},
        {{4096, 8192}, {1, 4095}, {8192, 12288}, {0, 100}},
        {{4096, 8192}, {1, 10}, {8192, 12288}, {4096, 4100}, {0, 0}, {0, 100'000}},
        {{0, 100}, {0, 3996}, {4096, std::uint64_t{1} << 20}, {7, 1}},
    };
    for (const auto& layout : layouts) {
      for (const bool direct : {true, false}) {
        const Folder folder;
        std::vector<SegmentPiece> pieces;
        for (const auto& [offset, bytes] : layout) pieces.push_back({memory.data() + offset, bytes});
        (void)write_file(folder.file(), pieces, direct, direct);
        REQUIRE(contents(folder.file()) == joined(pieces));
      }
    }
  });
  it("more pieces than one system call takes are written", [] {
    PageBuffer memory(8192);
    std::memset(memory.data(), 'x', memory.size());
    for (const std::uint64_t bytes : {std::uint64_t{4096}, std::uint64_t{3}}) {
      const Folder folder;
      const std::vector<SegmentPiece> pieces(3000, SegmentPiece{memory.data(), bytes});
      (void)write_file(folder.file(), pieces, true, false);
      REQUIRE(contents(folder.file()) == std::string(3000 * bytes, 'x'));
    }
  });
  it("an existing file is refused and left as it is", [] {
    const Folder folder;
    const std::vector<SegmentPiece> pieces{{reinterpret_cast<const std::byte*>("abc"), 3}};
    (void)write_file(folder.file(), pieces, true, false);
    try {
      (void)write_file(folder.file(), {}, true, false);
      REQUIRE(false);
    } catch (const std::system_error& error) {
      REQUIRE(error.code().value() == EEXIST && contains(error.what(), folder.file()));
    }
    REQUIRE(contents(folder.file()) == "abc");
  });
  it("an error leaves no file", [] {
    const Folder folder;
    const std::vector<SegmentPiece> pieces{{nullptr, std::uint64_t{1} << 16}};  // EFAULT in the middle
    REQUIRE(!message_of<std::system_error>([&] {
               (void)write_file(folder.file(), pieces, false, false);
             }).empty());
    REQUIRE(::access(folder.file().c_str(), F_OK) != 0);
    REQUIRE(message_of<std::system_error>([] { (void)write_file("/nowhere/at/all", {}, true, true); }) != "");
  });
}

}  // namespace

int main() {
  draining();
  planning();
  writing();
  return tdcore::testing::result();
}
