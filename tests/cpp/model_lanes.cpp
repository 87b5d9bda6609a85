// An explicit-state model of the order over several lanes (csrc/ring/consumer/lane_order.hpp,
// lane_chooser.hpp): every interleaving of two lanes, whose records are committed in any order, and one
// consumer that may be killed at any step and started again. The trainer may die at any step; its device may
// still commit records in lane 1 later, at any time.
//
// Checked in every state, over all consumers and including torn records: a record is read under one ticket,
// and a ticket returns one record; no slot is reused before its record was released; a head is never ahead of
// the count; a record that was committed before a marker, and all records before it in its lane, have a
// smaller ticket; torn records are counted once; and no state is stuck before all records are released. With
// one mistake in the model, the check must fail. model_ring.cpp covers the inside of a lane. The model
// interleaves whole steps; the headers prove the memory orders, and TSan checks them (test_lanes.cpp).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>

#include "model_lanes_state.hpp"

namespace {

using namespace tdcore::testing::lanes;

class Model : private Checker {
 public:
  explicit Model(Mistake mistake) : mistake_(mistake) {}

  /// The first problem; empty if there is none.
  std::string run() {
    visit(State{});
    while (!queue_.empty() && failure_.empty()) {
      const State state = queue_.front();
      queue_.pop_front();
      expand(state);
    }
    return failure_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  void visit(const State& state) {
    std::string key(reinterpret_cast<const char*>(&state), sizeof(State));
    if (seen_.insert(std::move(key)).second) queue_.push_back(state);
  }

  void expand(const State& state) {
    const auto go = [&](const State& next) { visit(next); };
    bool moves = false;
    const auto move = [&](const State& next) {
      moves = moves || state.dead == 0;  // a device's late commit may never come
      visit(next);
    };
    for (int lane = 0; lane < kLanes; ++lane) step_lane(state, lane, move);
    step_consumer(state, go);
    if (state.dead != 0 && state.consumer.noticed == 0 && state.consumer.step == kNext) {
      State next = state;
      next.consumer.noticed = 1;
      go(next);
    } else if (!moves && state.consumer.step == kNext) {
      ends(state);
    }
    if (state.dead == 0) {
      State next = state;
      next.dead = 1;
      visit(next);
    }
    if (state.consumer.step != kAttach) {
      State next = state;
      next.consumer = Consumer{};
      visit(next);
    }
  }

  /// No producer writes any more. The consumer alone must reach the end, in few steps.
  void ends(State state) {
    constexpr int kEnough = 400;
    for (int step = 0; step < kEnough; ++step) {
      State first{};
      State last{};
      int ways = 0;
      step_consumer(state, [&](const State& next) {
        if (ways++ == 0) first = next;
        last = next;
      });
      const bool nothing_left = state.consumer.step == kNext && first.consumer.step == kLook &&
                                look(state, 0) == Front::kNothing && look(state, 1) == Front::kNothing;
      if (nothing_left && ways == 1) break;
      state = nothing_left ? last : first;
    }
    if (!complete(state)) fail("stuck before everything was given back");
  }

  // ---- a lane's producers

  template <typename Go>
  void step_lane(const State& state, int lane, Go&& go) {
    const Lane& mine = state.lanes[lane];
    if (state.dead == 0 && mine.reserved < kRecords[lane] && wrap(mine.tail - mine.head) < kSlots[lane]) {
      State next = state;
      Lane& there = next.lanes[lane];
      if (there.reserved - there.given_back >= kSlots[lane]) fail("a slot was used again before its time");
      there.tail = wrap(there.tail + 1);
      ++there.reserved;
      go(next);
    }
    if (state.dead != 0 && lane != kDevice) return;
    for (int number = 0; number < mine.reserved; ++number) {
      if ((mine.committed >> number & 1) != 0 || number < mine.given_back) continue;
      State next = state;
      Lane& there = next.lanes[lane];
      there.committed = static_cast<Byte>(there.committed | 1 << number);
      there.commit[number % kSlots[lane]] = static_cast<Byte>(wrap(number) + 1);
      if (lane == kMarkerLane && number == kMarker) {
        const Lane& other = state.lanes[1 - kMarkerLane];
        for (int i = 0; i < other.reserved && (other.committed >> i & 1) != 0; ++i)
          next.before_marker = static_cast<Byte>(next.before_marker | 1 << i);
      }
      go(next);
    }
  }

  // ---- the consumer

  enum class Front { kNothing, kRecord, kTorn };

  Front look(const State& state, int lane) const {
    const Lane& there = state.lanes[lane];
    const Byte at = state.consumer.lanes[lane];
    if (there.tail == at) return Front::kNothing;
    if (there.commit[full(there, at) % kSlots[lane]] == at + 1) return Front::kRecord;
    return state.consumer.noticed != 0 ? Front::kTorn : Front::kNothing;
  }

  int entry(int ticket) const { return ticket % (mistake_ == Mistake::kSmallLog ? 2 : kEntries); }

  bool logged(const State& state, int ticket) const {
    const Byte tag = state.tag[entry(ticket)];
    return mistake_ == Mistake::kNoTag ? tag != 0 : tag == ticket + 1;
  }

  /// Returns the record to the caller.
  void give(State& state, int lane, bool torn) {
    Consumer& me = state.consumer;
    Lane& there = state.lanes[lane];
    const int number = full(there, me.lanes[lane]);
    if (!check_read(state, lane, number, torn)) return;
    me.lanes[lane] = wrap(me.lanes[lane] + 1);
    ++me.ticket;
    me.torn = static_cast<Byte>(me.torn + (torn ? 1 : 0));
    forget_choice(me);
    me.step = kNext;
  }

  static void forget_choice(Consumer& me) {
    me.looked = me.again = me.waiting = me.choice = me.choice_torn = 0;
    if (me.marker_seen != 0 && me.marker_at != me.lanes[kMarkerLane])
      me.marker_seen = me.marker_at = me.marker_reserved = 0;
  }

  template <typename Go>
  void step_consumer(const State& state, Go&& go) {
    if (state.consumer.step < kNext) return step_attach(state, go);
    if (state.consumer.step > kAppend) return step_release(state, go);
    State next = state;
    Consumer& me = next.consumer;
    switch (me.step) {
      case kNext:
        if (me.ticket < kTickets && logged(state, me.ticket)) {
          follow(next);
        } else {
          me.step = kLook;
        }
        go(next);
        if (me.first_ticket != state.consumer.ticket) {
          State releasing = state;
          const bool heads_first = mistake_ == Mistake::kHeadsBeforeCount;
          releasing.consumer.step = mistake_ == Mistake::kNoteNotVoided ? kNoteTorn
                                    : mistake_ == Mistake::kNoNote      ? kStoreCount
                                    : heads_first                       ? kStoreHeads
                                                                        : kVoidNote;
          go(releasing);
        }
        return;
      case kLook:
        for (int lane = 0; lane < kLanes; ++lane) look_at(state, lane, go);
        return;
      case kNoteMarker:
        me.marker_seen = 1;
        me.marker_at = me.lanes[kMarkerLane];
        me.marker_reserved = state.lanes[1 - kMarkerLane].tail;
        me.again = 1;
        me.step = kLook;
        end_of_pass(next);
        break;
      default:
        append(next);
    }
    go(next);
  }

  void follow(State& next) {
    const int at = entry(next.consumer.ticket);
    const int lane = next.lane[at];
    if (next.torn[at] != 0 && mistake_ != Mistake::kTornNotLogged) return give(next, lane, true);
    const Front front = look(next, lane);
    if (front != Front::kNothing) give(next, lane, front == Front::kTorn);
  }

  /// In any order of the lanes, because the checks do not depend on the turn of a lane.
  template <typename Go>
  void look_at(const State& state, int lane, Go&& go) {
    if ((state.consumer.looked >> lane & 1) != 0) return;
    State next = state;
    Consumer& me = next.consumer;
    me.looked = static_cast<Byte>(me.looked | 1 << lane);
    const Front front = look(state, lane);
    const bool marker =
        front == Front::kRecord && lane == kMarkerLane && full(state.lanes[lane], me.lanes[lane]) == kMarker;
    const bool comes_before = me.marker_seen == 0 || lane == kMarkerLane ||
                              (wrap(me.marker_reserved - me.lanes[lane]) != 0 &&
                               wrap(me.marker_reserved - me.lanes[lane]) <= kSlots[lane]);
    if (marker && me.marker_seen == 0 && mistake_ != Mistake::kLookOnce) {
      me.step = kNoteMarker;
      return go(next);
    }
    if (marker) me.waiting = 1;
    if (!marker && front != Front::kNothing && comes_before) {
      choose(me, lane, front == Front::kTorn);
    } else {
      end_of_pass(next);
    }
    go(next);
  }

  void choose(Consumer& me, int lane, bool torn) {
    me.choice = static_cast<Byte>(lane);
    me.choice_torn = torn ? 1 : 0;
    me.looked = me.again = me.waiting = 0;
    me.step = kAppend;
  }

  void end_of_pass(State& next) {
    Consumer& me = next.consumer;
    if (me.looked != (1 << kLanes) - 1) return;
    if (me.again == 0 && me.waiting != 0) return choose(me, kMarkerLane, false);
    const bool again = me.again != 0;
    me.looked = me.again = me.waiting = 0;
    me.step = again ? kLook : kNext;
  }

  void append(State& next) {
    Consumer& me = next.consumer;
    const int lane = me.choice;
    const bool torn = me.choice_torn != 0;
    if (mistake_ == Mistake::kReadBeforeLog && next.read[me.ticket] == 0) {
      // The record is returned to the caller first; the next step writes the word.
      const Consumer before = me;
      give(next, lane, torn);
      me = before;
      return;
    }
    if (me.ticket >= kTickets) return fail("more records than there are");
    const int at = entry(me.ticket);
    next.tag[at] = static_cast<Byte>(me.ticket + 1);
    next.lane[at] = static_cast<Byte>(lane);
    next.torn[at] = torn ? 1 : 0;
    give(next, lane, torn);
  }

  // ---- release

  template <typename Go>
  void step_release(const State& state, Go&& go) {
    State next = state;
    Consumer& me = next.consumer;
    const bool heads_first = mistake_ == Mistake::kHeadsBeforeCount;
    switch (me.step) {
      case kVoidNote:
        next.note_ticket = kVoid;
        me.step = kNoteTorn;
        break;
      case kNoteTorn:
        next.note_torn = static_cast<Byte>(state.torn_total + me.torn);
        me.step = kNoteHeads;
        break;
      case kNoteHeads:
        next.note_heads[me.at] = me.lanes[me.at];
        per_lane(me, kNoteTicket);
        break;
      case kNoteTicket:
        next.note_ticket = me.ticket;
        me.step = kStoreCount;
        break;
      case kStoreCount:
        if (state.count != me.first_ticket) fail("records were given back twice or left out");
        next.count = me.ticket;
        me.step = heads_first ? kCountTorn : kStoreHeads;
        break;
      case kStoreHeads:
        store_head(next, me.at, me.lanes[me.at]);
        per_lane(me, heads_first ? kStoreCount : kCountTorn);
        break;
      default:
        next.torn_total = static_cast<Byte>(state.torn_total + me.torn);
        std::memcpy(me.first, me.lanes, sizeof(me.first));
        me.first_ticket = me.ticket;
        me.torn = 0;
        me.step = kNext;
    }
    go(next);
  }

  static void per_lane(Consumer& me, Byte after) {
    ++me.at;
    if (me.at < kLanes) return;
    me.at = 0;
    me.step = after;
  }

  template <typename Go>
  void step_attach(const State& state, Go&& go) {
    State next = state;
    Consumer& me = next.consumer;
    switch (me.step) {
      case kAttach: {
        const bool mend = state.count != 0 && state.note_ticket == state.count;
        me.first_ticket = me.ticket = state.count;
        me.step = mend && mistake_ != Mistake::kNoNote ? kMendHeads : kReadHeads;
        break;
      }
      case kMendHeads:
        store_head(next, me.at, state.note_heads[me.at]);
        per_lane(me, kMendTorn);
        break;
      case kMendTorn:
        if (mistake_ != Mistake::kTornAdded) next.torn_total = state.note_torn;
        me.step = kReadHeads;
        break;
      default:
        for (int lane = 0; lane < kLanes; ++lane) me.first[lane] = me.lanes[lane] = state.lanes[lane].head;
        me.step = kNext;
    }
    go(next);
  }

  const Mistake mistake_;
  std::deque<State> queue_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

int main() {
  int failures = 0;
  Model right(Mistake::kNone);
  const std::string verdict = right.run();
  std::printf("protocol: %zu states, %s\n", right.states(), verdict.empty() ? "sound" : verdict.c_str());
  failures += verdict.empty() ? 0 : 1;

  struct Case {
    const char* name;
    Mistake mistake;
  };
  constexpr Case kCases[] = {{"a record is read before its word is in the log", Mistake::kReadBeforeLog},
                             {"heads stored before the count", Mistake::kHeadsBeforeCount},
                             {"no note of the heads", Mistake::kNoNote},
                             {"the note is not void while it is written", Mistake::kNoteNotVoided},
                             {"the log does not say what was torn", Mistake::kTornNotLogged},
                             {"no second look before a marker", Mistake::kLookOnce},
                             {"words of an earlier lap are taken for new ones", Mistake::kNoTag},
                             {"a log smaller than the slots", Mistake::kSmallLog},
                             {"torn records are counted after the step only", Mistake::kTornAdded}};
  for (const Case& one : kCases) {
    Model wrong(one.mistake);
    const std::string found = wrong.run();
    std::printf("mistake '%s': %s\n", one.name, found.empty() ? "NOT FOUND" : found.c_str());
    failures += found.empty() ? 1 : 0;
  }
  return failures == 0 ? 0 : 1;
}
