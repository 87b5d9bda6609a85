#include "ring/counters.hpp"

#include <algorithm>
#include <cstring>

namespace tdcore {

Counters read_counters(const ControlPage& control) noexcept {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Counters counters;
  counters.captures = control.captures.load(kRelaxed);
  counters.tensors = control.tensors.load(kRelaxed);
  counters.payload_bytes = control.payload_bytes.load(kRelaxed);
  counters.capture_ns = control.capture_ns.load(kRelaxed);
  for (std::size_t i = 0; i < counters.drops.size(); ++i) {
    counters.drops[i] = {control.drops[i].tensors.load(kRelaxed), control.drops[i].bytes.load(kRelaxed)};
  }
  return counters;
}

Progress read_progress(const ControlPage& control) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Progress progress;
  progress.epoch = control.epoch.load(kRelaxed);
  progress.heartbeat_ns = control.heartbeat_ns.load(kRelaxed);
  progress.records = control.records.load(kRelaxed);
  progress.bytes = control.bytes.load(kRelaxed);
  progress.rows = control.rows.load(kRelaxed);
  progress.busy_ns = control.busy_ns.load(kRelaxed);
  progress.uploads = {control.durable_bytes.load(kRelaxed), control.accepted_bytes.load(kRelaxed),
                      control.upload_ns.load(kRelaxed)};
  progress.last_step = control.last_step.load(kRelaxed);
  progress.errors = control.errors.load(kRelaxed);
  // The head is loaded with acquire, then the reservation, which cannot be older than the head (ring.hpp, 3).
  // So no difference is negative.
  const Cursor head = Cursor::unpack(control.head.load(std::memory_order_acquire));
  const Cursor tail = Cursor::unpack(control.reservation.load(kRelaxed));
  progress.pending_records = tail.tickets_since(head);
  progress.pending_bytes = tail.units_since(head) * kUnitBytes;
  progress.error = read_error_text(control.error);
  return progress;
}

void add_drop(ControlPage& control, DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept {
  if (reason >= DropReason::kCount) return;
  DropTotals& totals = control.drops[static_cast<std::size_t>(reason)];
  totals.tensors.fetch_add(tensors, std::memory_order_relaxed);
  totals.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void write_error_text(ErrorText& text, const std::string& message) noexcept {
  std::uint64_t words[kErrorTextBytes / 8] = {};
  std::size_t bytes = std::min(message.size(), kErrorTextBytes);
  while (bytes < message.size() && bytes > 0 && (static_cast<unsigned char>(message[bytes]) & 0xc0) == 0x80)
    --bytes;  // so that no UTF-8 character is cut
  std::memcpy(words, message.data(), bytes);
  // Odd while writing; "| 1" also corrects the version of a consumer that was killed while writing.
  const std::uint64_t writing = text.version.load(std::memory_order_relaxed) | 1;
  text.version.store(writing, std::memory_order_relaxed);
  // Release on each word: a reader that loads a new word (acquire) then loads the odd version, or a later
  // one.
  text.bytes.store(bytes, std::memory_order_release);
  for (std::size_t i = 0; i < kErrorTextBytes / 8; ++i)
    text.words[i].store(words[i], std::memory_order_release);
  text.version.store(writing + 1, std::memory_order_release);
}

std::string read_error_text(const ErrorText& text) {
  constexpr int kTries = 100;  // a consumer killed while writing leaves an odd version forever
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const std::uint64_t before = text.version.load(std::memory_order_acquire);
    if (before == 0) return {};
    if (before % 2 == 1) continue;
    std::uint64_t words[kErrorTextBytes / 8];
    const std::uint64_t bytes = text.bytes.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kErrorTextBytes / 8; ++i)
      words[i] = text.words[i].load(std::memory_order_acquire);
    if (text.version.load(std::memory_order_relaxed) != before || bytes > kErrorTextBytes) continue;
    return std::string(reinterpret_cast<const char*>(words), bytes);
  }
  return "the text of the last error could not be read";
}

}  // namespace tdcore
