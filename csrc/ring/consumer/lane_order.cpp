#include "ring/consumer/lane_order.hpp"

namespace tdcore {
namespace {

constexpr unsigned kTagShift = 8;
constexpr std::uint64_t kTornBit = 0x80;
constexpr std::uint64_t kLaneMask = 0x7f;

std::atomic<std::uint64_t>& torn_total(ControlPage& control) noexcept {
  return control.drops[static_cast<std::size_t>(DropReason::kTorn)].tensors;
}

}  // namespace

std::atomic<std::uint64_t>& LaneOrder::place(std::uint64_t ticket) const noexcept {
  const RingMemory& main = *lanes_[0];
  return main.order()[ticket & (main.order_entries() - 1)];
}

std::optional<LaneOrder::Word> LaneOrder::at(std::uint64_t ticket) const noexcept {
  const std::uint64_t word = place(ticket).load(std::memory_order_acquire);  // pairs with append()
  const Word found{static_cast<std::uint32_t>(word & kLaneMask), (word & kTornBit) != 0};
  if (word >> kTagShift != ticket + 1 || found.lane >= lanes_.size()) return std::nullopt;
  return found;
}

bool LaneOrder::append(std::uint64_t ticket, Word word) noexcept {
  std::atomic<std::uint64_t>& at_ticket = place(ticket);
  std::uint64_t before = at_ticket.load(std::memory_order_relaxed);
  if (before >> kTagShift == ticket + 1) return false;
  const std::uint64_t after = ((ticket + 1) << kTagShift) | (word.torn ? kTornBit : 0) | word.lane;
  // Release: pairs with the acquire in at(), see 5.
  return at_ticket.compare_exchange_strong(before, after, std::memory_order_release,
                                           std::memory_order_relaxed);
}

void LaneOrder::finish() noexcept {
  ControlPage& control = lanes_[0]->control();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    // Release: pairs with the acquire in Ring::reserve(). Relaxed loads: the caller has read the note's
    // ticket with acquire, or has written the note.
    lanes_[lane]->control().head.store(control.note_heads[lane].load(std::memory_order_relaxed),
                                       std::memory_order_release);
  }
  torn_total(control).store(control.note_torn.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

Mark LaneOrder::recover() noexcept {
  ControlPage& control = lanes_[0]->control();
  Mark mark;
  // Acquire: both pair with the release in release(), by the previous consumer.
  mark.ticket = control.head_ticket.load(std::memory_order_acquire);
  if (mark.ticket != 0 && control.note_ticket.load(std::memory_order_acquire) == mark.ticket) finish();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
    mark.lanes[lane] = Cursor::unpack(lanes_[lane]->control().head.load(std::memory_order_acquire));
  return mark;
}

bool LaneOrder::release(const Mark& first, const Mark& end, std::uint64_t torn) noexcept {
  ControlPage& control = lanes_[0]->control();
  const std::uint64_t counted = torn_total(control).load(std::memory_order_relaxed);
  // Each store is a release, in this order for a consumer that attaches after a kill.
  control.note_ticket.store(~std::uint64_t{0}, std::memory_order_release);
  control.note_torn.store(counted + torn, std::memory_order_release);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
    control.note_heads[lane].store(end.lanes[lane].pack(), std::memory_order_release);
  control.note_ticket.store(end.ticket, std::memory_order_release);
  std::uint64_t expected = first.ticket;
  if (!control.head_ticket.compare_exchange_strong(expected, end.ticket, std::memory_order_release,
                                                   std::memory_order_relaxed)) {
    return false;
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    // Release: pairs with the acquire in Ring::reserve(); this consumer's reads of these records are done. A
    // swap: if this consumer was considered dead meanwhile, the next consumer has stored the same value, and
    // may have stored later values.
    std::uint64_t before = first.lanes[lane].pack();
    (void)lanes_[lane]->control().head.compare_exchange_strong(
        before, end.lanes[lane].pack(), std::memory_order_release, std::memory_order_relaxed);
  }
  if (control.note_ticket.load(std::memory_order_relaxed) == end.ticket)
    torn_total(control).store(counted + torn, std::memory_order_relaxed);
  return true;
}

}  // namespace tdcore
