// An explicit-state model of the ring's protocol (csrc/ring/ring.hpp): every interleaving of two producers
// and one consumer on a small ring (2 or 4 slots, 2 units of data that may grow to 4 once, tickets and
// positions modulo 8, so that both wrap). All producers may be killed together at any step, and the consumer
// may be killed at any step and started again. At each attempt to grow, memory may or may not be available.
//
// Checked in every state: reserved records never overlap; the consumer reads exactly the data that the owner
// of the ticket wrote, under the right full ticket; only uncommitted records of a dead producer are skipped;
// records are released in order, each once; and no state is stuck before all records are released. With one
// mistake in the model, the check must fail, which shows that it detects mistakes. The model interleaves
// whole steps (sequential consistency). ring.hpp proves the memory orders, and TSan checks them
// (test_ring.cpp).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace {

constexpr int kMostSlots = 4;
constexpr int kFirstUnits = 2;
constexpr int kUnits = 4;
constexpr int kModulus = 8;  // of tickets and of positions: a multiple of both sizes
constexpr int kProducers = 2;
constexpr int kRecordsEach = 3;
constexpr int kRecords = kProducers * kRecordsEach;
constexpr int kSizes[kProducers][kRecordsEach] = {{2, 1, 2}, {1, 2, 1}};  // units

enum class Mistake {
  kNone,
  kClearBeforeRelease,
  kNoSpaceCheck,
  kNoSlotCheck,
  kCountAfterHead,
  kCommitFirst,
  kSkipWhileAlive,
  kGrowFromTheMiddle,
  kSizeNotCompared
};

using Byte = std::uint8_t;

struct Producer {
  Byte step;  // 0 load head, 1 load reservation, 2 swap, 3 fill slot, 4 and 5 write units, 6 commit; 7: grow
  Byte record;  // index of the current record; kRecordsEach: done
  Byte head_ticket, head_position, tail_ticket, tail_position, tail_size;  // loaded
  Byte start;
  Byte unit;
};

struct Consumer {
  Byte step;  // 0 attach, 1 look at the slot, 2 and 3 read units, 4 store count, 5 store head; 6: clear words
              // (a mistake)
  Byte ticket, position, full;  // cursor
  Byte first_full;              // first ticket that is not released
  Byte id;                      // record being read
  Byte unit;                    // place of the record
  Byte noticed;                 // knows that the producers are dead
};

/// Only bytes, so that a state can be a key.
struct State {
  Byte tail_ticket, tail_position, tail_size;
  Byte bias;  // of the second size
  Byte head_ticket, head_position, stored_count;
  Byte commit[kMostSlots], slot_position[kMostSlots], slot_unit[kMostSlots], slot_id[kMostSlots];
  Byte data[kUnits];
  Byte dead;
  Producer producers[kProducers];
  Consumer consumer;
  // Used only by the checker:
  Byte owner[kRecords];      // record id + 1 by full ticket
  Byte start[kRecords];      // first unit by full ticket
  Byte committed[kRecords];  // by full ticket
  Byte tail_full, head_full;
};
static_assert(sizeof(State) < 128);

int size_of(int id) { return kSizes[id / kRecordsEach][id % kRecordsEach]; }
Byte wrap(int value) { return static_cast<Byte>(((value % kModulus) + kModulus) % kModulus); }

int place(int at, int units, int capacity) {  // as in ring.cpp, for an alignment of one unit
  return at % capacity + units > capacity ? at + capacity - at % capacity : at;
}

class Model {
 public:
  Model(Mistake mistake, int slots) : mistake_(mistake), slots_(slots) {}

  /// The first problem; empty if there is none.
  std::string run() {
    State begin{};
    visit(begin);
    while (!queue_.empty() && failure_.empty()) {
      const State state = queue_.front();
      queue_.pop_front();
      expand(state);
    }
    return failure_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  void fail(const char* what) {
    if (failure_.empty()) failure_ = what;
  }

  void visit(const State& state) {
    std::string key(reinterpret_cast<const char*>(&state), sizeof(State));
    if (seen_.insert(std::move(key)).second) queue_.push_back(state);
  }

  void expand(const State& state) {
    bool progress = false;
    const auto go = [&](const State& next) {
      if (std::memcmp(&next, &state, sizeof(State)) != 0) progress = true;
      visit(next);
    };
    if (state.dead == 0) {
      for (int p = 0; p < kProducers; ++p) step_producer(state, p, go);
    }
    step_consumer(state, go);
    if (state.dead != 0 && state.consumer.noticed == 0 && state.consumer.step == 1) {
      State next = state;
      next.consumer.noticed = 1;
      go(next);
    }
    if (!progress && !complete(state)) fail("stuck before everything was given back");
    // Kills do not count as progress.
    if (state.dead == 0) {
      State next = state;
      next.dead = 1;
      visit(next);
    }
    if (state.consumer.step != 0) {
      State next = state;
      next.consumer = Consumer{};
      visit(next);
    }
  }

  static bool complete(const State& state) {
    if (state.head_full != state.tail_full) return false;
    return state.dead != 0 || state.tail_full == kRecords;
  }

  template <typename Go>
  void step_producer(const State& state, int p, Go&& go) {
    if (state.producers[p].record == kRecordsEach) return;
    State next = state;
    Producer& me = next.producers[p];
    const int id = p * kRecordsEach + me.record;
    const int units = size_of(id);
    switch (me.step) {
      case 0:
        me.head_ticket = state.head_ticket;
        me.head_position = state.head_position;
        me.step = 1;
        break;
      case 1: {
        me.tail_ticket = state.tail_ticket;
        me.tail_position = state.tail_position;
        me.tail_size = state.tail_size;
        const int capacity = me.tail_size == 0 ? kFirstUnits : kUnits;
        const int at = me.tail_position + (me.tail_size == 0 ? 0 : state.bias);
        const int there = place(at, units, capacity);
        const int start = me.tail_position + there - at;
        const int used = wrap(me.tail_ticket - me.head_ticket);
        const int end = start - me.tail_position + wrap(me.tail_position - me.head_position) + units;
        const bool slot_free = used < slots_ || mistake_ == Mistake::kNoSlotCheck;
        const bool space_free = end <= capacity || mistake_ == Mistake::kNoSpaceCheck;
        me.start = wrap(start);
        me.unit = static_cast<Byte>(there % capacity);
        me.step = slot_free && space_free ? 2 : 0;
        if (me.step == 2) break;
        clear_loads(me);
        if (slot_free && state.tail_size == 0) {  // full: the ring grows, or stays as it is without memory
          State growing = next;
          growing.producers[p].step = 7;
          go(growing);
        }
        break;
      }
      case 7:
        if (state.tail_size == 0) grow(next);
        me.step = 0;
        break;
      case 2:
        if (state.tail_ticket == me.tail_ticket && state.tail_position == me.tail_position &&
            (state.tail_size == me.tail_size || mistake_ == Mistake::kSizeNotCompared)) {
          next.tail_ticket = wrap(me.tail_ticket + 1);
          next.tail_position = wrap(me.start + units);
          claim(next, id, me.unit);
          me.step = 3;
        } else {
          me.step = 0;
        }
        break;
      case 3:
        next.slot_position[me.tail_ticket % slots_] = me.start;
        next.slot_unit[me.tail_ticket % slots_] = me.unit;
        next.slot_id[me.tail_ticket % slots_] = static_cast<Byte>(id);
        me.step = mistake_ == Mistake::kCommitFirst ? 6 : 4;
        break;
      case 4:
      case 5:
        next.data[me.unit + me.step - 4] = static_cast<Byte>(id + 1);
        if (me.step == 4 && units == 2) {
          me.step = 5;
        } else if (mistake_ == Mistake::kCommitFirst) {
          next_record(me);
        } else {
          me.step = 6;
        }
        break;
      default:
        next.commit[me.tail_ticket % slots_] = static_cast<Byte>(me.tail_ticket + 1);
        for (int full = 0; full < next.tail_full; ++full) {
          if (next.owner[full] == id + 1) next.committed[full] = 1;
        }
        if (mistake_ == Mistake::kCommitFirst) {
          me.step = 4;
        } else {
          next_record(me);
        }
    }
    go(next);
  }

  static void clear_loads(Producer& me) {
    me.head_ticket = me.head_position = me.tail_ticket = me.tail_position = me.tail_size = me.start =
        me.unit = 0;
  }
  /// The swap of Ring::set_size().
  void grow(State& state) const {
    const int gap = mistake_ == Mistake::kGrowFromTheMiddle
                        ? 0
                        : (kFirstUnits - state.tail_position % kFirstUnits) % kFirstUnits;
    state.tail_position = wrap(state.tail_position + gap);
    state.bias = wrap(kFirstUnits - state.tail_position);
    state.tail_size = 1;
  }
  static void next_record(Producer& me) {
    clear_loads(me);
    me.step = 0;
    ++me.record;
  }

  /// Handles a successful swap: stores the owner, and checks for overlaps with records that are not released.
  void claim(State& state, int id, int unit) {
    const int full = state.tail_full++;
    state.owner[full] = static_cast<Byte>(id + 1);
    state.start[full] = static_cast<Byte>(unit);
    if (full - state.head_full >= slots_) fail("two records own one slot");
    for (int other = state.head_full; other < full; ++other) {
      for (int a = 0; a < size_of(state.owner[other] - 1); ++a) {
        for (int b = 0; b < size_of(id); ++b) {
          if (state.start[other] + a == unit + b) fail("two records own one byte");
        }
      }
    }
  }

  template <typename Go>
  void step_consumer(const State& state, Go&& go) {
    State next = state;
    Consumer& me = next.consumer;
    switch (me.step) {
      case 0:
        me.ticket = state.head_ticket;
        me.position = state.head_position;
        me.full = static_cast<Byte>(state.stored_count - wrap(state.stored_count - state.head_ticket));
        me.first_full = me.full;
        if (me.full != state.head_full) fail("a restarted consumer counts wrongly");
        me.step = 1;
        break;
      case 1: {
        const int slot = me.ticket % slots_;
        const bool behind = wrap(state.tail_ticket - me.ticket) != 0;
        if (state.commit[slot] == me.ticket + 1) {
          me.id = state.slot_id[slot];
          me.position = state.slot_position[slot];
          me.unit = state.slot_unit[slot];
          me.step = 2;
        } else if ((me.noticed != 0 || mistake_ == Mistake::kSkipWhileAlive) && behind) {
          if (state.dead == 0 || state.committed[me.full] != 0)
            fail("a record that is or will be committed was skipped");
          me.ticket = wrap(me.ticket + 1);
          ++me.full;
        }
        break;
      }
      case 2:
      case 3:
        if (state.owner[me.full] != me.id + 1) fail("a record was read under another's ticket");
        if (state.data[me.unit + me.step - 2] != me.id + 1) fail("bytes of another record were read");
        if (me.step == 2 && size_of(me.id) == 2) {
          me.step = 3;
        } else {
          me.position = wrap(me.position + size_of(me.id));
          me.ticket = wrap(me.ticket + 1);
          ++me.full;
          me.id = me.unit = 0;
          me.step = 1;
        }
        break;
      case 6:
        for (int full = me.first_full; full < me.full; ++full) next.commit[full % slots_] = 0;
        me.step = 4;
        break;
      case 4:
        (mistake_ == Mistake::kCountAfterHead ? store_head(next) : store_count(next));
        me.step = 5;
        break;
      default:
        (mistake_ == Mistake::kCountAfterHead ? store_count(next) : store_head(next));
        me.first_full = me.full;
        me.step = 1;
    }
    go(next);
    // Between two records the consumer may also release the records that it has read.
    if (state.consumer.step == 1 && state.consumer.full != state.consumer.first_full) {
      State releasing = state;
      releasing.consumer.step = mistake_ == Mistake::kClearBeforeRelease ? 6 : 4;
      go(releasing);
    }
  }

  static void store_count(State& state) { state.stored_count = state.consumer.full; }
  void store_head(State& state) {
    if (state.consumer.first_full != state.head_full) fail("records were given back twice or left out");
    for (int full = state.head_full; full < state.consumer.full; ++full) {
      if (state.committed[full] == 0 && state.dead == 0) fail("an uncommitted record was given back");
    }
    state.head_ticket = state.consumer.ticket;
    state.head_position = state.consumer.position;
    state.head_full = state.consumer.full;
  }

  const Mistake mistake_;
  const int slots_;
  std::string failure_;
  std::deque<State> queue_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

int main() {
  int failures = 0;
  for (const int slots : {2, 4}) {
    Model right(Mistake::kNone, slots);
    const std::string verdict = right.run();
    std::printf("protocol with %d slots: %zu states, %s\n", slots, right.states(),
                verdict.empty() ? "sound" : verdict.c_str());
    failures += verdict.empty() ? 0 : 1;
  }

  struct Case {
    const char* name;
    Mistake mistake;
    int slots = 2;
  };
  constexpr Case kCases[] = {
      {"commit words cleared before the head is stored", Mistake::kClearBeforeRelease},
      {"no check for space", Mistake::kNoSpaceCheck},
      {"no check for slots", Mistake::kNoSlotCheck},
      {"full count stored after the head", Mistake::kCountAfterHead},
      {"commit before the data", Mistake::kCommitFirst},
      {"uncommitted records skipped while the producer lives", Mistake::kSkipWhileAlive},
      {"a ring that grows where its end happens to be", Mistake::kGrowFromTheMiddle, 4},
      {"a swap that does not compare the size", Mistake::kSizeNotCompared}};
  for (const Case& one : kCases) {
    Model wrong(one.mistake, one.slots);
    const std::string found = wrong.run();
    std::printf("mistake '%s': %s\n", one.name, found.empty() ? "NOT FOUND" : found.c_str());
    failures += found.empty() ? 1 : 0;
  }
  return failures == 0 ? 0 : 1;
}
