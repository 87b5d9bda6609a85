#include "device/device_engine.hpp"

#include <algorithm>

namespace tdcore {
namespace {

constexpr std::uint64_t kArenaShare = 4;    // one record uses at most a quarter of the arena
constexpr std::uint64_t kScratchShare = 2;  // one batch uses at most half of the scratch
constexpr std::uint64_t kMergeBytes =
    64 * 1024;  // zeroing this many more bytes is cheaper than one more call

// A batch takes 10 to 40 us to enqueue. It takes longer if the queue of the driver is full (about 1,024
// launches), until one of its launches has run.
constexpr std::chrono::microseconds kWaits{200};
constexpr std::uint32_t kQuickBatches = 64;

std::uint64_t aligned(std::uint64_t bytes) noexcept { return round_up(bytes, kDeviceAlignBytes); }

}  // namespace

DeviceEngine::DeviceEngine(std::unique_ptr<Device> device, std::shared_ptr<Ring> lane, Ring& main,
                           const DeviceCaptureConfig& config) noexcept
    : device_(std::move(device)),
      lane_(std::move(lane)),
      main_(main),
      graphs_(config.graph_bytes),
      first_retry_(config.first_retry),
      retry_pause_(config.first_retry) {
  try {
    fork_guard_ = std::make_unique<const ForkGuard>();
    if (device_ == nullptr || lane_ == nullptr) {
      error_ = "there is no device, or no ring for it";
      return;
    }
    info_ = device_->info();
    on_.store(set_up(config), std::memory_order_relaxed);
  } catch (const std::exception& error) {
    error_ = error.what();
  }
}

bool DeviceEngine::set_up(const DeviceCaptureConfig& config) {
  const auto missing = [&](const char* what, std::uint64_t bytes) {
    const std::string reason = device_->errors();
    error_ = std::string("no ") + what + " (" + std::to_string(bytes) + " bytes)" +
             (reason.empty() ? "" : ": " + reason);
    return false;
  };
  if (!lane_->take_memory(&error_)) return false;
  lane_memory_ = lane_->memory();
  if (lane_memory_ == nullptr) return missing("ring: it is closed", 0);
  if (!pin_lane()) return missing("way to pin the ring", lane_->mapping().bytes);
  const std::uint64_t scratch = aligned(config.scratch_bytes);
  const std::uint64_t tables = aligned(config.table_bytes);
  const std::uint64_t arena = make_arena(config);
  if (arena_ == nullptr) return missing("device memory for the arena", arena);
  scratch_ = static_cast<std::byte*>(device_->allocate(scratch));
  if (scratch_ == nullptr) return missing("device memory for scratch", scratch);
  tables_ = static_cast<std::byte*>(device_->allocate_host(tables));
  if (tables_ == nullptr) return missing("pinned memory for tables", tables);
  copies_ = device_->make_stream();
  if (copies_ == 0) return missing("stream", 0);
  if (!payload_allocations_.make(*device_, config.in_flight) ||
      !table_allocations_.make(*device_, config.in_flight))
    return missing("events", 0);
  if (config.inline_tables) {
    inline_limits_ = {.tiles = std::min(kInlineTiles, info_.launch_tiles),
                      .direct_bytes = config.direct_bytes};
    counters_.make(*device_, copies_, config.in_flight);
  }
  arena_space_ = FifoSpace(arena);
  scratch_space_ = FifoSpace(scratch);
  table_space_ = FifoSpace(tables);
  limits_.record_bytes = std::min(lane_->max_record_bytes(), arena / kArenaShare);
  limits_.guard_bytes = kGuardBytes;
  graphs_.limit_records(limits_.record_bytes);
  const std::uint64_t table_share = std::min(tables, scratch / kScratchShare) / 4;
  const std::uint64_t entries =
      table_share > kTableFixedBytes ? (table_share - kTableFixedBytes) / kTableEntryBytes : 0;
  limits_.entries = std::min<std::uint64_t>(config.max_items, entries);
  // Counters of tiles are in the table; there are far fewer counters than tiles.
  limits_.tiles = (scratch / kScratchShare - table_share) / (sizeof(TensorStats) + sizeof(std::uint32_t));
  if (limits_.entries == 0 || limits_.tiles == 0)
    return missing("room for a batch in tables or scratch", tables);
  guards_ = static_cast<std::uint64_t>(realtime_ns());
  early_seen_ = main_.early_commits();
  commit_mode_ = info_.best_commit_mode;
  return !commits_by_host() || start_poller() || missing("thread that polls events", 0);
}

/// Pins the memory of the lane: the size that was chosen for the model, else the default, because the system
/// may limit pinned memory.
bool DeviceEngine::pin_lane() noexcept {
  do {
    const Mapping mapping = lane_->mapping();
    if (device_->pin(mapping.base, mapping.bytes)) return true;
  } while (lane_->shrink_lane());
  return false;
}

/// Allocates the arena: the wanted size, as far as it is a small part of the free memory, else the configured
/// size. Returns the size.
std::uint64_t DeviceEngine::make_arena(const DeviceCaptureConfig& config) noexcept {
  const std::uint64_t configured = aligned(config.arena_bytes);
  const std::uint64_t share = device_->free_bytes() / kArenaShareOfFree & ~(kDeviceAlignBytes - 1);
  const std::uint64_t chosen = std::max(configured, std::min(aligned(config.wanted_arena_bytes), share));
  for (const std::uint64_t bytes : {chosen, configured}) {
    arena_ = static_cast<std::byte*>(device_->allocate(bytes));
    if (arena_ != nullptr) return bytes;
    if (bytes == configured) break;
  }
  return configured;
}

/// Turns the device off permanently. Returns false.
bool DeviceEngine::fail(const char* what) noexcept {
  drop_rejected();  // the consumer waits for this record
  const bool paused = retry_at_.exchange(0, std::memory_order_relaxed) != 0;
  if (on_.exchange(false, std::memory_order_relaxed) || paused) set_error(what, "");
  return false;
}

void DeviceEngine::set_error(const char* what, const char* then) noexcept {
  try {
    error_ = std::string(what) + ": " + device_->errors() + then;
  } catch (const std::exception&) {  // no memory for the text
  }
}

std::uint64_t DeviceEngine::next_guard() noexcept {
  const std::uint64_t guard = ++guards_ * 0x9E3779B97F4A7C15;  // each value once in 2^64
  return guard == 0 ? next_guard() : guard;
}

// ---- batches

DeviceEngine::Fit DeviceEngine::find_room(const TableSize& table, std::uint64_t payload_bytes,
                                          StreamHandle stream) noexcept {
  if (!on_.load(std::memory_order_relaxed) && !resume()) return Fit::kOff;
  fall_back();
  reclaim();
  if (!on_.load(std::memory_order_relaxed)) return Fit::kOff;
  if (table.empty()) return Fit::kFits;
  bool refused = false;
  const Extent pinned = table_space_.place(aligned(table.upload_bytes));
  const bool table_fits =
      table_space_.fits(pinned) &&  // written by the host, so a stream cannot wait for it
      make_room(
          *device_, table_allocations_, scratch_space_, scratch_space_.place(table.device_bytes), stream,
          lane_->policy() == FullPolicy::kBlock ? Reuse::kStreamWaits : Reuse::kBehindSameStream, refused);
  bool payload_fits = true;
  if (payload_bytes > 0 && !table.direct && !refused) {
    const Extent extent = arena_space_.place(aligned(payload_bytes + 2 * kGuardBytes));
    payload_fits =
        make_room(*device_, payload_allocations_, arena_space_, extent, stream,
                  lane_->policy() == FullPolicy::kBlock ? Reuse::kStreamWaits : Reuse::kNever, refused);
    if (payload_fits && !arena_space_.fits(extent)) ++arena_waits_;
  }
  if (refused) {
    (void)pause("the device could not make a stream wait");
    return Fit::kOff;
  }
  if (!payload_fits) return Fit::kArenaFull;
  return table_fits ? Fit::kFits : Fit::kTablesFull;
}

/// Writes zeros between payloads and after the last payload, so that a record has no old bytes of the arena.
bool DeviceEngine::fill_gaps(const DeviceBatch& batch, std::byte* payload) noexcept {
  std::uint64_t position = 0;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  const auto zero = [&] { return from == to || device_->fill_zero(batch.stream, payload + from, to - from); };
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin == end) return true;
    const bool near = from != to && begin - to <= kMergeBytes;
    if (!near && !zero()) return false;
    if (!near) from = begin;
    to = end;
    return true;
  };
  for (const PlannedTensor& item : batch.items) {
    if (!is_packed(item)) continue;
    if (!add(position, item.payload_offset)) return false;
    position = item.payload_offset + item.payload_bytes;
  }
  return add(position, batch.size.payload_bytes) && zero();
}

void DeviceEngine::start_record(InFlightRecord& record, const Reservation& room,
                                const DeviceCommit& commit) noexcept {
  record.room = room;
  record.commit = commit;
  record.by_host = commits_by_host();
  ++in_flight_;
  if (!record.by_host) return;
  ++polled_;
  poll_wanted_.notify_one();
}

void DeviceEngine::keep_record(Allocation& allocation, const DeviceBatch& batch,
                               const DeviceCommit& commit) noexcept {
  InFlightRecord& record = allocation.record;
  start_record(record, batch.room, commit);
  for (const PlannedTensor& item : batch.items) {
    if (item.status == EntryStatus::kSkipped) continue;
    // A tensor is counted with its last part, because the lost records are the last ones that were enqueued.
    const bool counted = item.reason == DropReason::kDegraded || item.part + 1 != item.parts;
    record.tensors += counted ? 0 : 1;
    record.bytes += item.payload_bytes;
  }
}

/// Enqueues a batch, until the device rejects a part of the work.
DeviceEngine::Sent DeviceEngine::send(const DeviceBatch& batch, Allocation& table, Allocation& payload,
                                      const DeviceCommit& commit) noexcept {
  if (batch.table.inlined) return send_inline(batch, table, payload, commit);
  std::byte* const record = batch.room.data;
  std::byte* const host = tables_ + table_space_.at(table.pinned);
  const bool saves = batch.table.packs > 0;
  const std::uint64_t payload_bytes = saves ? batch.size.payload_bytes : 0;
  const TablePlace place{
      .host = host,
      .device = scratch_ + scratch_space_.at(table.memory),
      .payload = saves ? arena_ + arena_space_.at(payload.memory) : nullptr,
      .payload_bytes = payload_bytes,
      .first_stats = static_cast<TensorStats*>(device_->device_address(record + sizeof(BatchHeader))),
      .guard = batch.guard};
  Launches launches = fill_table(batch.items, batch.table, place);
  if (!saves && !commits_by_host()) {
    launches.stats.commit_word = static_cast<std::uint64_t*>(device_->device_address(commit.word));
    launches.stats.commit_value = commit.value;
  }
  const StreamHandle stream = batch.stream;
  if (!device_->copy_to_device(stream, place.device, host, batch.table.upload_bytes)) return Sent::kNothing;
  if ((saves && !fill_gaps(batch, place.payload + kGuardBytes)) ||
      (batch.table.stats > 0 && !device_->launch(stream, Kernel::kStats, launches.stats)) ||
      (saves && !device_->launch(stream, Kernel::kPack, launches.pack)) ||
      !device_->record_event(table.event, stream)) {
    return Sent::kPart;
  }
  return !saves || send_values(batch, table, payload, commit) ? Sent::kAll : Sent::kPart;
}

/// Enqueues the copy of a batch's packed values into its record, after the kernels.
bool DeviceEngine::send_values(const DeviceBatch& batch, Allocation& table, Allocation& payload,
                               const DeviceCommit& commit) noexcept {
  return device_->wait_event(copies_, table.event) &&
         device_->copy_to_host(copies_, batch.room.data + batch.size.payload_offset - kGuardBytes,
                               arena_ + arena_space_.at(payload.memory),
                               batch.size.payload_bytes + 2 * kGuardBytes) &&
         (commits_by_host() || device_->write_word(copies_, commit.word, commit.value, commit_mode_)) &&
         device_->record_event(payload.event, copies_);
}

void DeviceEngine::note_duration(std::chrono::steady_clock::duration duration) noexcept {
  const std::uint32_t left = quick_to_go_.load(std::memory_order_relaxed);
  const std::uint32_t next = duration > kWaits ? kQuickBatches : left > 0 ? left - 1 : 0;
  if (next != left) quick_to_go_.store(next, std::memory_order_relaxed);
}

bool DeviceEngine::launch(const DeviceBatch& batch) noexcept {
  const bool copies = batch.table.copies();
  Allocation& table = table_allocations_.next();
  Allocation& payload = payload_allocations_.next();
  table.start(batch.stream);
  table.pinned = table_space_.place(aligned(batch.table.upload_bytes));
  table.memory = scratch_space_.place(batch.table.device_bytes);
  table_space_.take(table.pinned);
  scratch_space_.take(table.memory);
  if (copies) {
    payload.start(copies_);
    payload.memory = arena_space_.place(aligned(batch.size.payload_bytes + 2 * kGuardBytes));
    arena_space_.take(payload.memory);
  }
  const DeviceCommit commit = lane_->hand_over(batch.room);
  if (commit.word == nullptr) return fail("the ring was closed");
  InFlightRecord& record = (copies ? payload : table).record;
  keep_record(copies ? payload : table, batch, commit);
  const auto start = std::chrono::steady_clock::now();
  const Sent sent = send(batch, table, payload, commit);
  note_duration(std::chrono::steady_clock::now() - start);
  if (sent == Sent::kNothing) {
    record.tensors = record.bytes = 0;  // the plan counts them
    (void)lose(record);
    return pause("the device rejected work");
  }
  ++launched_;
  if (sent == Sent::kPart) {
    record.incomplete = true;
    unfenced_ = {.tables = 1, .payload = copies};
    (void)pause("the device rejected work");
    (void)fence();
    return true;  // lose() counts the tensors, unless the device commits the record
  }
  table_allocations_.push();
  if (copies) payload_allocations_.push();
  retry_pause_ = first_retry_;
  return true;
}

}  // namespace tdcore
