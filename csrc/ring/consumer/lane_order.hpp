// lane_order.hpp: one order of tickets over all lanes, kept in the main ring's memory.
//
// With lanes, a record's ticket is its position in the order in which the consumer takes records of all
// lanes: a *global* ticket. G = control.head_ticket of the main ring is the number of released records. For
// each ticket from G on, the log contains its lane and whether it was torn. Records of one lane keep their
// order, so this is enough to find the record again. Threads: the consumer's.
//
// ---------------------------------------------------------------------------------------------
// Why it is correct, whatever moment a consumer is killed at (the next one attaches to the same memory)
//
// L(g) = order[g % entries], one 64-bit word [g + 1 : 56 | torn : 1 | lane : 7], 0 at first.
// H(l) = head of lane l, P = the note (note_ticket, note_torn, note_heads).
//
// 1. Same record under the same ticket. A record is given to the caller under g only after L(g) holds g + 1.
//    L(g) is written once, by one compare-and-swap from the word of an earlier lap: no word of an earlier lap
//    has the tag g + 1. A consumer that finds the tag uses the word and searches nothing else. By 2 and 3 the
//    next consumer begins at G with every lane's head where the records before G end, and follows the same
//    words, so it reaches the same places. "Torn" in a word is permanent: a late commit of a device, or a
//    consumer that has not detected the death of the producer yet, changes nothing.
// 2. No word is lost. The place of L(g) is used again for g + entries. That one is taken while at most
//    entries records are taken and not given back: entries is at least the sum of the lanes' slots, and a
//    lane's records from its head on fit into its slots. So g < G by then.
// 3. Giving back is one step. release() from G = a to b writes
//        note_ticket = ~0, note_torn, note_heads, note_ticket = b      (release stores, in this order)
//        G: a -> b by compare-and-swap                                  (the step)
//        H(l) = note_heads[l] for every lane, drops[kTorn] = note_torn
//    An attaching consumer reads G, then note_ticket. If they are equal the step was made, by the one that
//    wrote this whole note: it repeats the third line, which does no harm when done already. If they differ,
//    every H belongs to G: the note is of a release that was not made, or half of one, and the release before
//    it had ended, as it was written by one that had finished it. (Two notes of one b are equal: b says which
//    records, by 1.) G is written before any H, so a head never runs ahead of G; meanwhile H is too old,
//    which is only stricter for producers (ring.hpp, 2).
// 4. None lost, none twice. Between G and the lanes' tails each record has at most one word, since a lane's
//    records are taken in their order; records that have no word are taken after the last word.
// 5. What a word says is there. The consumer that wrote L(g) had loaded the commit word (acquire) before its
//    swap (release); the next one loads L(g) (acquire), so its own load of the commit word is not older.
// 6. A consumer that was thought dead and wakes up: its swap of L(g) or of G fails, or finds what it would
//    have written; the epoch tells it to stop.
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

/// A place between two records: one in each lane, and the ticket of the next record over all.
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

  /// lanes: the main ring first. With one, the order is that ring's, and nothing here may be called.
  explicit LaneOrder(std::span<const std::shared_ptr<RingMemory>> lanes) noexcept : lanes_(lanes) {}

  /// What the log says of the ticket, if it was given before.
  std::optional<Word> at(std::uint64_t ticket) const noexcept;
  /// False when another consumer has written there; at() then says what.
  [[nodiscard]] bool append(std::uint64_t ticket, Word word) noexcept;

  /// Ends what a release before may have begun; where the next record is.
  Mark recover() noexcept;
  /// From `first` to `end`, all lanes in one step. False when the head is not at `first` any more.
  [[nodiscard]] bool release(const Mark& first, const Mark& end, std::uint64_t torn) noexcept;

 private:
  std::atomic<std::uint64_t>& place(std::uint64_t ticket) const noexcept;
  void finish() noexcept;

  std::span<const std::shared_ptr<RingMemory>> lanes_;
};

}  // namespace tdcore
