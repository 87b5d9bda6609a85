// model_lanes_state.hpp: the states of model_lanes.cpp: the shared memory of two small lanes, the place of
// the consumer, and values that only the checker uses. Threads: one.
#pragma once

#include <cstdint>
#include <string>

namespace tdcore::testing::lanes {

inline constexpr int kLanes = 2;
inline constexpr int kSlots[kLanes] = {2, 1};
inline constexpr int kRecords[kLanes] = {3, 2};
inline constexpr int kMost = 3;        // maximum of kRecords
inline constexpr int kTickets = 5;     // sum of kRecords
inline constexpr int kEntries = 4;     // entries of the log; at least the sum of kSlots, a power of two
inline constexpr int kModulus = 4;     // of a lane's tickets
inline constexpr int kMarkerLane = 0;  // its record kMarker is the marker
inline constexpr int kMarker = 1;
inline constexpr int kDevice = 1;  // the lane whose records are committed by a device
inline constexpr int kVoid = 15;   // note_ticket while the note is being written

enum class Mistake {
  kNone,
  kReadBeforeLog,
  kHeadsBeforeCount,
  kNoNote,
  kNoteNotVoided,
  kTornNotLogged,
  kLookOnce,
  kNoTag,
  kSmallLog,
  kTornAdded,
};

using Byte = std::uint8_t;

enum Step : Byte {
  kAttach,     // read the count and the note's ticket
  kMendHeads,  // one step per lane, then the torn count
  kMendTorn,
  kReadHeads,
  kNext,        // read the log's word, or release
  kLook,        // at one lane
  kNoteMarker,  // remember what is reserved now
  kAppend,
  kVoidNote,
  kNoteTorn,
  kNoteHeads,  // one step per lane
  kNoteTicket,
  kStoreCount,
  kStoreHeads,  // one step per lane
  kCountTorn,
};

struct Lane {
  Byte tail, head;  // modulo kModulus
  Byte commit[2];   // ticket + 1, by slot
  // Used only by the checker, in full counts:
  Byte reserved, given_back, committed;  // committed: bits
};

struct Consumer {
  Byte step, at;               // at: lane of steps that are made per lane
  Byte lanes[kLanes], ticket;  // cursor
  Byte first[kLanes], first_ticket;
  Byte torn;     // since `first`
  Byte noticed;  // knows that the trainer is dead
  // choose():
  Byte looked;  // lanes of this pass
  Byte marker_seen, marker_at, marker_reserved;
  Byte again, waiting;
  Byte choice, choice_torn;
};

/// Only bytes, so that a state can be a key.
struct State {
  Lane lanes[kLanes];
  Byte tag[kEntries], lane[kEntries], torn[kEntries];  // the log
  Byte count, note_ticket, note_torn, note_heads[kLanes], torn_total;
  Byte dead;
  Consumer consumer;
  // Used only by the checker:
  Byte read[kTickets];  // 0, or lane * kMost + number + 1, with 0x80 when torn
  Byte before_marker;   // records of the other lane that must come before the marker: bits
};

inline Byte wrap(int value) { return static_cast<Byte>(((value % kModulus) + kModulus) % kModulus); }

/// Checks of every state. Stores the first problem.
class Checker {
 protected:
  void fail(const char* what) {
    if (failure_.empty()) failure_ = what;
  }

  bool complete(const State& state) {
    int torn = 0;
    for (const Byte read : state.read) torn += (read & 0x80) != 0 ? 1 : 0;
    if (state.torn_total != torn) fail("torn records are not counted once each");
    return state.lanes[0].given_back == state.lanes[0].reserved &&
           state.lanes[1].given_back == state.lanes[1].reserved;
  }

  /// The full count of a place that is not before the head; for slots and for the checker.
  static int full(const Lane& lane, int at) { return lane.given_back + wrap(at - lane.given_back); }

  /// Returns the record to the caller, under the consumer's next ticket. False if it cannot be noted.
  bool check_read(State& state, int lane, int number, bool torn) {
    const Consumer& me = state.consumer;
    const Lane& there = state.lanes[lane];
    const int record = lane * kMost + number + 1;
    const int said = record | (torn ? 0x80 : 0);
    if (me.ticket >= kTickets || number >= there.reserved) {
      fail("a record was read that is not there");
      return false;
    }
    if (!torn && (there.committed >> number & 1) == 0) fail("an uncommitted record was read");
    if (torn && state.dead == 0) fail("a record was skipped while the trainer lives");
    for (int ticket = 0; ticket < kTickets; ++ticket) {
      if (ticket != me.ticket && (state.read[ticket] & 0x7f) == record) fail("a record was read twice");
    }
    if (state.read[me.ticket] != 0 && state.read[me.ticket] != said)
      fail("a ticket gave another record than before");
    if (!torn && lane == kMarkerLane && number == kMarker) check_marker(state);
    state.read[me.ticket] = static_cast<Byte>(said);
    return true;
  }

  void check_marker(const State& state) {
    const int other = 1 - kMarkerLane;
    for (int number = 0; number < kMost; ++number) {
      if ((state.before_marker >> number & 1) == 0) continue;
      bool found = false;
      for (int ticket = 0; ticket < state.consumer.ticket; ++ticket)
        found = found || (state.read[ticket] & 0x7f) == other * kMost + number + 1;
      if (!found) fail("a marker came before what was committed before it");
    }
  }

  void store_head(State& next, int lane, Byte head) {
    Lane& there = next.lanes[lane];
    const int given_back = full(there, head);
    for (int number = there.given_back; number < given_back; ++number) {
      bool found = false;
      for (int ticket = 0; ticket < next.count; ++ticket)
        found = found || (next.read[ticket] & 0x7f) == lane * kMost + number + 1;
      if (!found) fail("a head ran ahead of the count");
    }
    there.head = head;
    there.given_back = static_cast<Byte>(given_back);
  }

  std::string failure_;
};

}  // namespace tdcore::testing::lanes
