#include "ring/consumer/consumer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace tdcore {
namespace {

/// Full count of records before `head`, from the count that was stored before `head`. A consumer that was
/// killed between the two stores left a count that is ahead by less than a lap; the low bits of the head give
/// the difference.
std::uint64_t full_ticket(std::uint64_t stored, Cursor head) noexcept {
  return stored - ((stored - head.ticket) & kTicketMask);
}

using ControlWords = std::atomic<std::uint64_t>[kControlTextBytes / 8];

bool fits_control(const std::string& text) noexcept {
  return !text.empty() && text.size() <= kControlTextBytes;
}

/// Relaxed: the word with the number of bytes is stored after them, with release.
void write_words(ControlWords& to, const std::string& text) noexcept {
  std::uint64_t words[kControlTextBytes / 8] = {};
  std::memcpy(words, text.data(), text.size());
  for (std::size_t i = 0; i < kControlTextBytes / 8; ++i) to[i].store(words[i], std::memory_order_relaxed);
}

struct Backlog {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
};

/// Records and bytes that are reserved in a lane and not released. Zero in a forked child.
Backlog backlog_of(const RingMemory& lane) noexcept {
  if (!lane.here()) return {};
  const ControlPage& control = lane.control();
  const Cursor head =
      Cursor::unpack(control.head.load(std::memory_order_acquire));  // before the reservation (ring.hpp, 3)
  const Cursor tail = Cursor::unpack(control.reservation.load(std::memory_order_relaxed));
  return {tail.tickets_since(head), tail.units_since(head) * kUnitBytes};
}

/// Data bytes to which the lane may grow. Relaxed: a hint. The full size in a forked child.
std::uint64_t data_limit(const RingMemory& lane) noexcept {
  if (!lane.here()) return lane.data_bytes();
  const std::uint64_t limit = lane.control().data_limit.load(std::memory_order_relaxed);
  return limit == 0 ? lane.data_bytes() : std::min(limit, lane.data_bytes());
}

}  // namespace

Consumer::Consumer(std::shared_ptr<RingMemory> memory)
    : Consumer(std::vector<std::shared_ptr<RingMemory>>{std::move(memory)}) {}

Consumer::Consumer(std::vector<std::shared_ptr<RingMemory>> lanes)
    : lanes_(std::move(lanes)), order_(lanes_), chooser_(lanes_) {
  check_lanes();
  for (const std::shared_ptr<RingMemory>& lane : lanes_) data_.push_back(lane->data());
  ControlPage& control = memory()->control();
  epoch_ = control.epoch.fetch_add(1, std::memory_order_relaxed) + 1;
  if (lanes_.size() > 1) {
    cursor_ = order_.recover();
    released_ = cursor_;
    return;
  }
  // Acquire: pairs with the release of the previous consumer, so head_ticket is at least as new.
  const Cursor head = Cursor::unpack(control.head.load(std::memory_order_acquire));
  cursor_.lanes[0] = head;
  cursor_.ticket = full_ticket(control.head_ticket.load(std::memory_order_relaxed), head);
  released_ = cursor_;
  finish_torn_count();
}

void Consumer::check_lanes() const {
  if (lanes_.empty()) throw std::invalid_argument("a consumer needs the descriptor of a ring");
  const ControlPage& main = lanes_[0]->control();
  if (main.device_lanes + std::size_t{1} != lanes_.size()) {
    throw std::invalid_argument("this ring has " + std::to_string(main.device_lanes) +
                                " device lanes, got the descriptors of " + std::to_string(lanes_.size() - 1) +
                                "; pass all descriptors of Ring.fds, in their order");
  }
  std::uint64_t slots = 0;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const ControlPage& control = lanes_[lane]->control();
    slots += lanes_[lane]->slot_count();
    if (lane > 0 && (control.family != main.family || control.lane != lane)) {
      throw std::invalid_argument(
          "descriptor " + std::to_string(lane) +
          " is not that lane of this ring; pass all descriptors of Ring.fds, in order");
    }
  }
  if (lanes_.size() > 1 && lanes_[0]->order_entries() < slots)
    throw std::invalid_argument("this ring is too small to store the order of the records of its lanes");
}

/// Second half of the count that release() begins: if the head is at the place in the note, the total in the
/// note is valid. Storing it twice does no harm. A note of a release that did not happen is ignored and
/// overwritten.
void Consumer::finish_torn_count() noexcept {
  ControlPage& control = memory()->control();
  if (released_.ticket == 0 || control.note_ticket.load(std::memory_order_relaxed) != released_.ticket)
    return;
  control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.store(
      control.note_torn.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

RecordView Consumer::take(std::uint32_t lane, const Found& found) noexcept {
  RecordView view = found.view;
  view.lane = lane;
  view.ticket = cursor_.ticket++;
  cursor_.lanes[lane] = found.after;
  early_[lane] = false;
  return view;
}

/// Protects the ring if the producer was wrongly considered dead. Relaxed: the flag orders no other access.
void Consumer::mark_dead() noexcept {
  for (const std::shared_ptr<RingMemory>& lane : lanes_)
    lane->control().marked_dead.store(1, std::memory_order_relaxed);
}

void Consumer::count_early(std::uint32_t lane) noexcept {
  if (early_[lane]) return;
  early_[lane] = true;
  memory()->control().early_commits.fetch_add(1, std::memory_order_relaxed);
}

std::optional<RecordView> Consumer::next(bool producer_dead) noexcept {
  if (!usable()) return std::nullopt;
  return lanes_.size() == 1 ? next_of_one(producer_dead) : next_of_all(producer_dead);
}

std::optional<RecordView> Consumer::next_of_one(bool producer_dead) noexcept {
  const Found found = look(*lanes_[0], cursor_.lanes[0], producer_dead);
  if (found.what == Found::What::kEarly) count_early(0);
  if (found.what == Found::What::kNothing || found.what == Found::What::kEarly) return std::nullopt;
  if (found.left_behind) mark_dead();
  return take(0, found);
}

std::optional<RecordView> Consumer::next_of_all(bool producer_dead) noexcept {
  std::optional<LaneOrder::Word> word = order_.at(cursor_.ticket);
  if (!word) {
    const auto early = [this](std::uint32_t lane) { count_early(lane); };
    const std::optional<LaneChooser::Choice> choice = chooser_.choose(cursor_, producer_dead, early);
    if (!choice) return std::nullopt;
    if (choice->found.left_behind) mark_dead();
    const bool torn = choice->found.what == Found::What::kTorn;
    if (order_.append(cursor_.ticket, {choice->lane, torn})) return take(choice->lane, choice->found);
    word = order_.at(cursor_.ticket);  // another consumer has attached, and has written the word first
    if (!word) return std::nullopt;
  }
  const RingMemory& lane = *lanes_[word->lane];
  const Cursor at = cursor_.lanes[word->lane];
  const Found found = word->torn ? look_at_torn(lane, at) : look(lane, at, producer_dead);
  if (found.what == Found::What::kNothing || found.what == Found::What::kEarly) return std::nullopt;
  return take(word->lane, found);
}

void Consumer::release(const Mark& first, const Mark& end, std::uint64_t torn) {
  if (!usable()) return;
  if (first.ticket != released_.ticket) {
    throw std::logic_error("records must be released in order: expected ticket " +
                           std::to_string(released_.ticket) + ", got " + std::to_string(first.ticket));
  }
  if (end.ticket < first.ticket || end.ticket > cursor_.ticket) {
    throw std::logic_error("cannot release up to ticket " + std::to_string(end.ticket) + ": read up to " +
                           std::to_string(cursor_.ticket));
  }
  bool alone = memory()->control().epoch.load(std::memory_order_relaxed) == epoch_;
  if (alone && end.ticket != first.ticket) {
    alone = lanes_.size() == 1 ? release_one(end, torn) : order_.release(released_, end, torn);
    if (alone) released_ = end;
    if (alone && lanes_.size() == 1 && torn > 0) finish_torn_count();
  }
  if (!alone) {
    throw std::logic_error(
        "another consumer has attached to this ring; records that this consumer read since then are void");
  }
}

/// False if the head is not where this consumer has stored it.
bool Consumer::release_one(const Mark& end, std::uint64_t torn) noexcept {
  ControlPage& control = memory()->control();
  if (torn > 0) {
    // Release: in this order for a consumer that attaches after a kill, so that a note is complete or void.
    const std::uint64_t counted =
        control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.load(std::memory_order_relaxed);
    control.note_ticket.store(~std::uint64_t{0}, std::memory_order_release);
    control.note_torn.store(counted + torn, std::memory_order_release);
    control.note_ticket.store(end.ticket, std::memory_order_release);
  }
  control.head_ticket.store(end.ticket, std::memory_order_relaxed);  // before head; see full_ticket()
  // Release: pairs with the acquire in Ring::reserve(); this consumer's reads of these records are done. A
  // swap, not a store: a consumer that was considered dead and wakes up must not move the head back.
  std::uint64_t expected = released_.lanes[0].pack();
  return control.head.compare_exchange_strong(expected, end.lanes[0].pack(), std::memory_order_release,
                                              std::memory_order_relaxed);
}

bool Consumer::closing() const noexcept {
  return memory()->here() &&
         memory()->control().closing.load(std::memory_order_acquire) != 0;  // pairs with Ring::set_closing()
}

std::uint64_t Consumer::pending_records() const noexcept {
  std::uint64_t records = 0;
  for (const std::shared_ptr<RingMemory>& lane : lanes_) records += backlog_of(*lane).records;
  return records;
}

std::uint64_t Consumer::pending_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const std::shared_ptr<RingMemory>& lane : lanes_) bytes += backlog_of(*lane).bytes;
  return bytes;
}

std::uint64_t Consumer::data_bytes() const noexcept {
  std::uint64_t least = data_limit(*memory());
  for (const std::shared_ptr<RingMemory>& lane : lanes_) least = std::min(least, data_limit(*lane));
  return least;
}

std::uint64_t Consumer::slots() const noexcept {
  std::uint64_t least = memory()->slot_count();
  for (const std::shared_ptr<RingMemory>& lane : lanes_) least = std::min(least, lane->slot_count());
  return least;
}

double Consumer::fill() const noexcept {
  double most = 0;
  for (const std::shared_ptr<RingMemory>& lane : lanes_) {
    const Backlog there = backlog_of(*lane);
    most = std::max(most, static_cast<double>(there.bytes) / static_cast<double>(data_limit(*lane)));
    most = std::max(most, static_cast<double>(there.records) / static_cast<double>(lane->slot_count()));
  }
  return most;
}

std::uint64_t Consumer::early_commits() const noexcept {
  return usable() ? memory()->control().early_commits.load(std::memory_order_relaxed) : 0;
}

void Consumer::count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept {
  if (memory()->here()) add_drop(memory()->control(), reason, tensors, bytes);
}

void Consumer::report(std::uint64_t records, std::uint64_t bytes, std::uint64_t rows, std::int64_t last_step,
                      const std::string* error, std::uint64_t busy_ns, const UploadTotals& uploads) noexcept {
  if (!memory()->here()) return;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // hints for progress(), which order no other access
  ControlPage& control = memory()->control();
  control.records.fetch_add(records, kRelaxed);
  control.bytes.fetch_add(bytes, kRelaxed);
  control.rows.fetch_add(rows, kRelaxed);
  control.busy_ns.fetch_add(busy_ns, kRelaxed);
  control.durable_bytes.fetch_add(uploads.durable_bytes, kRelaxed);
  control.accepted_bytes.fetch_add(uploads.accepted_bytes, kRelaxed);
  control.upload_ns.fetch_add(uploads.upload_ns, kRelaxed);
  control.last_step.store(std::max(control.last_step.load(kRelaxed), last_step), kRelaxed);
  if (error != nullptr) {
    write_error_text(control.error, *error);
    if (!error->empty()) control.errors.fetch_add(1, kRelaxed);  // empty: the error is over
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  control.heartbeat_ns.store(static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()), kRelaxed);
}

bool Consumer::request_stop(const std::string& text) noexcept {
  if (!memory()->here() || !fits_control(text)) return false;
  ControlPage& control = memory()->control();
  if (control.stop_bytes.load(std::memory_order_relaxed) != 0) return true;  // the first request stays
  write_words(control.stop_words, text);
  control.stop_bytes.store(text.size(),
                           std::memory_order_release);  // pairs with the acquire in Ring::stop_request()
  return true;
}

bool Consumer::try_post_request(const std::string& text) noexcept {
  if (!memory()->here() || !fits_control(text)) return false;
  ControlPage& control = memory()->control();
  const std::uint64_t posted = control.requests_posted.load(std::memory_order_relaxed);  // written only here
  // Acquire: pairs with the release in Ring::take_request(); the trainer has read the words.
  if (control.requests_taken.load(std::memory_order_acquire) != posted) return false;
  write_words(control.request_words, text);
  control.request_bytes.store(text.size(), std::memory_order_relaxed);
  control.requests_posted.store(posted + 1,
                                std::memory_order_release);  // pairs with the acquire in Ring::take_request()
  return true;
}

std::uint64_t Consumer::requests_posted() const noexcept {
  return memory()->here() ? memory()->control().requests_posted.load(std::memory_order_relaxed) : 0;
}

std::uint64_t Consumer::pending_step_times() const noexcept {
  if (!usable()) return 0;
  const ControlPage& control = memory()->control();
  // Acquire: pairs with the release in Ring::put_step_time(); the rows below the head may be read. The tail
  // is stored by this consumer, or by a consumer that has ended.
  const std::uint64_t count =
      control.step_head.load(std::memory_order_acquire) - control.step_tail.load(std::memory_order_relaxed);
  return std::min(count, memory()->step_row_count());
}

std::vector<StepTimeRow> Consumer::step_times(std::size_t most) const {
  const auto count = std::min<std::uint64_t>(most, pending_step_times());
  std::vector<StepTimeRow> rows;
  if (count == 0) return rows;
  rows.reserve(count);
  const std::uint64_t tail = memory()->control().step_tail.load(std::memory_order_relaxed);
  for (std::uint64_t i = 0; i < count; ++i)
    rows.push_back(memory()->step_rows()[(tail + i) % memory()->step_row_count()]);
  return rows;
}

void Consumer::release_step_times(std::uint64_t count) noexcept {
  if (!usable()) return;
  ControlPage& control = memory()->control();
  const std::uint64_t tail = control.step_tail.load(std::memory_order_relaxed);
  // Release: pairs with the acquire in Ring::put_step_time(); the rows were read.
  control.step_tail.store(tail + std::min(count, pending_step_times()), std::memory_order_release);
}

}  // namespace tdcore
