#include "ring/ring.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "base/helper_pool.hpp"
#include "base/leak.hpp"
#include "ring/ring_pin.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tdcore {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 20;
constexpr nanoseconds kFirstPause = microseconds(20);
constexpr nanoseconds kLongestPause = microseconds(1000);
constexpr nanoseconds kRingCloseTimeout = std::chrono::seconds(5);
constexpr int kMaxThreads = 64;

void pause_for(nanoseconds duration) noexcept {
  timespec time{};
  time.tv_sec = static_cast<std::time_t>(duration.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(duration.count() % 1'000'000'000);
  (void)::nanosleep(&time, nullptr);  // may be cut short by a signal; the caller checks again
}

/// Makes streaming stores of earlier copies visible before later stores (ring.hpp, 5).
void fence_streaming_stores() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

const RingConfig& checked(const RingConfig& config) {
  if (config.block_timeout < nanoseconds::zero()) {
    throw std::invalid_argument("block_timeout must not be negative, got " +
                                std::to_string(config.block_timeout.count()) + " ns");
  }
  if (config.threads < 1 || config.threads > kMaxThreads) {
    throw std::invalid_argument("threads must be from 1 to " + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(config.threads));
  }
  if (config.policy > FullPolicy::kDegrade)
    throw std::invalid_argument("policy must be block, drop or degrade");
  if (config.limit_bytes > config.data_bytes ||
      (config.limit_bytes != 0 && !std::has_single_bit(config.limit_bytes))) {
    throw std::invalid_argument("limit_bytes must be a power of two, at most data_bytes, got " +
                                std::to_string(config.limit_bytes));
  }
  if (config.device_lanes > kMaxDeviceLanes) {
    throw std::invalid_argument("device_lanes must be from 0 to " + std::to_string(kMaxDeviceLanes) +
                                ", got " + std::to_string(config.device_lanes));
  }
  return config;
}

/// Sizes of the main ring. Its order has an entry for every record that can be in all lanes at once.
Sizes sizes_of(const RingConfig& config) {
  constexpr std::uint64_t kMostSlots = std::uint64_t{1} << 20;  // the lanes reject more
  const std::uint64_t records =
      config.slots + config.device_lanes * std::min(config.device_lane_slots, kMostSlots);
  return {config.data_bytes, config.slots, config.names_bytes,
          config.device_lanes == 0 ? 0 : std::bit_ceil(records), config.step_times ? kStepTimeRows : 0};
}

std::uint64_t first_of(const RingConfig& config) noexcept {
  return config.first_data_bytes == 0 ? first_data_bytes(config.first_limit()) : config.first_data_bytes;
}

/// The first `bytes` of a text of the control page. Relaxed: the caller has made a load with acquire.
std::string read_words(const std::atomic<std::uint64_t> (&from)[kControlTextBytes / 8], std::uint64_t bytes) {
  std::uint64_t words[kControlTextBytes / 8];
  for (std::size_t i = 0; i < kControlTextBytes / 8; ++i) words[i] = from[i].load(std::memory_order_relaxed);
  return std::string(reinterpret_cast<const char*>(words), std::min<std::uint64_t>(bytes, kControlTextBytes));
}

std::int64_t wall_clock_ns() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<nanoseconds>(now).count();
}

}  // namespace

Ring::Ring(const RingConfig& config)
    : Ring(config, RingMemory::create(sizes_of(checked(config)), first_of(config)), true) {
  if (config.device_lanes > 0) make_lanes();
}

Ring::Ring(const RingConfig& config, std::shared_ptr<RingMemory> memory, bool taken)
    : config_(config),
      limit_(config.first_limit()),
      max_record_bytes_(std::min(config.first_limit() / 8, kMaxRecordBytes)),
      memory_(std::move(memory)),
      guard_(memory_->guard()),
      fd_(memory_->fd()),
      memory_taken_(taken),
      helpers_(config.threads > 1 ? std::make_unique<HelperPool>(config.threads - 1, guard_) : nullptr) {
  // A lane allocates all of its memory at once, or none.
  sizes_[0].capacity = (taken ? first_of(config) : config.first_limit()) / kUnitBytes;
  memory_->control().data_limit.store(config.first_limit(), std::memory_order_relaxed);
}

Ring::~Ring() {
  close();
  if (!guard_->here()) (void)ahead_.release();  // a thread of the parent
  if (memory_ && guard_->here()) {              // still in use: stays mapped
    leak_on_purpose(std::move(helpers_));
    leak_on_purpose(std::shared_ptr<RingMemory>(memory_));
    leak_on_purpose(std::vector<std::shared_ptr<Ring>>(lanes_));
  }
}

/// The place of a record of `units` when the ring's end is at `position`: aligned, and in one piece. The
/// capacity is a power of two that divides 2^36, so places stay continuous when the position wraps.
Ring::Place Ring::place(std::uint64_t position, std::uint64_t units, std::uint64_t align_units,
                        const Size& size) noexcept {
  const std::uint64_t at = position + size.bias;
  std::uint64_t start = round_up(at, align_units);
  if ((start & (size.capacity - 1)) + units > size.capacity) start = round_up(start, size.capacity);
  return {start - size.bias, start & (size.capacity - 1)};
}

Reservation Ring::reserve(RecordKind kind, std::uint64_t bytes, std::uint64_t align) noexcept {
  ControlPage& control = memory_->control();
  const std::uint64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  for (;;) {
    // Acquire: pairs with the release in Consumer::release(); released records may be overwritten.
    const std::uint64_t head_word = control.head.load(std::memory_order_acquire);
    const Cursor head = Cursor::unpack(head_word);
    // Loaded after head, so never older. Acquire: pairs with the release in grow(), for sizes_.
    std::uint64_t word = control.reservation.load(std::memory_order_acquire);
    const Cursor tail = Cursor::unpack(word);
    const Size& size = sizes_[tail.size];
    const Place start = place(tail.position, units, align / kUnitBytes, size);
    const Cursor end{tail.ticket + 1, start.position + units, tail.size};
    if (tail.tickets_since(head) >= config_.slots || end.units_since(head) > size.capacity) [[unlikely]] {
      if (control.head.load(std::memory_order_relaxed) != head_word)
        continue;  // not full: the loaded head was old
      if (tail.tickets_since(head) < config_.slots && grow(units, tail.size)) continue;
      return {};
    }
    const std::uint64_t next = Cursor::advance(word, end.position);
    if (!control.reservation.compare_exchange_weak(word, next, std::memory_order_relaxed)) continue;
    Slot& slot = memory_->slots()[tail.ticket & (config_.slots - 1)];
    slot.position = start.position & kPositionMask;
    slot.offset = start.unit * kUnitBytes;
    slot.bytes = bytes;
    slot.kind = static_cast<std::uint32_t>(kind);
    return {memory_->data() + start.unit * kUnitBytes, bytes, tail.ticket};
  }
}

Reservation Ring::try_reserve(RecordKind kind, std::uint64_t bytes, std::uint64_t align) noexcept {
  if (bytes - 1 >= max_record_bytes_ || (align != kUnitBytes && align != kPageBytes)) return {};  // 0 wraps
  Pin pin(*this);
  if (!pin || !memory_taken_.load(std::memory_order_acquire)) return {};
  const ControlPage& control = memory_->control();
  if (control.closing.load(std::memory_order_relaxed) != 0 ||
      control.marked_dead.load(std::memory_order_relaxed) != 0)
    return {};
  const Reservation reservation = reserve(kind, bytes, align);
  if (reservation) pin.keep();
  return reservation;
}

void Ring::publish(const Reservation& reservation) noexcept {
  Slot& slot = memory_->slots()[reservation.ticket & (config_.slots - 1)];
  fence_streaming_stores();
  slot.commit.store(reservation.ticket + 1,
                    std::memory_order_release);  // pairs with the acquire in Consumer::next()
  Pin::leave(*this);
}

void Ring::commit(const Reservation& reservation) noexcept {
  if (reservation && guard_->here()) publish(reservation);
}

DeviceCommit Ring::hand_over(const Reservation& reservation) noexcept {
  if (!reservation || !guard_->here()) return {};
  Slot& slot = memory_->slots()[reservation.ticket & (config_.slots - 1)];
  fence_streaming_stores();
  Pin::leave(*this);
  return {reinterpret_cast<std::uint64_t*>(&slot.commit), reservation.ticket + 1};
}

void Ring::abort(const Reservation& reservation) noexcept {
  if (!reservation || !guard_->here()) return;
  memory_->slots()[reservation.ticket & (config_.slots - 1)].kind =
      static_cast<std::uint32_t>(RecordKind::kAborted);
  publish(reservation);
}

bool Ring::has_room(std::uint64_t bytes) const noexcept {
  const ControlPage& control = memory_->control();
  const std::uint64_t units = (bytes + kUnitBytes - 1) / kUnitBytes;
  const Cursor head = Cursor::unpack(
      control.head.load(std::memory_order_acquire));  // before the reservation, as in reserve()
  const Cursor tail = Cursor::unpack(control.reservation.load(std::memory_order_acquire));  // likewise
  const Size& size = sizes_[tail.size];
  const Cursor end{tail.ticket + 1,
                   place(tail.position, units, kPageBytes / kUnitBytes, size).position + units};
  return tail.tickets_since(head) < config_.slots && end.units_since(head) <= size.capacity;
}

bool Ring::wait_for_room(std::uint64_t bytes) noexcept {
  if (config_.policy != FullPolicy::kBlock || bytes > max_record_bytes_) return false;
  const Pin pin(*this);
  if (!pin) return false;
  const ControlPage& control = memory_->control();
  // Relaxed: a hint. Two producers that time out together store the same word.
  if (gave_up_at_.load(std::memory_order_relaxed) == control.head.load(std::memory_order_relaxed) ||
      !may_ever_fit((bytes + kUnitBytes - 1) / kUnitBytes)) {
    return has_room(bytes);
  }
  const Clock::time_point start = Clock::now();
  const bool found = wait_until_room(bytes);
  const nanoseconds waited = Clock::now() - start;
  waited_ns_.fetch_add(static_cast<std::uint64_t>(waited.count()), std::memory_order_relaxed);
  return found;
}

/// The waiting of wait_for_room(), with a Pin.
bool Ring::wait_until_room(std::uint64_t bytes) noexcept {
  const ControlPage& control = memory_->control();
  const Clock::time_point deadline = Clock::now() + config_.block_timeout;
  nanoseconds pause = kFirstPause;
  for (;;) {
    if (closed_.load(std::memory_order_relaxed) || control.closing.load(std::memory_order_relaxed) != 0 ||
        control.marked_dead.load(std::memory_order_relaxed) != 0) {
      return false;
    }
    if (has_room(bytes)) return true;
    const Clock::time_point now = Clock::now();
    if (now >= deadline) break;
    pause_for(std::min<nanoseconds>(pause, deadline - now));
    pause = std::min(pause * 2, kLongestPause);
  }
  gave_up_at_.store(control.head.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return false;
}

std::optional<std::uint32_t> Ring::intern(std::string_view name, std::uint32_t kind, std::string_view origin,
                                          std::string_view shard) noexcept {
  const Pin pin(*this);
  if (!pin) return std::nullopt;
  return names_.intern(*memory_, name, kind, origin, shard);
}

std::uint32_t Ring::next_seq(std::int64_t step, std::uint32_t entries) noexcept {
  const auto number = static_cast<std::uint64_t>(step);
  const std::uint64_t tag =
      number << 32;  // the low half of the number, which differs between steps that share a word
  std::atomic<std::uint64_t>& sequence = sequences_[number % sequences_.size()];
  std::uint64_t word = sequence.load(std::memory_order_relaxed);
  for (;;) {
    const bool same_step = (word & ~std::uint64_t{0xffffffff}) == tag;
    const std::uint32_t first = same_step ? static_cast<std::uint32_t>(word) : 0;
    const std::uint64_t next = tag | static_cast<std::uint32_t>(first + entries);
    if (sequence.compare_exchange_weak(word, next, std::memory_order_relaxed)) return first;
  }
}

void Ring::count_drop(DropReason reason, std::uint64_t tensors, std::uint64_t bytes) noexcept {
  const Pin pin(*this);
  if (pin) add_drop(memory_->control(), reason, tensors, bytes);
}

void Ring::count_capture(std::uint64_t tensors, std::uint64_t payload_bytes,
                         std::uint64_t nanoseconds) noexcept {
  const Pin pin(*this);
  if (!pin) return;
  ControlPage& control = memory_->control();
  control.captures.fetch_add(1, std::memory_order_relaxed);
  control.tensors.fetch_add(tensors, std::memory_order_relaxed);
  control.payload_bytes.fetch_add(payload_bytes, std::memory_order_relaxed);
  control.capture_ns.fetch_add(nanoseconds, std::memory_order_relaxed);
}

bool Ring::mark_step_end(std::int64_t step) noexcept {
  const Reservation room = try_reserve(RecordKind::kBatch, sizeof(BatchHeader), kTensorAlignBytes);
  if (!room) return false;
  const BatchHeader header = marker_header(step, lanes_.empty() ? 0 : wall_clock_ns());
  std::memcpy(room.data, &header, sizeof(header));
  commit(room);
  return true;
}

bool Ring::put_document(std::string_view key, std::string_view bytes) noexcept {
  if (key.size() > max_record_bytes_ || bytes.size() > max_record_bytes_) return false;
  const std::uint64_t total = sizeof(std::uint32_t) + key.size() + bytes.size();
  Reservation room = try_reserve(RecordKind::kDocument, total, kTensorAlignBytes);
  while (!room) {  // each turn: another producer has taken the room
    if (!wait_for_room(total)) return false;
    room = try_reserve(RecordKind::kDocument, total, kTensorAlignBytes);
  }
  const auto key_bytes = static_cast<std::uint32_t>(key.size());
  std::memcpy(room.data, &key_bytes, sizeof(key_bytes));
  if (!key.empty()) std::memcpy(room.data + sizeof(key_bytes), key.data(), key.size());
  if (!bytes.empty()) std::memcpy(room.data + sizeof(key_bytes) + key.size(), bytes.data(), bytes.size());
  commit(room);
  return true;
}

bool Ring::put_step_time(const StepTimeRow& row) noexcept {
  const Pin pin(*this);
  if (!pin || memory_->step_row_count() == 0) return false;
  ControlPage& control = memory_->control();
  const std::uint64_t head = control.step_head.load(std::memory_order_relaxed);  // only this thread stores it
  // Acquire: pairs with the release in Consumer::release_step_times(); the row's place was read.
  if (head - control.step_tail.load(std::memory_order_acquire) >= memory_->step_row_count()) return false;
  memory_->step_rows()[head % memory_->step_row_count()] = row;
  control.step_head.store(head + 1, std::memory_order_release);  // pairs with Consumer::step_times()
  return true;
}

Counters Ring::counters() const noexcept {
  const Pin pin(*this);
  if (pin) return read_counters(memory_->control());
  // Acquire: pairs with the release in close().
  return guard_->here() && counters_final_.load(std::memory_order_acquire) ? final_counters_ : Counters{};
}

Progress Ring::progress() const {
  const Pin pin(*this);
  if (!pin) return {};
  Progress progress = read_progress(memory_->control());
  for (const std::shared_ptr<Ring>& lane : lanes_) {
    const Progress there = lane->progress();
    progress.pending_records += there.pending_records;
    progress.pending_bytes += there.pending_bytes;
  }
  return progress;
}

std::optional<std::string> Ring::stop_request() const {
  const Pin pin(*this);
  if (!pin) return std::nullopt;
  const ControlPage& control = memory_->control();
  if (control.stop_bytes.load(std::memory_order_relaxed) == 0) return std::nullopt;
  // Acquire: pairs with the release in Consumer::request_stop().
  const std::uint64_t bytes = control.stop_bytes.load(std::memory_order_acquire);
  return read_words(control.stop_words, bytes);
}

bool Ring::was_asked() const noexcept {
  const Pin pin(*this);
  if (!pin) return false;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // a hint: stop_request() and take_request() decide
  const ControlPage& control = memory_->control();
  return control.stop_bytes.load(kRelaxed) != 0 ||
         control.requests_posted.load(kRelaxed) != control.requests_taken.load(kRelaxed);
}

std::optional<std::string> Ring::take_request() const {
  const Pin pin(*this);
  if (!pin) return std::nullopt;
  ControlPage& control = memory_->control();
  std::uint64_t taken = control.requests_taken.load(std::memory_order_relaxed);
  // Acquire: pairs with the release in Consumer::try_post_request().
  if (control.requests_posted.load(std::memory_order_acquire) == taken) return std::nullopt;
  // Relaxed, as the words: after the acquire above.
  const std::uint64_t bytes = control.request_bytes.load(std::memory_order_relaxed);
  std::string text = read_words(control.request_words, bytes);
  // Release: pairs with the acquire in Consumer::try_post_request(). The swap fails if another thread was
  // first. Then the words may already belong to a later request, and are void.
  if (!control.requests_taken.compare_exchange_strong(taken, taken + 1, std::memory_order_release,
                                                      std::memory_order_relaxed)) {
    return std::nullopt;
  }
  return text;
}

void Ring::set_closing() noexcept {
  const Pin pin(*this);
  if (!pin) return;
  for (const std::shared_ptr<Ring>& lane : lanes_)
    lane->set_closing();  // before the main ring, whose flag means all rings
  // Release: pairs with the acquire in Consumer::closing().
  memory_->control().closing.store(1, std::memory_order_release);
}

void Ring::start_prefault() noexcept {
  const Pin pin(*this);
  if (pin) memory_->start_prefault();
}

std::shared_ptr<RingMemory> Ring::memory() const noexcept {
  const Pin pin(*this);
  return pin ? memory_ : nullptr;
}

void Ring::close() noexcept {
  if (!guard_->here() || closed_.exchange(true, std::memory_order_seq_cst)) return;
  {
    const std::lock_guard lock(ahead_mutex_);
    if (ahead_ && ahead_->joinable()) ahead_->join();
  }
  const Clock::time_point deadline = Clock::now() + kRingCloseTimeout;
  while (users_.load(std::memory_order_seq_cst) != 0) {  // acquire side of Pin::leave()
    if (Clock::now() >= deadline) return;
    pause_for(microseconds(100));
  }
  helpers_.reset();
  for (const std::shared_ptr<Ring>& lane : lanes_) lane->close();
  final_counters_ = read_counters(memory_->control());
  final_early_commits_ = memory_->control().early_commits.load(std::memory_order_relaxed);
  counters_final_.store(true, std::memory_order_release);  // pairs with the acquire in counters()
  memory_.reset();
}

}  // namespace tdcore
