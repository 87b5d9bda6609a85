#include "sim/sim_device.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "base/limits.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kAlignBytes = 256;
constexpr std::uint64_t kCanaryBytes = 256;
constexpr int kCanary = 0xC5;
constexpr int kFresh = 0xA7;                                 // contents of memory that was never written
constexpr StreamHandle kOwnStreams = StreamHandle{1} << 40;  // handles of make_stream() begin here

bool canary_is_whole(const std::byte* at) noexcept {
  return std::all_of(at, at + kCanaryBytes, [](std::byte byte) { return byte == std::byte{kCanary}; });
}

SimEvent& event_of(EventHandle handle) noexcept { return *reinterpret_cast<SimEvent*>(handle); }

}  // namespace

SimDevice::SimDevice(const SimDeviceOptions& options) : options_(options) {
  info_.name = "simulated";
  info_.kernels = "host";
  info_.memory_bytes = options.memory_bytes;
  info_.launch_tiles = options.launch_tiles;
  info_.best_commit_mode = options.best_commit_mode;
  info_.commit_mode_reason = options.commit_mode_reason;
  control_.seed = options.seed;
  control_.delay_us = options.delay_us;
  control_.queue_limit = options.queue_limit;
  control_.early_words = options.early_words;
}

SimDevice::~SimDevice() {
  control_.stopping.store(true, std::memory_order_relaxed);
  abandon_events();
  streams_.clear();
}

/// Memory between two canaries.
void* SimDevice::allocate_guarded(std::uint64_t bytes) noexcept {
  const std::scoped_lock lock(mutex_);
  if (bytes > options_.memory_bytes || allocated_ > options_.memory_bytes - bytes) return nullptr;
  const std::uint64_t total = bytes + 2 * kCanaryBytes + kAlignBytes;
  try {
    SimAllocation made{std::unique_ptr<std::byte[]>(new std::byte[total]), nullptr, bytes};
    const auto address = reinterpret_cast<std::uintptr_t>(made.memory.get());
    made.begin = made.memory.get() + (-(address + kCanaryBytes) & (kAlignBytes - 1)) + kCanaryBytes;
    std::memset(made.begin - kCanaryBytes, kCanary, kCanaryBytes);
    std::memset(made.begin, kFresh, bytes);
    std::memset(made.begin + bytes, kCanary, kCanaryBytes);
    std::byte* const begin = made.begin;
    allocations_.push_back(std::move(made));
    allocated_ += bytes;
    return begin;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* SimDevice::allocate(std::uint64_t bytes) noexcept { return allocate_guarded(bytes); }
void* SimDevice::allocate_host(std::uint64_t bytes) noexcept { return allocate_guarded(bytes); }

bool SimDevice::pin(void* memory, std::uint64_t bytes) noexcept {
  return memory != nullptr && bytes % kPageBytes == 0 && bytes <= options_.pin_bytes &&
         reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
}

SimStream& SimDevice::stream_of(StreamHandle handle) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<SimStream>& stream = streams_[handle];
  if (!stream) {
    const bool now = options_.sync_compute && handle < kOwnStreams;
    stream = std::make_unique<SimStream>(control_, streams_.size(), now);
  }
  return *stream;
}

StreamHandle SimDevice::make_stream() noexcept {
  try {
    StreamHandle handle = 0;
    {
      const std::scoped_lock lock(mutex_);
      handle = kOwnStreams + streams_.size();
    }
    (void)stream_of(handle);
    return handle;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

EventHandle SimDevice::make_event() noexcept {
  const std::scoped_lock lock(mutex_);
  try {
    events_.push_back(std::make_shared<SimEvent>());
    return reinterpret_cast<EventHandle>(events_.back().get());
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::uint64_t SimDevice::free_bytes() noexcept {
  const std::scoped_lock lock(mutex_);
  return options_.memory_bytes - allocated_;
}

bool SimDevice::is_capturing(StreamHandle stream) noexcept {
  const std::scoped_lock lock(mutex_);
  if (captures_.contains(stream)) return true;
  const auto found = capturing_.find(stream);
  return found != capturing_.end() && found->second;
}

void SimDevice::set_capturing(StreamHandle stream, bool capturing) {
  const std::scoped_lock lock(mutex_);
  capturing_[stream] = capturing;
}

void SimDevice::fail() noexcept {
  control_.lost.store(options_.failure_loses_work, std::memory_order_relaxed);
  control_.failed.store(true, std::memory_order_relaxed);
  if (options_.failure_loses_work) abandon_events();
}

void SimDevice::abandon_events() noexcept {
  const std::scoped_lock lock(mutex_);
  for (const std::shared_ptr<SimEvent>& event : events_)
    event->abandoned.store(true, std::memory_order_relaxed);
}

bool SimDevice::push(StreamHandle stream, SimWork& work) noexcept {
  const std::uint64_t number = operations_.fetch_add(1, std::memory_order_relaxed);
  if (number == options_.fails_after) fail();
  if (control_.failed.load(std::memory_order_relaxed)) return false;
  if (number >= options_.rejects_from && number - options_.rejects_from < options_.rejects) {
    rejected_.store(true, std::memory_order_relaxed);
    return false;
  }
  try {
    if (is_capturing(stream)) {
      const bool allowed = work.kind == SimWork::Kind::kGate ||
                           (work.kind == SimWork::Kind::kStats && work.launch.gate != nullptr);
      if (!allowed) control_.violations.fetch_add(1, std::memory_order_relaxed);
      return allowed && record(stream, work);
    }
    return stream_of(stream).push(work);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool SimDevice::copy_to_device(StreamHandle stream, void* device, const void* pinned,
                               std::uint64_t bytes) noexcept {
  SimWork work{.kind = SimWork::Kind::kCopy, .to = device, .from = pinned, .bytes = bytes};
  return push(stream, work);
}

bool SimDevice::copy_to_host(StreamHandle stream, void* pinned, const void* device,
                             std::uint64_t bytes) noexcept {
  SimWork work{.kind = SimWork::Kind::kCopyOut, .to = pinned, .from = device, .bytes = bytes};
  return push(stream, work);
}

bool SimDevice::fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept {
  SimWork work{.kind = SimWork::Kind::kFill, .to = device, .bytes = bytes};
  return push(stream, work);
}

bool SimDevice::launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept {
  using Kind = SimWork::Kind;
  SimWork work{.kind = kernel == Kernel::kStats ? Kind::kStats : Kind::kPack, .launch = launch};
  return push(stream, work);
}

bool SimDevice::launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept {
  if (launch.launch.tiles > options_.launch_tiles)
    control_.violations.fetch_add(1, std::memory_order_relaxed);
  try {
    SimWork work{.kind = SimWork::Kind::kInline,
                 .launch = launch.launch,
                 .inlined = std::make_shared<const device::InlineLaunch>(launch)};
    return push(stream, work);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool SimDevice::write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                           CommitMode commit_mode) noexcept {
  if (commit_mode < options_.best_commit_mode || commit_mode == CommitMode::kPoll) return false;
  SimWork work{.kind = SimWork::Kind::kWord, .to = pinned, .bytes = value};
  return push(stream, work);
}

bool SimDevice::record_event(EventHandle event, StreamHandle stream) noexcept {
  SimEvent& of = event_of(event);
  const std::uint32_t generation = of.recorded.load(std::memory_order_relaxed) + 1;
  SimWork work{.kind = SimWork::Kind::kRecord, .event = of.shared_from_this(), .generation = generation};
  // Before the push, because with `sync_compute` the work is done when push() returns.
  of.recorded.store(generation, std::memory_order_relaxed);
  if (push(stream, work)) return true;
  of.recorded.store(generation - 1, std::memory_order_relaxed);
  return false;
}

bool SimDevice::wait_event(StreamHandle stream, EventHandle event) noexcept {
  SimEvent& of = event_of(event);
  SimWork work{.kind = SimWork::Kind::kWait,
               .event = of.shared_from_this(),
               .generation = of.recorded.load(std::memory_order_relaxed)};
  return push(stream, work);
}

EventState SimDevice::query_event(EventHandle event) noexcept {
  SimEvent& of = event_of(event);
  // Acquire: pairs with the release of the stream that recorded the event.
  const std::uint32_t done = of.done.load(std::memory_order_acquire);
  if (done == of.recorded.load(std::memory_order_relaxed)) return EventState::kDone;
  return control_.lost.load(std::memory_order_relaxed) ? EventState::kFailed : EventState::kPending;
}

std::string SimDevice::errors() const {
  if (control_.failed.load(std::memory_order_relaxed)) return "simulated failure";
  return rejected_.load(std::memory_order_relaxed) ? "simulated rejection" : "";
}

void SimDevice::enqueue(StreamHandle stream, std::function<void()> work) {
  SimWork call{.kind = SimWork::Kind::kCall, .call = std::move(work)};
  if (!record(stream, call)) (void)stream_of(stream).push(call);
}

// ---- graphs

std::uint64_t SimDevice::capture_id(StreamHandle stream) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto found = captures_.find(stream);
  return found != captures_.end() ? found->second : 0;
}

bool SimDevice::watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return false;
  try {
    graphs_.at(found->second).life->watchers.emplace_back(ended, data);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool SimDevice::open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept {
  SimWork work{.kind = SimWork::Kind::kGate, .to = gate, .from = armed};
  return push(stream, work);
}

bool SimDevice::set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept {
  SimWork work{.kind = SimWork::Kind::kDeviceWord, .to = word, .bytes = value};
  return push(stream, work);
}

bool SimDevice::collect(StreamHandle stream, const device::Collection& collection) noexcept {
  try {
    SimWork work{.kind = SimWork::Kind::kCollect,
                 .collection = std::make_shared<const device::Collection>(collection)};
    return push(stream, work);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::uint64_t SimDevice::begin_capture(StreamHandle stream) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = ++graph_count_;
  graphs_[number];
  captures_[stream] = number;
  return number;
}

void SimDevice::end_capture(StreamHandle stream) {
  const std::scoped_lock lock(mutex_);
  captures_.erase(stream);
}

/// Adds the work to the graph that the stream is being captured into. False if it is not being captured.
bool SimDevice::record(StreamHandle stream, const SimWork& work) {
  const std::scoped_lock lock(mutex_);
  const auto found = captures_.find(stream);
  if (found == captures_.end()) return false;
  graphs_.at(found->second).work.push_back(work);
  return true;
}

bool SimDevice::replay(std::uint64_t graph, StreamHandle stream) {
  std::vector<SimWork> copies;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = graphs_.find(graph);
    if (found == graphs_.end()) return false;
    copies = found->second.work;
    for (SimWork& work : copies) work.graph = found->second.life;
  }
  if (control_.failed.load(std::memory_order_relaxed)) return false;
  bool good = true;
  for (SimWork& work : copies) good = stream_of(stream).push(work) && good;
  return good;
}

void SimDevice::destroy_graph(std::uint64_t graph) {
  SimGraph ended;  // its watchers are called without the mutex
  const std::scoped_lock lock(mutex_);
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return;
  ended = std::move(found->second);
  graphs_.erase(found);
}

bool SimDevice::synchronize(StreamHandle stream) {
  const auto event = std::make_shared<SimEvent>();
  SimWork work{.kind = SimWork::Kind::kRecord, .event = event, .generation = 1};
  if (!stream_of(stream).push(work)) return false;
  // Acquire: pairs with the release of the stream.
  while (event->done.load(std::memory_order_acquire) == 0) {
    if (control_.lost.load(std::memory_order_relaxed)) return false;
    const timespec time{.tv_sec = 0, .tv_nsec = 20'000};
    (void)::nanosleep(&time, nullptr);
  }
  return true;
}

std::uint64_t SimDevice::violations() const noexcept {
  std::uint64_t found = control_.violations.load(std::memory_order_relaxed);
  const std::scoped_lock lock(mutex_);
  for (const SimAllocation& made : allocations_) {
    found += canary_is_whole(made.begin - kCanaryBytes) ? 0 : 1;
    found += canary_is_whole(made.begin + made.bytes) ? 0 : 1;
  }
  return found;
}

}  // namespace tdcore
