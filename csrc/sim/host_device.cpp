#include "sim/host_device.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "ring/record.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kAlignBytes = 256;
constexpr std::uint64_t kCanaryBytes = 256;
constexpr int kCanary = 0xC5;
constexpr int kFresh = 0xA7;                                 // what memory holds before anyone wrote to it
constexpr StreamHandle kOwnStreams = StreamHandle{1} << 40;  // handles of make_stream() begin here

bool canary_is_whole(const std::byte* at) noexcept {
  return std::all_of(at, at + kCanaryBytes, [](std::byte byte) { return byte == std::byte{kCanary}; });
}

HostEvent& event_of(EventHandle handle) noexcept { return *reinterpret_cast<HostEvent*>(handle); }

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options) : options_(options) {
  info_.name = "simulated";
  info_.kernels = "host";
  info_.memory_bytes = options.memory_bytes;
  info_.best_rung = options.best_rung;
  info_.rung_reason = options.rung_reason;
  control_.seed = options.seed;
  control_.delay_us = options.delay_us;
  control_.early_words = options.early_words;
}

HostDevice::~HostDevice() {
  control_.stopping.store(true, std::memory_order_relaxed);
  abandon_events();
  streams_.clear();
}

/// Memory between two canaries.
void* HostDevice::allocate_guarded(std::uint64_t bytes) noexcept {
  const std::scoped_lock lock(mutex_);
  if (bytes > options_.memory_bytes || allocated_ > options_.memory_bytes - bytes) return nullptr;
  const std::uint64_t total = bytes + 2 * kCanaryBytes + kAlignBytes;
  try {
    Allocation made{std::unique_ptr<std::byte[]>(new std::byte[total]), nullptr, bytes};
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

void* HostDevice::allocate(std::uint64_t bytes) noexcept { return allocate_guarded(bytes); }
void* HostDevice::allocate_host(std::uint64_t bytes) noexcept { return allocate_guarded(bytes); }

bool HostDevice::pin(void* memory, std::uint64_t bytes) noexcept {
  return memory != nullptr && bytes % kPageBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(memory) % kPageBytes == 0;
}

HostStream& HostDevice::stream_of(StreamHandle handle) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<HostStream>& stream = streams_[handle];
  if (!stream) {
    const bool now = options_.sync_compute && handle < kOwnStreams;
    stream = std::make_unique<HostStream>(control_, streams_.size(), now);
  }
  return *stream;
}

StreamHandle HostDevice::make_stream() noexcept {
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

EventHandle HostDevice::make_event() noexcept {
  const std::scoped_lock lock(mutex_);
  try {
    events_.push_back(std::make_shared<HostEvent>());
    return reinterpret_cast<EventHandle>(events_.back().get());
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

bool HostDevice::is_capturing(StreamHandle stream) noexcept {
  const std::scoped_lock lock(mutex_);
  const auto found = capturing_.find(stream);
  return found != capturing_.end() && found->second;
}

void HostDevice::set_capturing(StreamHandle stream, bool capturing) {
  const std::scoped_lock lock(mutex_);
  capturing_[stream] = capturing;
}

void HostDevice::fail() noexcept {
  control_.lost.store(options_.failure_loses_work, std::memory_order_relaxed);
  control_.failed.store(true, std::memory_order_relaxed);
  if (options_.failure_loses_work) abandon_events();
}

void HostDevice::abandon_events() noexcept {
  const std::scoped_lock lock(mutex_);
  for (const std::shared_ptr<HostEvent>& event : events_)
    event->abandoned.store(true, std::memory_order_relaxed);
}

bool HostDevice::push(StreamHandle stream, HostWork& work) noexcept {
  if (operations_.fetch_add(1, std::memory_order_relaxed) == options_.fails_after) fail();
  if (control_.failed.load(std::memory_order_relaxed)) return false;
  if (is_capturing(stream)) control_.violations.fetch_add(1, std::memory_order_relaxed);
  try {
    return stream_of(stream).push(work);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool HostDevice::copy_to_device(StreamHandle stream, void* device, const void* pinned,
                                std::uint64_t bytes) noexcept {
  HostWork work{.kind = HostWork::Kind::kCopy, .to = device, .from = pinned, .bytes = bytes};
  return push(stream, work);
}

bool HostDevice::copy_to_host(StreamHandle stream, void* pinned, const void* device,
                              std::uint64_t bytes) noexcept {
  HostWork work{.kind = HostWork::Kind::kCopyOut, .to = pinned, .from = device, .bytes = bytes};
  return push(stream, work);
}

bool HostDevice::fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept {
  HostWork work{.kind = HostWork::Kind::kFill, .to = device, .bytes = bytes};
  return push(stream, work);
}

bool HostDevice::launch_stats(StreamHandle stream, const device::Launch& launch) noexcept {
  HostWork work{.kind = HostWork::Kind::kStats, .launch = launch};
  return push(stream, work);
}

bool HostDevice::launch_pack(StreamHandle stream, const device::Launch& launch) noexcept {
  HostWork work{.kind = HostWork::Kind::kPack, .launch = launch};
  return push(stream, work);
}

bool HostDevice::write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                            CommitRung rung) noexcept {
  if (rung < options_.best_rung || rung == CommitRung::kPoll) return false;
  HostWork work{.kind = HostWork::Kind::kWord, .to = pinned, .bytes = value};
  return push(stream, work);
}

bool HostDevice::record_event(EventHandle event, StreamHandle stream) noexcept {
  HostEvent& of = event_of(event);
  const std::uint32_t generation = of.recorded.load(std::memory_order_relaxed) + 1;
  HostWork work{.kind = HostWork::Kind::kRecord, .event = of.shared_from_this(), .generation = generation};
  // Before the push: with `sync_compute` it is done when that returns.
  of.recorded.store(generation, std::memory_order_relaxed);
  if (push(stream, work)) return true;
  of.recorded.store(generation - 1, std::memory_order_relaxed);
  return false;
}

bool HostDevice::wait_event(StreamHandle stream, EventHandle event) noexcept {
  HostEvent& of = event_of(event);
  HostWork work{.kind = HostWork::Kind::kWait,
                .event = of.shared_from_this(),
                .generation = of.recorded.load(std::memory_order_relaxed)};
  return push(stream, work);
}

EventState HostDevice::query_event(EventHandle event) noexcept {
  HostEvent& of = event_of(event);
  // Acquire: pairs with the release of the stream that recorded it.
  const std::uint32_t done = of.done.load(std::memory_order_acquire);
  if (done == of.recorded.load(std::memory_order_relaxed)) return EventState::kDone;
  return control_.lost.load(std::memory_order_relaxed) ? EventState::kFailed : EventState::kPending;
}

std::string HostDevice::first_error() const {
  return control_.failed.load(std::memory_order_relaxed) ? "simulated failure" : "";
}

void HostDevice::enqueue(StreamHandle stream, std::function<void()> work) {
  HostWork call{.kind = HostWork::Kind::kCall, .call = std::move(work)};
  (void)stream_of(stream).push(call);
}

bool HostDevice::synchronize(StreamHandle stream) {
  const auto event = std::make_shared<HostEvent>();
  HostWork work{.kind = HostWork::Kind::kRecord, .event = event, .generation = 1};
  if (!stream_of(stream).push(work)) return false;
  // Acquire: pairs with the release of the stream.
  while (event->done.load(std::memory_order_acquire) == 0) {
    if (control_.lost.load(std::memory_order_relaxed)) return false;
    const timespec time{.tv_sec = 0, .tv_nsec = 20'000};
    (void)::nanosleep(&time, nullptr);
  }
  return true;
}

std::uint64_t HostDevice::violations() const noexcept {
  std::uint64_t found = control_.violations.load(std::memory_order_relaxed);
  const std::scoped_lock lock(mutex_);
  for (const Allocation& made : allocations_) {
    found += canary_is_whole(made.begin - kCanaryBytes) ? 0 : 1;
    found += canary_is_whole(made.begin + made.bytes) ? 0 : 1;
  }
  return found;
}

}  // namespace tdcore
