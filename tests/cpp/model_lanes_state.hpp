// model_lanes_state.hpp: what model_lanes.cpp goes through: the shared memory of two tiny lanes, the place of
// the one consumer, and what only the checker knows. Threads: one.
#pragma once

#include <cstdint>

namespace tdcore::testing::lanes {

inline constexpr int kLanes = 2;
inline constexpr int kSlots[kLanes] = {2, 1};
inline constexpr int kRecords[kLanes] = {3, 2};
inline constexpr int kMost = 3;        // of kRecords
inline constexpr int kTickets = 5;     // sum of kRecords
inline constexpr int kEntries = 4;     // of the log; at least the sum of kSlots, a power of two
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
  kNext,        // read the log's word, or give back
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
  // What only the checker knows, in full counts:
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

/// All bytes, so that a state is its own key.
struct State {
  Lane lanes[kLanes];
  Byte tag[kEntries], lane[kEntries], torn[kEntries];  // the log
  Byte count, note_ticket, note_torn, note_heads[kLanes], torn_total;
  Byte dead;
  Consumer consumer;
  // What only the checker knows:
  Byte read[kTickets];  // 0, or lane * kMost + number + 1, with 0x80 when torn
  Byte before_marker;   // records of the other lane that must come before the marker: bits
};

inline Byte wrap(int value) { return static_cast<Byte>(((value % kModulus) + kModulus) % kModulus); }

}  // namespace tdcore::testing::lanes
