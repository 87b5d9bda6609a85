// lane_order.hpp: one order of tickets over all lanes, stored in the main ring's memory.
//
// With lanes, a record's ticket is its position in the order in which the consumer takes records of all
// lanes: a *global* ticket. G = control.head_ticket of the main ring is the number of released records. For
// each ticket from G on, the log contains its lane and whether it was torn. Records of one lane keep their
// order, so this is enough to find the record again. Threads: the consumer's.
//
// ---------------------------------------------------------------------------------------------
// Why it is correct, at whatever moment a consumer is killed (the next one attaches to the same memory)
//
// L(g) = order[g % entries], one 64-bit word [g + 1 : 56 | torn : 1 | lane : 7], 0 at first.
// H(l) = head of lane l, P = the note (note_ticket, note_torn, note_heads).
//
// 1. Same record under the same ticket. A record is returned to the caller under g only after L(g) has g + 1.
//    L(g) is written once, by one compare-and-swap from the word of an earlier lap: no word of an earlier lap
//    has the tag g + 1. A consumer that finds the tag uses the word and does not search. By 2 and 3 the
//    next consumer begins at G with every lane's head where the records before G end, and follows the same
//    words, so it reaches the same places. "Torn" in a word is permanent: a late commit of a device, or a
//    consumer that has not detected the death of the producer yet, changes nothing.
// 2. No word is lost. The place of L(g) is used again for ticket g + entries. When that ticket is taken, at
//    most `entries` records are taken and not released: `entries` is at least the sum of the lanes' slots,
//    and a lane's records from its head on fit into its slots. So g < G by then.
// 3. Release is one step. release() from G = a to b writes
//        note_ticket = ~0, note_torn, note_heads, note_ticket = b      (release stores, in this order)
//        G: a -> b by compare-and-swap                                  (the step)
//        H(l) = note_heads[l] for every lane, drops[kTorn] = note_torn
//    An attaching consumer reads G, then note_ticket. If they are equal, the step was made by the consumer
//    that wrote this complete note. The attaching consumer repeats the third line, which does no harm if it
//    is already done. If they differ, every H belongs to G: the note is complete or partial, but its release
//    was not made, and the release before it had ended, because the note's writer had finished it. (Two notes
//    with the same b are equal: by 1, b determines the records.) G is written before any H, so a head is
//    never ahead of G; until it is written, H is too old, which is only stricter for producers (ring.hpp, 2).
// 4. No record is lost, none is read twice. Between G and the lanes' tails each record has at most one word,
//    because a lane's records are taken in their order; records that have no word are taken after the last
//    word.
// 5. The record of a word is readable. The consumer that wrote L(g) had loaded the commit word (acquire)
//    before its swap (release). The next consumer loads L(g) (acquire), so its load of the commit word is not
//    older.
// 6. A consumer that was considered dead and wakes up: its swap of L(g) or of G fails, or finds the word that
//    it would have written; the changed epoch makes the consumer stop.
// tests/cpp/model_lanes.cpp goes through every interleaving of a small case.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ring/control_page.hpp"
#include "ring/ring_memory.hpp"

namespace tdcore {

/// A position between two records: a place in each lane, and the ticket of the next record over all lanes.
struct Mark {
  std::array<Cursor, kMaxLanes> lanes{};
  std::uint64_t ticket = 0;  // full count
};

class LaneOrder {
 public:
  struct Word {
    std::uint32_t lane = 0;
    bool torn = false;
  };

  /// lanes: the main ring first. With only a main ring, its own order is used, and no method may be called.
  explicit LaneOrder(std::span<const std::shared_ptr<RingMemory>> lanes) noexcept : lanes_(lanes) {}

  /// The word of the ticket, if the ticket was assigned before.
  std::optional<Word> at(std::uint64_t ticket) const noexcept;
  /// False if another consumer has written the word; at() then returns it.
  [[nodiscard]] bool append(std::uint64_t ticket, Word word) noexcept;

  /// Finishes a release that an earlier consumer may have begun. Returns the position of the next record.
  Mark recover() noexcept;
  /// Releases from `first` to `end`, all lanes in one step. False if the head is no longer at `first`.
  [[nodiscard]] bool release(const Mark& first, const Mark& end, std::uint64_t torn) noexcept;

 private:
  std::atomic<std::uint64_t>& place(std::uint64_t ticket) const noexcept;
  void finish() noexcept;

  std::span<const std::shared_ptr<RingMemory>> lanes_;
};

}  // namespace tdcore
