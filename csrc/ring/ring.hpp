// ring.hpp: the producer side of the ring: many training threads in, one consumer (consumer.hpp) out.
//
// Ring creates the shared memory and reserves space in it. A producer thread calls
//
//     Reservation room = ring.try_reserve(RecordKind::kBatch, bytes, kTensorAlignBytes);
//     if (room) { ...fill room.data... ; ring.commit(room); }
//
// Threads: every method may be called from any thread of the process that created the ring. Methods never
// wait, except wait_for_room(), intern() (a mutex is held for one hash look-up), close(), and try_reserve()
// when it makes the ring larger (a mutex, and the kernel allocates memory: about 0.3 s per GiB).
//
// After construction no method allocates or throws, except intern() and growth (which ignore a lack of
// memory) and stop_request(), take_request() and progress() (which return text).
//
// Fork: in a forked child every method does nothing and returns false; destructors do not access the parent's
// memory (base/fork_guard.hpp detects a child).
//
// Between try_reserve() and commit() or abort(), a producer runs no Python, allocates nothing and throws
// nothing, because later records wait for its record. ScopedReservation aborts on every exit of its scope.
//
// Growth. A ring may grow to `data_bytes`, and begins with a small part of this size (first_data_bytes). When
// a record finds no room, the ring becomes four times as large, and its memory is allocated; it never becomes
// smaller. If there is no memory, the ring is full at its current size, and tries to grow again a second
// later. A ring whose size is not configured grows only to its limit, which raise_limit() raises when it is
// known how large a saved step is.
//
// Lanes. A trainer with accelerators has one more Ring per device, created with the main ring and owned by
// it, because descriptors cannot be passed to the flusher later. A lane is sparse until take_memory(): until
// then it accepts no record, and only its control page is accessed. Its records are mostly committed by the
// device, so the oldest record may stay uncommitted for long; in a separate ring this does not delay other
// records.
// One consumer reads all lanes (lane_order.hpp). Drops are counted in the main ring, for every lane; closing
// and fork apply to all lanes.
//
// ---------------------------------------------------------------------------------------------
// Why it is correct (C++20 memory model, so x86 and ARM alike)
//
// R = control.reservation, H = control.head, C(i) = slots[i].commit, D = data, n = slots, cap = units of D
// that the ring has at present.
//
// 1. One owner. A producer owns ticket t and units [p, e) exactly when its compare-and-swap took R from
//    (t, p0) to (t + 1, e). R is one atomic object and each of its values is replaced by one successful
//    swap, so ranges of successive tickets are disjoint and in ticket order. That needs atomicity only:
//    the swap is relaxed (but see 10). (A swap fooled by R's return to an old value needs 2^24 records
//    between one thread's load and its swap.)
// 2. No unread byte is overwritten. Before its swap the producer itself loads H (acquire) and checks that
//    there are fewer than n tickets and at most cap units between H and its end. The consumer stores H
//    (release) after its last read of the bytes that it releases. The load reads that store or a later one
//    (the consumer is H's only writer), so those reads happen before the producer's plain writes. An old H is
//    only stricter.
// 3. "Full" is true. H is loaded before R. The consumer advances H only after commits, which follow their
//    swaps of R, so the later load of R is at least as new as H (coherence), and R - H cannot be negative.
//    After a failed swap both are loaded again, and also if there seems to be no room but H has moved since:
//    an old H with a new R looks fuller than the ring is.
// 4. Publication. The producer writes slot and data plainly, then stores C(i) = t + 1 (release). The consumer
//    loads C(i) (acquire) and reads only when it equals t + 1. The slot is never cleared: its possible values
//    are t + 1 and the tag of the previous lap, t + 1 - n (0 on the first lap), because H passed that ticket
//    before t could be taken, and H passes only committed tickets. n <= 2^20 < 2^24, so they differ. (If the
//    word were cleared at release, a record would be lost when the consumer is killed between clearing and
//    storing H: the next consumer would wait for a commit that has already happened. tests/cpp/model_ring.cpp
//    demonstrates this.)
// 5. Streaming stores are outside x86's ordering: commit() always runs sfence before the release store.
// 6. Two mappings of the same pages, in one process or two, are the same memory: the words are lock-free
//    and address-free.
// 7. Killed producer process. The memory survives. The consumer, whose caller has detected the end of the
//    process (pidfd), reads committed slots between H and R as before. In an uncommitted slot it reads only
//    the word, counts the record as torn, and continues. By 1 a torn record overlaps no committed record.
//    After this, no producer may write any more (control.marked_dead).
// 8. Killed consumer process. The consumer's state is head_ticket (full count) and then H. A new consumer
//    starts at H. head_ticket may be ahead of H by less than a lap (killed between the two stores); the true
//    count is the largest number that is at most head_ticket and equal to H in the low 24 bits. Records that
//    were read but not released are read again, under the same tickets.
// 9. Progress. A failed swap means that another producer succeeded. The consumer waits for the oldest
//    uncommitted record.
// 10. Growth from cap c to c', a power of two above c. Position p is at unit (p + b) mod c, with a number b
//     for each size. One thread at a time makes the ring grow. It allocates the memory, then swaps R from (t,
//     p0, size) to (t, p1, next size): p1 is the next position after p0 that was at unit 0 of c (p1 - p0 <
//     c), and b' is the number with which p1 is at unit c of c'. The size is a part of R, so a place that was
//     computed with c is taken only by a swap from an R with c. The swap is a release, and reserve() loads R
//     with acquire: b' and c' were stored before. (Later swaps are read-modify-writes, so a load that reads
//     one of them pairs with the release as well.) No unread byte is overwritten. The unread bytes at the
//     time of the growth are at units 0 to c - 1, in the order of the positions that end at p1: position p1 -
//     d, for d from 1 to 2c, is at unit (-d) mod c. From p1 on, records are first at units c to c' - 1, and
//     position p1 + (c' - c) + x is at unit x. If x is the unit of an unread position p1 - d, then x >= c -
//     d, so the two positions are c' - c + x + d >= c' apart, and the check of 2 with c' fails: a record ends
//     at most c' after H, and H is not after p1 - d. The consumer computes no place, because the slot has the
//     place of its record.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"
#include "ring/control_page.hpp"
#include "ring/counters.hpp"
#include "ring/names.hpp"
#include "ring/record.hpp"
#include "ring/ring_memory.hpp"

namespace tdcore {

class HelperPool;

/// Behavior of a capture if the ring has no room.
enum class FullPolicy : std::uint32_t {
  kBlock = 0,    // wait up to block_timeout, then drop
  kDrop = 1,     // drop immediately
  kDegrade = 2,  // store the statistics without the payload
};

struct RingConfig {
  std::uint64_t data_bytes = 0;        // maximum; power of two, 64 KiB .. 64 GiB
  std::uint64_t first_data_bytes = 0;  // at the start; 0: result of first_data_bytes()
  std::uint64_t limit_bytes = 0;       // growth ends here until raise_limit(); power of two; 0: data_bytes
  std::uint64_t slots = 0;             // power of two, 16 .. 2^20
  std::uint64_t names_bytes = std::uint64_t{256} << 20;  // maximum; power of two, 4 KiB .. 1 GiB
  FullPolicy policy = FullPolicy::kBlock;
  std::chrono::nanoseconds block_timeout = std::chrono::seconds(30);
  int threads = 1;                 // for the work of a large capture, including the caller, 1 .. 64
  std::uint32_t device_lanes = 0;  // 0 .. kMaxDeviceLanes
  std::uint64_t device_lane_bytes = std::uint64_t{256} << 20;  // data_bytes of each lane
  std::uint64_t device_lane_limit = 0;                         // limit_bytes of each lane
  std::uint64_t device_lane_slots = 16384;                     // slots of each lane
  std::uint64_t device_arena_bytes = std::uint64_t{64} << 20;  // device memory for the device of a lane
  bool step_times = false;  // whether there is a queue of times of steps (step_times.hpp)

  /// Size at which growth ends until raise_limit().
  std::uint64_t first_limit() const noexcept { return limit_bytes == 0 ? data_bytes : limit_bytes; }
};

/// Space that the holder must commit or abort, once. Empty if there was no room.
struct Reservation {
  std::byte* data = nullptr;  // aligned as requested, `bytes` long, never wraps
  std::uint64_t bytes = 0;
  std::uint64_t ticket = 0;  // modulo 2^24; data[0 .. bytes) belongs to the holder until commit or abort

  explicit operator bool() const noexcept { return data != nullptr; }
};

/// The memory of a ring in this process.
struct Mapping {
  void* base = nullptr;  // page-aligned
  std::uint64_t bytes = 0;
};

/// The commit word of a record that a device commits. The device stores `value` after all other stores of the
/// record are visible.
struct DeviceCommit {
  std::uint64_t* word = nullptr;
  std::uint64_t value = 0;
};

class Ring {
 public:
  /// Creates the memfd, allocates its memory (an error here prevents a crash later) and maps it; also for
  /// lanes. Throws std::invalid_argument (sizes, with the limit and the value) or std::system_error.
  explicit Ring(const RingConfig& config);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Reserves room for one record. Empty if the ring is full, closing or closed, in a forked child, or if
  /// bytes is 0 or above max_record_bytes(). align: 64 or 4096, alignment of the start of the record in
  /// bytes.
  [[nodiscard]] Reservation try_reserve(RecordKind kind, std::uint64_t bytes, std::uint64_t align) noexcept;

  /// Publishes the record, after a fence for streaming stores.
  void commit(const Reservation& reservation) noexcept;

  /// Leaves the commit to a device, which must store `value` to `word`, or never access the record again. The
  /// reservation ends. close() does not wait for the device; the owner of the device does. Until the word is
  /// stored, the record counts as reserved: it is read only if the trainer lives until the commit.
  [[nodiscard]] DeviceCommit hand_over(const Reservation& reservation) noexcept;

  /// Drops the record: the consumer skips it.
  void abort(const Reservation& reservation) noexcept;

  /// Policy block: waits at most block_timeout until a record of `bytes` would fit. False after a timeout.
  /// Other policies: returns false immediately. After a timeout, further calls return false immediately until
  /// the consumer has released records, so that a dead disk costs one timeout and not one per step. Call it
  /// without the GIL.
  [[nodiscard]] bool wait_for_room(std::uint64_t bytes) noexcept;

  /// Id of a name in the shared table; the same arguments return the same id. Text is UTF-8. shard: see
  /// names.hpp. Empty if the table is full, memory is short, or the ring is not usable.
  [[nodiscard]] std::optional<std::uint32_t> intern(std::string_view name, std::uint32_t kind,
                                                    std::string_view origin,
                                                    std::string_view shard = {}) noexcept;

  /// First of `entries` numbers in the order of execution within `step`, from 0. Steps may alternate: the
  /// count of a step continues as long as no step at a distance of 64, 128, ... got numbers in between.
  [[nodiscard]] std::uint32_t next_seq(std::int64_t step, std::uint32_t entries) noexcept;

  void count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept;
  void count_capture(std::uint64_t tensors, std::uint64_t payload_bytes, std::uint64_t nanoseconds) noexcept;

  /// Writes a small file of the run; it replaces an earlier file with the same key. False if the file is too
  /// large, or if there is no room under the policy.
  [[nodiscard]] bool put_document(std::string_view key, std::string_view bytes) noexcept;

  /// Writes a record without rows that marks `step` and all earlier steps as complete (-1: announces that
  /// steps will be marked). Never waits. False if there is no room; the next marker includes this one.
  [[nodiscard]] bool mark_step_end(std::int64_t step) noexcept;

  /// Adds a row to the queue of times of steps. One thread at a time. False if the queue is full, or if there
  /// is none.
  [[nodiscard]] bool put_step_time(const StepTimeRow& row) noexcept;

  /// False in a forked child and after close(). Every method checks it.
  bool usable() const noexcept { return !closed_.load(std::memory_order_relaxed) && guard_->here(); }

  std::uint64_t max_record_bytes() const noexcept {
    return max_record_bytes_;
  }  // an eighth of the first limit, at most 64 MiB
  std::uint64_t data_bytes() const noexcept { return config_.data_bytes; }
  /// Size at which growth ends. Of a lane: the size that it has, or will have.
  std::uint64_t limit_bytes() const noexcept { return limit_.load(std::memory_order_relaxed); }
  /// Lets the ring grow to `bytes`, rounded up to a power of two, and at most to data_bytes. A lane gets this
  /// size if its memory is not allocated yet. The limit never becomes smaller. Returns the limit.
  std::uint64_t raise_limit(std::uint64_t bytes) noexcept;
  /// Sets a lane that no record has used back to its first limit, and frees the rest of its memory. False if
  /// it has this size already.
  bool shrink_lane() noexcept;
  /// Time that threads have waited for room so far, including lanes.
  std::uint64_t waited_ns() const noexcept;
  /// Bytes of shared memory that were allocated so far, including lanes; 0 after close().
  std::uint64_t memory_bytes() const noexcept;
  /// Announces that records of `bytes` in total will soon be in the ring at once. A thread makes the ring
  /// large enough, within its limits, so that no capture has to. Returns immediately. A later call has an
  /// effect if its number is larger.
  void expect(std::uint64_t bytes) noexcept;
  /// The reason why the ring could not become larger at the last attempt; "" if it could, and while another
  /// attempt is in progress. Does not wait.
  std::string growth_refusal() const;
  std::uint64_t slots() const noexcept { return config_.slots; }
  FullPolicy policy() const noexcept { return config_.policy; }
  HelperPool* helpers() const noexcept {
    return helpers_.get();
  }  // null if threads is 1; for calls in progress
  int fd() const noexcept { return closed_.load(std::memory_order_relaxed) ? -1 : fd_; }  // -1 after close()

  Counters counters() const noexcept;               // after close(): the final values
  Progress progress() const;                        // state of the consumer at its last report
  std::optional<std::string> stop_request() const;  // JSON text from the consumer
  /// Whether the consumer has posted a stop request, or a request that was not taken yet. Costs some loads.
  bool was_asked() const noexcept;
  /// The waiting request, if any. Each request is returned once, to one thread.
  std::optional<std::string> take_request() const;

  /// The lanes, one per device, in the order of the devices; empty in a lane.
  std::span<const std::shared_ptr<Ring>> lanes() const noexcept { return lanes_; }
  /// Allocates a lane's memory at the first call; later calls return the same result. False, with the reason
  /// in `why`, if there is no memory. Takes about 0.3 s per GiB. A main ring has already allocated its
  /// memory.
  [[nodiscard]] bool take_memory(std::string* why = nullptr) noexcept;
  Mapping mapping() const noexcept;  // for pinning; empty in a forked child and after close()
  /// Number of records that the consumer found committed before their values had arrived. Main ring only.
  std::uint64_t early_commits() const noexcept;
  std::uint64_t device_arena_bytes() const noexcept { return config_.device_arena_bytes; }
  std::vector<int> fds() const;  // main ring first, in the order for a flusher; empty after close()

  void set_closing() noexcept;     // no further records are accepted; the consumer drains and ends
  void start_prefault() noexcept;  // writes to all pages from a separate thread; once, errors ignored
  /// Waits for calls in progress and unmaps the memory; later calls do nothing. Devices that write to the
  /// lanes must be closed first (DeviceRing). If a call does not end within 5 s, the memory stays mapped.
  void close() noexcept;

  /// The memory, for a Consumer in the same process (thread mode, tests).
  std::shared_ptr<RingMemory> memory() const noexcept;
  std::vector<std::shared_ptr<RingMemory>> memories() const;  // main first

 private:
  Ring(const RingConfig& config, std::shared_ptr<RingMemory> memory, bool taken);

  class Pin;  // counts a call in progress, so that close() can wait for it

  /// A size of the ring, in units. Position p is at unit (p + bias) modulo capacity.
  struct Size {
    std::uint64_t capacity = 0;  // a power of two
    std::uint64_t bias = 0;      // modulo 2^36
  };
  /// The place of a record: its position, and its first unit in the data.
  struct Place {
    std::uint64_t position;
    std::uint64_t unit;
  };

  static Place place(std::uint64_t position, std::uint64_t units, std::uint64_t align_units,
                     const Size& size) noexcept;
  bool may_ever_fit(std::uint64_t units) const noexcept;
  bool grow(std::uint64_t units, std::uint64_t seen) noexcept;
  bool resize(std::uint64_t capacity) noexcept;
  void grow_ahead() noexcept;
  std::uint64_t next_size(std::uint64_t index, std::uint64_t units) const noexcept;
  void set_size(std::uint64_t index) noexcept;
  bool has_room(std::uint64_t bytes) const noexcept;
  bool wait_until_room(std::uint64_t bytes) noexcept;
  Reservation reserve(RecordKind kind, std::uint64_t bytes, std::uint64_t align) noexcept;
  void publish(const Reservation& reservation) noexcept;
  void make_lanes();
  void set_lane_size(std::uint64_t bytes) noexcept;

  const RingConfig config_;
  std::atomic<std::uint64_t> limit_;  // written under grow_mutex_; relaxed: orders no other access
  const std::uint64_t max_record_bytes_;
  std::shared_ptr<RingMemory> memory_;  // constant until close() has seen users_ == 0, null after
  const std::shared_ptr<const ForkGuard> guard_;
  const int fd_;
  std::vector<std::shared_ptr<Ring>> lanes_;  // constant after construction
  // Release in take_memory(), pairs with the acquire there and in try_reserve(), for sizes_[0].
  std::atomic<bool> memory_taken_;
  std::mutex take_mutex_;  // guards the next two
  bool take_tried_ = false;
  std::string take_error_;
  // Sizes that the ring has had, by Cursor::size, and the next size in grow(). Written under grow_mutex_,
  // each before the swap that makes it current; read after the load of R that contains its index.
  std::array<Size, std::size_t{1} << kSizeBits> sizes_{};
  std::atomic<std::uint64_t> expected_units_{0};  // of expect(); relaxed: orders no other access
  std::mutex ahead_mutex_;                        // guards the next one; taken before grow_mutex_
  std::unique_ptr<std::thread> ahead_;            // thread of expect(); joined by close()
  mutable std::mutex grow_mutex_;                 // guards the next two, and sizes_
  std::chrono::steady_clock::time_point no_growth_until_{};
  std::string growth_refusal_;
  std::unique_ptr<HelperPool> helpers_;      // constant until close() has seen users_ == 0, null after
  NameWriter names_;                         // has its own mutex
  Counters final_counters_;                  // written by close(), before counters_final_
  std::uint64_t final_early_commits_ = 0;    // likewise
  std::atomic<bool> counters_final_{false};  // release in close(); pairs with the acquire in counters()
  std::atomic<bool> closed_{
      false};  // seq_cst with users_: either close() reads a user or the user reads closed_
  mutable std::atomic<std::uint32_t> users_{0};  // calls and reservations in progress
  // Word step % 64: [step:32 | next seq:32]. Compare-and-swap by the producers of a step, relaxed: atomicity
  // alone keeps the numbers distinct, and a number orders no other access.
  std::array<std::atomic<std::uint64_t>, 64> sequences_{};
  std::atomic<std::uint64_t> waited_ns_{0};  // of this ring; relaxed: a sum
  std::atomic<std::uint64_t> gave_up_at_{
      ~std::uint64_t{0}};  // H at the last timeout of a wait; relaxed: a hint between producers
};

/// Aborts on destruction unless committed.
class ScopedReservation {
 public:
  ScopedReservation(Ring& ring, Reservation reservation) noexcept : ring_(ring), reservation_(reservation) {}
  ~ScopedReservation() {
    if (reservation_) ring_.abort(reservation_);
  }
  ScopedReservation(const ScopedReservation&) = delete;
  ScopedReservation& operator=(const ScopedReservation&) = delete;

  explicit operator bool() const noexcept { return static_cast<bool>(reservation_); }
  std::byte* data() const noexcept { return reservation_.data; }
  std::uint64_t bytes() const noexcept { return reservation_.bytes; }
  void commit() noexcept {
    ring_.commit(reservation_);
    reservation_ = {};
  }

 private:
  Ring& ring_;
  Reservation reservation_;
};

}  // namespace tdcore
