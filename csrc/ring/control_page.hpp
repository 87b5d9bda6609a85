// control_page.hpp: the shared memory of one ring, byte for byte, and the packed cursor word.
//
// The parts of the memfd. Each part starts on a new page:
//
//     ControlPage | names | order | step times | slots | data
//
// The file is sparse: `names` and `data` have room for far more than most runs need. Their memory is
// allocated when names are added and when the ring grows (ring_memory.hpp, ring.hpp).
//
// A trainer with accelerators has a separate ring for each of them, a *lane*, in a separate memfd of the same
// form. `order` is empty except in the main ring of such a trainer; lane_order.hpp describes its contents.
// `step times` is empty in a lane; step_times.hpp describes it.
// Both processes map the memfd and use the layout of this header. layout_hash() covers every size that
// matters, so that a reader that was built from other sources is rejected when it attaches. Threads: the
// comment of each member names its writer. Only plain data and address-free atomics: no pointers, no virtual
// functions, no locks. All-zero bytes, the contents of a new memfd, are a valid start state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ring/record.hpp"
#include "ring/step_times.hpp"

namespace tdcore {

inline constexpr std::uint64_t kRingMagic = 0x31474E4952434454;  // "TDCRING1"
inline constexpr std::uint32_t kRingVersion = 6;
// Two cache lines, because x86 fetches lines in pairs, and some ARM lines are this long.
inline constexpr std::size_t kLineBytes = 128;
inline constexpr std::uint64_t kUnitBytes = 64;  // unit of positions in the data ring
inline constexpr unsigned kPositionBits = 36;
inline constexpr unsigned kSizeBits = 4;
inline constexpr unsigned kTicketBits = 24;
inline constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << kPositionBits) - 1;
inline constexpr std::uint64_t kSizeMask = (std::uint64_t{1} << kSizeBits) - 1;
inline constexpr std::uint64_t kTicketMask = (std::uint64_t{1} << kTicketBits) - 1;
inline constexpr std::size_t kMaxDeviceLanes = 8;
inline constexpr std::size_t kMaxLanes = kMaxDeviceLanes + 1;  // lane 0 is the main ring
inline constexpr std::size_t kErrorTextBytes = 1024;
inline constexpr std::size_t kControlTextBytes = 8192;

/// A place in the ring: the number of records and the number of 64-byte units before it, both modulo their
/// width. Stored in one 64-bit word, so that one compare-and-swap takes a slot and its bytes together. In the
/// reservation word, `size` is the index of the ring's current size (Ring::sizes_), so that no swap succeeds
/// with a place that was computed for another size. Elsewhere `size` is 0 and has no meaning.
struct Cursor {
  std::uint64_t ticket = 0;    // modulo 2^24
  std::uint64_t position = 0;  // modulo 2^36, in kUnitBytes
  std::uint64_t size = 0;      // modulo 2^4

  static constexpr Cursor unpack(std::uint64_t word) noexcept {
    return {word >> (kPositionBits + kSizeBits), word & kPositionMask, (word >> kPositionBits) & kSizeMask};
  }
  constexpr std::uint64_t pack() const noexcept {
    return ((ticket & kTicketMask) << (kPositionBits + kSizeBits)) | ((size & kSizeMask) << kPositionBits) |
           (position & kPositionMask);
  }
  /// The word after `word`: one more ticket, an end at `position`, and the same size.
  static constexpr std::uint64_t advance(std::uint64_t word, std::uint64_t position) noexcept {
    constexpr std::uint64_t kOneTicket = std::uint64_t{1} << (kPositionBits + kSizeBits);
    return ((word + kOneTicket) & ~kPositionMask) | (position & kPositionMask);
  }
  constexpr std::uint64_t tickets_since(Cursor earlier) const noexcept {
    return (ticket - earlier.ticket) & kTicketMask;
  }
  constexpr std::uint64_t units_since(Cursor earlier) const noexcept {
    return (position - earlier.position) & kPositionMask;
  }
};

/// The place of one record. The slot of ticket t is slots[t % slots]; it is reused every lap and never
/// cleared.
struct Slot {
  // Producer, release: ticket + 1 once the record may be read; pairs with the acquire in Consumer::next().
  std::atomic<std::uint64_t> commit;
  // Written by the producer, plain, before commit; read by the consumer after it.
  std::uint64_t position;  // first unit of the record, modulo 2^36
  std::uint64_t bytes;     // the requested size
  std::uint32_t kind;      // RecordKind
  std::uint32_t reserved;
  std::uint64_t offset;  // of the record's first byte in the data
  std::uint64_t unused[3];
};
static_assert(sizeof(Slot) == 64);

/// Sums for one drop reason. Both sides add to them, relaxed: totals, which order no other access.
struct DropTotals {
  std::atomic<std::uint64_t> tensors;
  std::atomic<std::uint64_t> bytes;
};

/// A short text with one writer, and readers that may read at any time (a sequence lock). The words are
/// atomics, so a torn read is possible but not a data race; `version` detects a torn read.
struct ErrorText {
  // Consumer: odd while it writes. The release of each word pairs with the acquire in read_error_text().
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> words[kErrorTextBytes / 8];
};

struct ControlPage {
  // Written once by the constructor of Ring, before the descriptor is passed to the flusher; then constant.
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slots;
  std::uint64_t layout;  // layout_hash()
  std::uint64_t data_bytes;
  std::uint64_t names_bytes;
  std::uint64_t names_offset;  // offsets from the start of the memfd
  std::uint64_t slots_offset;
  std::uint64_t data_offset;
  std::uint64_t total_bytes;
  std::uint64_t order_offset;
  std::uint64_t order_entries;  // a power of two, or 0 without device lanes
  std::uint64_t steps_offset;
  std::uint64_t step_rows;     // kStepTimeRows, or 0 without times of steps
  std::uint64_t family;        // equal in a main ring and its lanes, and different in all other rings
  std::uint32_t lane;          // 0 in a main ring, else the number of the lane
  std::uint32_t device_lanes;  // number of lanes of a main ring

  // Producers, compare-and-swap: next ticket and position, and index of the ring's size. Relaxed, except for
  // the release in Ring::grow(), which pairs with the acquire in Ring::reserve(). The consumer only reads it.
  alignas(kLineBytes) std::atomic<std::uint64_t> reservation;

  // Consumer, release: first record that is not released yet; pairs with the acquire in Ring::try_reserve().
  alignas(kLineBytes) std::atomic<std::uint64_t> head;

  // Consumer only (the trainer reads some of these for progress(), relaxed: hints that order no other
  // access). Full count of released records, over all lanes; stored before `head`, read again by the next
  // consumer.
  alignas(kLineBytes) std::atomic<std::uint64_t> head_ticket;
  std::atomic<std::uint64_t> epoch;         // number of attaches so far
  std::atomic<std::uint64_t> heartbeat_ns;  // CLOCK_MONOTONIC of the last report()
  std::atomic<std::uint64_t> records;       // sums of the arguments of report()
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> rows;
  std::atomic<std::uint64_t> busy_ns;         // time in which the sink had work
  std::atomic<std::uint64_t> durable_bytes;   // bytes of objects in the bucket or its spool; 0 for a disk
  std::atomic<std::uint64_t> accepted_bytes;  // bytes of objects that the bucket has accepted
  std::atomic<std::uint64_t> upload_ns;       // time of all uploads, added up
  std::atomic<std::int64_t> last_step;
  std::atomic<std::uint64_t> errors;
  // A note for the next consumer, written by release(): when head_ticket (with lanes) or the head (without
  // lanes) is at note_ticket, drops[kTorn] is note_torn, and (with lanes) the heads of the lanes are
  // note_heads. note_ticket is ~0 while the note is being written.
  std::atomic<std::uint64_t> note_ticket;
  std::atomic<std::uint64_t> note_torn;
  std::atomic<std::uint64_t> note_heads[kMaxLanes];
  // Records whose commit word was visible before their values (lane_reader.hpp). Main ring only. Relaxed: a
  // sum.
  std::atomic<std::uint64_t> early_commits;
  // 1: a consumer has skipped records as torn; no producer may write any more. Relaxed: orders no other
  // access.
  std::atomic<std::uint32_t> marked_dead;

  // Trainer, any thread, release in set_closing(); pairs with the acquire in Consumer::closing().
  alignas(kLineBytes) std::atomic<std::uint32_t> closing;
  // Trainer, any thread: relaxed sums, like DropTotals.
  alignas(kLineBytes) std::atomic<std::uint64_t> captures;
  std::atomic<std::uint64_t> tensors;
  std::atomic<std::uint64_t> payload_bytes;
  std::atomic<std::uint64_t> capture_ns;
  // Data bytes to which the ring may grow: the full size, or the current size while there is no more memory.
  // Trainer under Ring's mutex of growth, relaxed: a hint for the consumer, which limits its batches by this
  // number.
  std::atomic<std::uint64_t> data_limit;

  // Rows of the queue of times of steps that were written so far. Trainer under the GIL, release; pairs with
  // the acquire in Consumer::step_times().
  alignas(kLineBytes) std::atomic<std::uint64_t> step_head;
  // Rows that may be written again. Consumer, release; pairs with the acquire in Ring::put_step_time().
  alignas(kLineBytes) std::atomic<std::uint64_t> step_tail;

  // Trainer under the name table's mutex, release: [names:32 | bytes:32]; pairs with the acquire in
  // read_names().
  alignas(kLineBytes) std::atomic<std::uint64_t> names_published;

  alignas(kLineBytes) DropTotals drops[static_cast<std::size_t>(DropReason::kCount)];  // both sides, relaxed

  alignas(kLineBytes) ErrorText error;  // consumer writes, trainer reads

  // Consumer, release, once: bytes of stop_words in use, 0 = no request; pairs with the acquire in
  // Ring::stop_request().
  alignas(kLineBytes) std::atomic<std::uint64_t> stop_bytes;
  // A mailbox for one request that is not a stop request. It is full while `posted` is one more than `taken`.
  // Consumer, release; pairs with the acquire in Ring::take_request().
  std::atomic<std::uint64_t> requests_posted;
  // Trainer, any thread, compare-and-swap, release: the words may be written again; pairs with the acquire
  // in Consumer::try_post_request().
  std::atomic<std::uint64_t> requests_taken;
  std::atomic<std::uint64_t> request_bytes;                         // consumer, before requests_posted
  std::atomic<std::uint64_t> stop_words[kControlTextBytes / 8];     // consumer, before stop_bytes
  std::atomic<std::uint64_t> request_words[kControlTextBytes / 8];  // consumer, before requests_posted
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
                  std::atomic<std::uint32_t>::is_always_lock_free,
              "the words are shared by two processes, so they must not hide a lock");

inline constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t power_of_two) noexcept {
  return (value + power_of_two - 1) & ~(power_of_two - 1);
}

/// Offsets of the parts for given sizes.
struct Layout {
  std::uint64_t names_offset;
  std::uint64_t order_offset;
  std::uint64_t steps_offset;
  std::uint64_t slots_offset;
  std::uint64_t data_offset;
  std::uint64_t total_bytes;
};

/// The sizes of a ring's parts.
struct Sizes {
  std::uint64_t data_bytes = 0;
  std::uint64_t slots = 0;
  std::uint64_t names_bytes = 0;
  std::uint64_t order_entries = 0;
  std::uint64_t step_rows = 0;
};

constexpr Layout layout_for(const Sizes& sizes) noexcept {
  Layout layout{};
  layout.names_offset = round_up(sizeof(ControlPage), kPageBytes);
  layout.order_offset = layout.names_offset + round_up(sizes.names_bytes, kPageBytes);
  layout.steps_offset =
      layout.order_offset + round_up(sizes.order_entries * sizeof(std::uint64_t), kPageBytes);
  layout.slots_offset = layout.steps_offset + round_up(sizes.step_rows * sizeof(StepTimeRow), kPageBytes);
  layout.data_offset = layout.slots_offset + round_up(sizes.slots * sizeof(Slot), kPageBytes);
  layout.total_bytes = layout.data_offset + sizes.data_bytes;
  return layout;
}

/// FNV-1a hash of the sizes and offsets that must be equal on both sides.
constexpr std::uint64_t layout_hash() noexcept {
  const std::uint64_t facts[] = {kRingVersion,
                                 sizeof(ControlPage),
                                 sizeof(Slot),
                                 sizeof(BatchHeader),
                                 sizeof(Entry),
                                 sizeof(TensorStats),
                                 sizeof(StepTimeRow),
                                 kPhases,
                                 offsetof(ControlPage, step_head),
                                 offsetof(ControlPage, reservation),
                                 offsetof(ControlPage, head),
                                 offsetof(ControlPage, note_heads),
                                 offsetof(ControlPage, early_commits),
                                 offsetof(ControlPage, drops),
                                 offsetof(ControlPage, data_limit),
                                 offsetof(Slot, offset),
                                 offsetof(ControlPage, error),
                                 offsetof(ControlPage, stop_bytes),
                                 offsetof(ControlPage, requests_posted),
                                 offsetof(ControlPage, request_words),
                                 offsetof(Entry, payload_offset),
                                 offsetof(Entry, shape),
                                 offsetof(Entry, name),
                                 offsetof(Entry, dtype),
                                 static_cast<std::uint64_t>(Dtype::kCount),
                                 static_cast<std::uint64_t>(DropReason::kCount),
                                 kPositionBits,
                                 kSizeBits,
                                 kTicketBits,
                                 kUnitBytes};
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::uint64_t fact : facts) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((fact >> shift) & 0xff)) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace tdcore
