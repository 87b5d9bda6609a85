#include "consumer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace tdcore {
namespace {

/// Full count of records before `head`, from the count stored before it. A consumer killed between the two
/// stores left a count that is ahead by less than a lap; the low bits of the head say by how much.
std::uint64_t full_ticket(std::uint64_t stored, Cursor head) noexcept {
  return stored - ((stored - head.ticket) & kTicketMask);
}

using ControlWords = std::atomic<std::uint64_t>[kControlTextBytes / 8];

bool fits_control(const std::string& text) noexcept {
  return !text.empty() && text.size() <= kControlTextBytes;
}

/// Relaxed: the word that says how many there are is stored after them, with release.
void write_words(ControlWords& to, const std::string& text) noexcept {
  std::uint64_t words[kControlTextBytes / 8] = {};
  std::memcpy(words, text.data(), text.size());
  for (std::size_t i = 0; i < kControlTextBytes / 8; ++i) to[i].store(words[i], std::memory_order_relaxed);
}

}  // namespace

Consumer::Consumer(std::shared_ptr<RingMemory> memory) : memory_(std::move(memory)) {
  ControlPage& control = memory_->control();
  epoch_ = control.epoch.fetch_add(1, std::memory_order_relaxed) + 1;
  // Acquire: pairs with the release of the consumer before, so head_ticket is at least as new.
  const Cursor head = Cursor::unpack(control.head.load(std::memory_order_acquire));
  cursor_ = {head, full_ticket(control.head_ticket.load(std::memory_order_relaxed), head)};
  released_ = cursor_;
  finish_torn_count();
}

/// Second half of the count begun in release(): when the head is where the note says, its total is the total.
/// Storing it twice does no harm, and a note for a release that did not happen is ignored and written again.
void Consumer::finish_torn_count() noexcept {
  ControlPage& control = memory_->control();
  if (released_.ticket == 0 || control.torn_ticket.load(std::memory_order_relaxed) != released_.ticket)
    return;
  control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.store(
      control.torn_total.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

bool Consumer::place_is_sound(const Slot& slot) const noexcept {
  const std::uint64_t cap = memory_->data_bytes() / kUnitBytes;
  const std::uint64_t bytes = slot.bytes;
  if (bytes == 0 || bytes > max_record_bytes()) return false;
  const std::uint64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  const std::uint64_t gap = (slot.position - cursor_.cursor.position) & kPositionMask;
  return slot.position <= kPositionMask && gap + units <= cap && (slot.position & (cap - 1)) + units <= cap;
}

RecordView Consumer::skip_torn(bool producer_dead) noexcept {
  ControlPage& control = memory_->control();
  RecordView view;
  view.ticket = cursor_.ticket;
  view.torn = true;
  cursor_.cursor.ticket = (cursor_.cursor.ticket + 1) & kTicketMask;
  ++cursor_.ticket;
  if (producer_dead) {
    control.abandoned.store(1, std::memory_order_relaxed);  // a guard against a wrong verdict; orders nothing
    // Its place is unknown, so the position stays and the next sound record moves it; after the last one, all
    // is free.
    const Cursor tail = Cursor::unpack(control.reservation.load(std::memory_order_relaxed));
    if (tail.tickets_since(cursor_.cursor) == 0) cursor_.cursor.position = tail.position;
  }
  return view;
}

std::optional<RecordView> Consumer::next(bool producer_dead) noexcept {
  if (!memory_->here()) return std::nullopt;
  const std::uint64_t ticket = cursor_.cursor.ticket;
  const Slot& slot = memory_->slots()[ticket & (memory_->slot_count() - 1)];
  if (slot.commit.load(std::memory_order_acquire) ==
      ticket + 1) {  // pairs with the release in Ring::publish()
    if (!place_is_sound(slot)) return skip_torn(producer_dead);
    RecordView view;
    view.data = memory_->data() + (slot.position & (memory_->data_bytes() / kUnitBytes - 1)) * kUnitBytes;
    view.bytes = slot.bytes;
    view.ticket = cursor_.ticket;
    view.kind = static_cast<RecordKind>(slot.kind);
    cursor_.cursor = Cursor{(ticket + 1) & kTicketMask,
                            (slot.position + (view.bytes + kUnitBytes - 1) / kUnitBytes) & kPositionMask};
    ++cursor_.ticket;
    return view;
  }
  if (!producer_dead) return std::nullopt;
  const Cursor tail = Cursor::unpack(memory_->control().reservation.load(std::memory_order_relaxed));
  const std::uint64_t reserved = tail.tickets_since(cursor_.cursor);
  if (reserved == 0 || reserved > memory_->slot_count())
    return std::nullopt;  // none left, or a word that cannot be true
  return skip_torn(true);
}

void Consumer::release(const Mark& first, const Mark& end, std::uint64_t torn) {
  if (!memory_->here()) return;
  ControlPage& control = memory_->control();
  if (first.ticket != released_.ticket) {
    throw std::logic_error("records must be released in order: expected ticket " +
                           std::to_string(released_.ticket) + ", got " + std::to_string(first.ticket));
  }
  if (end.ticket < first.ticket || end.ticket > cursor_.ticket) {
    throw std::logic_error("cannot release up to ticket " + std::to_string(end.ticket) + ": read up to " +
                           std::to_string(cursor_.ticket));
  }
  std::uint64_t expected = released_.cursor.pack();
  const bool alone = control.epoch.load(std::memory_order_relaxed) == epoch_;
  if (alone && end.ticket != first.ticket) {
    if (torn > 0) {
      // Release: in this order for whoever attaches after we were killed, so that a note is whole or void.
      const std::uint64_t counted =
          control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors.load(std::memory_order_relaxed);
      control.torn_ticket.store(~std::uint64_t{0}, std::memory_order_release);
      control.torn_total.store(counted + torn, std::memory_order_release);
      control.torn_ticket.store(end.ticket, std::memory_order_release);
    }
    control.head_ticket.store(end.ticket, std::memory_order_relaxed);  // before head; see full_ticket()
    // Release: pairs with the acquire in Ring::reserve(); all our reads of these records are done.
    // A swap, not a store: a consumer that was thought dead and woke up must not move the head back.
    if (control.head.compare_exchange_strong(expected, end.cursor.pack(), std::memory_order_release,
                                             std::memory_order_relaxed)) {
      released_ = end;
      if (torn > 0) finish_torn_count();
      return;
    }
  }
  if (!alone || expected != released_.cursor.pack()) {
    throw std::logic_error(
        "another consumer has attached to this ring; what this one read since then is void");
  }
}

bool Consumer::closing() const noexcept {
  return memory_->here() &&
         memory_->control().closing.load(std::memory_order_acquire) != 0;  // pairs with Ring::set_closing()
}

std::uint64_t Consumer::pending_records() const noexcept {
  if (!memory_->here()) return 0;
  const ControlPage& control = memory_->control();
  const Cursor head =
      Cursor::unpack(control.head.load(std::memory_order_acquire));  // before the reservation (ring.hpp, 3)
  return Cursor::unpack(control.reservation.load(std::memory_order_relaxed)).tickets_since(head);
}

std::uint64_t Consumer::pending_bytes() const noexcept {
  if (!memory_->here()) return 0;
  const ControlPage& control = memory_->control();
  const Cursor head =
      Cursor::unpack(control.head.load(std::memory_order_acquire));  // before the reservation (ring.hpp, 3)
  return Cursor::unpack(control.reservation.load(std::memory_order_relaxed)).units_since(head) * kUnitBytes;
}

void Consumer::count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept {
  if (memory_->here()) add_drop(memory_->control(), reason, tensors, bytes);
}

void Consumer::report(std::uint64_t records, std::uint64_t bytes, std::uint64_t rows, std::int64_t last_step,
                      const std::string* error) noexcept {
  if (!memory_->here()) return;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // hints for progress(); they order nothing
  ControlPage& control = memory_->control();
  control.records.fetch_add(records, kRelaxed);
  control.bytes.fetch_add(bytes, kRelaxed);
  control.rows.fetch_add(rows, kRelaxed);
  control.last_step.store(std::max(control.last_step.load(kRelaxed), last_step), kRelaxed);
  if (error != nullptr) {
    write_error_text(control.error, *error);
    if (!error->empty()) control.errors.fetch_add(1, kRelaxed);  // empty: the trouble is over
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  control.heartbeat_ns.store(static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()), kRelaxed);
}

bool Consumer::request_stop(const std::string& text) noexcept {
  if (!memory_->here() || !fits_control(text)) return false;
  ControlPage& control = memory_->control();
  if (control.stop_bytes.load(std::memory_order_relaxed) != 0) return true;  // the first request stands
  write_words(control.stop_words, text);
  control.stop_bytes.store(text.size(),
                           std::memory_order_release);  // pairs with the acquire in Ring::stop_request()
  return true;
}

bool Consumer::try_post_request(const std::string& text) noexcept {
  if (!memory_->here() || !fits_control(text)) return false;
  ControlPage& control = memory_->control();
  const std::uint64_t posted = control.requests_posted.load(std::memory_order_relaxed);  // ours alone
  // Acquire: pairs with the release in Ring::take_request(); the trainer has read the words.
  if (control.requests_taken.load(std::memory_order_acquire) != posted) return false;
  write_words(control.request_words, text);
  control.request_bytes.store(text.size(), std::memory_order_relaxed);
  control.requests_posted.store(posted + 1,
                                std::memory_order_release);  // pairs with the acquire in Ring::take_request()
  return true;
}

std::uint64_t Consumer::requests_posted() const noexcept {
  return memory_->here() ? memory_->control().requests_posted.load(std::memory_order_relaxed) : 0;
}

}  // namespace tdcore
