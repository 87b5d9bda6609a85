// lane_reader.hpp: reads the record at a place in one lane, a ring of bytes and its slots.
//
// look() only reads, and checks every value before it uses it. Threads: the consumer's.
//
// A batch whose values a device writes has BatchHeader::guard. The batch is *whole* in these cases:
//   with a payload: the first words of the kGuardBytes before the payload and of the kGuardBytes after it are
//     the guard, which the device writes around the payload, in the same copy or, if a kernel writes the
//     payload, after it;
//   without a payload: in each entry with statistics, the count is the number of elements.
//
// A batch that is committed but not whole is *early*: it is checked again later, and is torn if its producer
// is dead. By two facts no record should ever be early: the device makes its copy visible to the host before
// the word that it writes after the copy in the same stream (or after a fence of system scope), and the host
// has written header and entries before it enqueued either. The guards check this on the current machine.
// They detect a copy that is late as a whole or at an end, but not a copy that is late only in its middle.
// The words are loaded with acquire, like the commit word, so that the payload and the entries are not read
// before them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ring/control_page.hpp"
#include "ring/record.hpp"
#include "ring/ring_memory.hpp"

namespace tdcore {

/// One record that Consumer::next() returns. `data` is in a ring and stays valid until its release.
struct RecordView {
  const std::byte* data = nullptr;  // null if torn
  std::uint64_t bytes = 0;
  std::uint64_t ticket = 0;  // full count since the ring was created, over all lanes
  RecordKind kind = RecordKind::kAborted;
  std::uint32_t lane = 0;
  bool torn = false;
};

struct Found {
  enum class What {
    kNothing,  // not committed
    kEarly,    // committed, not whole; the view has its place
    kRecord,
    kTorn,
  };
  What what = What::kNothing;
  RecordView view;           // without ticket and lane
  Cursor after;              // the place after the record
  bool left_behind = false;  // torn because its producer died, not because it is impossible
};

/// The record at `at`. Without `producer_dead`, an uncommitted record may still be committed.
Found look(const RingMemory& lane, Cursor at, bool producer_dead) noexcept;

/// Like look() for a dead producer, for a record that an earlier consumer counted as torn. The record stays
/// torn, even if it was committed later.
Found look_at_torn(const RingMemory& lane, Cursor at) noexcept;

/// Whether a record is reserved at `at`. Accesses only the control page.
bool any_reserved(const RingMemory& lane, Cursor at) noexcept;

/// Whether header and entries are inside the record, and payload and guards after them.
bool header_is_sound(const BatchHeader& header, std::uint64_t record_bytes) noexcept;

/// The time of a record that is a marker (a batch without entries), or nothing.
bool is_marker(const RecordView& record, std::int64_t& time_ns) noexcept;

}  // namespace tdcore
