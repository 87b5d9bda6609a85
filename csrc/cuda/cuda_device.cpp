// The calls of a CUDA device: each call makes the context current if needed, enqueues, and stores errors.
#include "cuda/cuda_device.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/kernels.hpp"

namespace tdcore::cuda {

namespace {

Stream stream_of(StreamHandle handle) noexcept { return reinterpret_cast<Stream>(handle); }
Event event_of(EventHandle handle) noexcept { return reinterpret_cast<Event>(handle); }
DevicePointer pointer_of(const void* memory) noexcept { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

/// Makes the device's context current until destruction.
class CudaDevice::Current {
 public:
  explicit Current(CudaDevice& device) noexcept : driver_(device.driver_) {
    Context now = nullptr;
    if (driver_.context_get_current(&now) == kSuccess && now == device.context_) return;
    pushed_ = ok_ = device.keep(driver_.context_push(device.context_), "making the context current");
  }
  ~Current() {
    Context was = nullptr;
    if (pushed_) (void)driver_.context_pop(&was);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  bool ok() const noexcept { return ok_; }

 private:
  const Driver& driver_;
  bool pushed_ = false;
  bool ok_ = true;
};

/// Allows calls that may wait while another thread captures a CUDA graph, until destruction.
class CudaDevice::Relaxed {
 public:
  explicit Relaxed(const Driver& driver) noexcept : driver_(driver) {
    changed_ = driver_.exchange_capture_mode(&mode_) == kSuccess;
  }
  ~Relaxed() {
    if (changed_) (void)driver_.exchange_capture_mode(&mode_);
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;  // then the previous mode of the thread, which is restored
  bool changed_ = false;
};

bool CudaDevice::keep(Result result, const char* what) noexcept {
  if (result == kSuccess) return true;
  if (is_sticky(result)) off_.store(true, std::memory_order_relaxed);
  try {
    const std::scoped_lock lock(mutex_);
    latest_error_ = std::string(what) + ": " + error_text(driver_, result);
    if (first_error_.empty()) first_error_ = latest_error_;
  } catch (...) {  // no memory for the text; the call has failed in any case
  }
  return false;
}

std::string CudaDevice::errors() const {
  const std::scoped_lock lock(mutex_);
  return first_error_ == latest_error_ ? first_error_ : first_error_ + "; latest: " + latest_error_;
}

template <class Call>
bool CudaDevice::enqueue(const char* what, Call&& call) noexcept {
  if (off_.load(std::memory_order_relaxed)) return false;
  const Current current(*this);
  return current.ok() && keep(call(), what);
}

template <class Call>
bool CudaDevice::prepare(const char* what, Call&& call) noexcept {
  const Relaxed relaxed(driver_);
  return enqueue(what, call);
}

// ---- set-up ----------------------------------------------------------------------------------------------

namespace {

/// Reserves room for one more object, so that a created object can always be stored.
template <class Kept>
bool make_room(std::mutex& mutex, std::vector<Kept>& kept) noexcept {
  try {
    const std::scoped_lock lock(mutex);
    kept.reserve(kept.size() + 16);
    return true;
  } catch (...) {
    return false;
  }
}

template <class Kept>
void add(std::mutex& mutex, std::vector<Kept>& kept, Kept value) {
  const std::scoped_lock lock(mutex);
  kept.push_back(value);
}

}  // namespace

void* CudaDevice::allocate(std::uint64_t bytes) noexcept {
  DevicePointer memory = 0;
  if (!make_room(mutex_, memory_)) return nullptr;
  if (!prepare("cuMemAlloc", [&] { return driver_.mem_alloc(&memory, bytes); })) return nullptr;
  add(mutex_, memory_, memory);
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory));
}

void* CudaDevice::allocate_host(std::uint64_t bytes) noexcept {
  void* memory = nullptr;
  DevicePointer seen = 0;
  if (!make_room(mutex_, host_memory_)) return nullptr;
  constexpr unsigned kFlags = kHostPortable | kHostDeviceMap;
  if (!prepare("cuMemHostAlloc", [&] { return driver_.mem_host_alloc(&memory, bytes, kFlags); }))
    return nullptr;
  add(mutex_, host_memory_, memory);
  const bool mapped = prepare("cuMemHostGetDevicePointer",
                              [&] { return driver_.mem_host_get_device_pointer(&seen, memory, 0); });
  return mapped && remember_moved(memory, bytes, seen - pointer_of(memory)) ? memory : nullptr;
}

bool CudaDevice::pin(void* memory, std::uint64_t bytes) noexcept {
  try {
    std::uintptr_t offset = 0;
    std::vector<void*> pieces = pin_pieces(memory, bytes, options_.pin_chunk_bytes, offset);
    // The device addresses of the pieces are not contiguous, so a record across two pieces would be torn. Pin
    // one piece instead.
    if (pieces.empty() && options_.pin_chunk_bytes < bytes) pieces = pin_pieces(memory, bytes, bytes, offset);
    if (pieces.empty()) return false;
    bool kept = remember_moved(memory, bytes, offset);
    if (kept) {
      const std::scoped_lock lock(mutex_);
      pinned_.reserve(pinned_.size() + pieces.size());
      pinned_.insert(pinned_.end(), pieces.begin(), pieces.end());
    }
    if (!kept) {
      for (void* const piece : pieces) (void)prepare("", [&] { return driver_.mem_host_unregister(piece); });
    }
    return kept;
  } catch (...) {
    return false;
  }
}

std::vector<void*> CudaDevice::pin_pieces(void* memory, std::uint64_t bytes, std::uint64_t piece_bytes,
                                          std::uintptr_t& offset) {
  std::vector<void*> pieces;
  pieces.reserve(bytes / piece_bytes + 1);
  bool good = bytes > 0;
  for (std::uint64_t at = 0; good && at < bytes; at += piece_bytes) {
    auto* const piece = static_cast<char*>(memory) + at;
    const std::uint64_t length = std::min(piece_bytes, bytes - at);
    DevicePointer seen = 0;
    good = prepare("cuMemHostRegister",
                   [&] { return driver_.mem_host_register(piece, length, kHostPortable | kHostDeviceMap); });
    if (!good) break;
    pieces.push_back(piece);
    good = prepare("cuMemHostGetDevicePointer",
                   [&] { return driver_.mem_host_get_device_pointer(&seen, piece, 0); });
    if (at == 0) offset = seen - pointer_of(piece);
    good = good && seen - pointer_of(piece) == offset;
  }
  if (!good) {
    for (void* const piece : pieces) {
      (void)prepare("cuMemHostUnregister", [&] { return driver_.mem_host_unregister(piece); });
    }
    pieces.clear();
  }
  return pieces;
}

bool CudaDevice::remember_moved(void* memory, std::uint64_t bytes, std::uintptr_t offset) noexcept {
  if (offset == 0) return true;
  const std::scoped_lock lock(mutex_);
  const std::size_t count = moved_count_.load(std::memory_order_relaxed);  // only written under the lock
  if (count == kMaxMoved) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  moved_[count] = Moved{.begin = begin, .end = begin + bytes, .offset = offset};
  moved_count_.store(count + 1, std::memory_order_release);  // pairs with the acquire in device_address()
  return true;
}

StreamHandle CudaDevice::make_stream() noexcept {
  Stream stream = nullptr;
  int least = 0, greatest = 0;
  if (!make_room(mutex_, streams_)) return 0;
  // Not the priority of the training's streams: with few hardware queues (CUDA_DEVICE_MAX_CONNECTIONS=1),
  // streams of one priority share a queue, and the training would wait for tdcore's events. The highest
  // priority, because the only kernel on this stream is a commit of one thread, and the arena is in use until
  // it has run.
  const bool made = prepare("cuStreamCreateWithPriority", [&] {
    const Result result = driver_.priority_range(&least, &greatest);
    return result != kSuccess ? result : driver_.stream_create(&stream, kStreamNonBlocking, greatest);
  });
  if (!made) return 0;
  add(mutex_, streams_, stream);
  return reinterpret_cast<StreamHandle>(stream);
}

EventHandle CudaDevice::make_event() noexcept {
  Event event = nullptr;
  if (!make_room(mutex_, events_)) return 0;
  if (!prepare("cuEventCreate", [&] { return driver_.event_create(&event, kEventDisableTiming); })) return 0;
  add(mutex_, events_, event);
  return reinterpret_cast<EventHandle>(event);
}

std::uint64_t CudaDevice::free_bytes() noexcept {
  const Current current(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  return current.ok() && driver_.mem_get_info(&free, &total) == kSuccess ? free : 0;
}

// ---- hot path --------------------------------------------------------------------------------------------

void* CudaDevice::device_address(void* pinned) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(pinned);
  const std::size_t count =
      moved_count_.load(std::memory_order_acquire);  // pairs with the release in remember_moved()
  for (std::size_t i = 0; i < count; ++i) {
    if (address >= moved_[i].begin && address < moved_[i].end) {
      return reinterpret_cast<void*>(address + moved_[i].offset);
    }
  }
  return pinned;
}

bool CudaDevice::is_capturing(StreamHandle stream) noexcept {
  int status = 0;
  Result result = kSuccess;
  // The default stream cannot be queried while a stream that waits for it is being captured. The error of
  // this query does not invalidate the capture.
  const bool asked = enqueue("cuStreamIsCapturing", [&] {
    result = driver_.stream_is_capturing(stream_of(stream), &status);
    return result >= kFirstCaptureError && result <= kLastCaptureError ? kSuccess : result;
  });
  return asked && (result != kSuccess || status != 0);
}

bool CudaDevice::copy_to_device(StreamHandle stream, void* device, const void* pinned,
                                std::uint64_t bytes) noexcept {
  return enqueue("cuMemcpyHtoDAsync", [&] {
    return driver_.memcpy_to_device(pointer_of(device), pinned, bytes, stream_of(stream));
  });
}

bool CudaDevice::copy_to_host(StreamHandle stream, void* pinned, const void* device,
                              std::uint64_t bytes) noexcept {
  return enqueue("cuMemcpyDtoHAsync", [&] {
    return driver_.memcpy_to_host(pinned, pointer_of(device), bytes, stream_of(stream));
  });
}

bool CudaDevice::fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept {
  return enqueue("cuMemsetD8Async",
                 [&] { return driver_.memset_bytes(pointer_of(device), 0, bytes, stream_of(stream)); });
}

bool CudaDevice::launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept {
  const LoadedKernel& loaded = kernel == Kernel::kStats ? kernels_.stats : kernels_.pack;
  device::InlineLaunch all{};  // the pack kernel takes only the first member
  device::Launch& part = all.launch;
  part = launch;
  void* parameters[] = {&all};
  const std::uint64_t most = std::uint64_t{loaded.resident_blocks} * kTilesPerBlock;
  do {
    part.tiles = std::min(launch.tiles, part.first_tile + most);
    const std::uint64_t blocks =
        std::clamp<std::uint64_t>(part.tiles - part.first_tile, 1, loaded.resident_blocks);
    const bool launched = enqueue(loaded.name, [&] {
      return driver_.launch_kernel(loaded.function, static_cast<unsigned>(blocks), 1, 1, loaded.threads, 1, 1,
                                   0, stream_of(stream), parameters, nullptr);
    });
    if (!launched) return false;
    part.first_tile = part.tiles;
  } while (part.first_tile < launch.tiles);
  return true;
}

bool CudaDevice::launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept {
  const LoadedKernel& loaded = kernels_.stats;
  const std::uint64_t blocks = std::clamp<std::uint64_t>(launch.launch.tiles, 1, loaded.resident_blocks);
  void* parameters[] = {const_cast<device::InlineLaunch*>(&launch)};  // the driver copies the parameters
  return enqueue(loaded.name, [&] {
    return driver_.launch_kernel(loaded.function, static_cast<unsigned>(blocks), 1, 1, loaded.threads, 1, 1,
                                 0, stream_of(stream), parameters, nullptr);
  });
}

bool CudaDevice::write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                            CommitMode commit_mode) noexcept {
  auto* word = static_cast<std::uint64_t*>(device_address(pinned));
  if (commit_mode == CommitMode::kStreamWrite) {
    // Flags 0: with a fence before the write, so that the write is after the copy.
    return can_write_stream_ && enqueue("cuStreamWriteValue64", [&] {
             return driver_.stream_write_value64(stream_of(stream), pointer_of(word), value, 0);
           });
  }
  void* parameters[] = {&word, &value};
  return commit_mode == CommitMode::kCommitKernel && launch_blocks(stream, kernels_.commit, parameters);
}

bool CudaDevice::launch_blocks(StreamHandle stream, const LoadedKernel& kernel, void** parameters,
                               unsigned blocks) noexcept {
  return enqueue(kernel.name, [&] {
    return driver_.launch_kernel(kernel.function, blocks, 1, 1, kernel.threads, 1, 1, 0, stream_of(stream),
                                 parameters, nullptr);
  });
}

bool CudaDevice::record_event(EventHandle event, StreamHandle stream) noexcept {
  return enqueue("cuEventRecord", [&] { return driver_.event_record(event_of(event), stream_of(stream)); });
}

bool CudaDevice::wait_event(StreamHandle stream, EventHandle event) noexcept {
  return enqueue("cuStreamWaitEvent",
                 [&] { return driver_.stream_wait_event(stream_of(stream), event_of(event), 0); });
}

EventState CudaDevice::query_event(EventHandle event) noexcept {
  Result result = kSuccess;
  const bool asked = prepare("cuEventQuery", [&] {
    result = driver_.event_query(event_of(event));
    return result == kNotReady ? kSuccess : result;
  });
  return !asked ? EventState::kFailed : result == kNotReady ? EventState::kPending : EventState::kDone;
}

// ---- graphs ----------------------------------------------------------------------------------------------

std::uint64_t CudaDevice::capture_id(StreamHandle stream) noexcept {
  int status = 0;
  std::uint64_t id = 0;
  if (driver_.stream_get_capture_info == nullptr) return 0;
  const bool known = enqueue("cuStreamGetCaptureInfo", [&] {
    const Result result =
        driver_.stream_get_capture_info(stream_of(stream), &status, &id, nullptr, nullptr, nullptr);
    // As in is_capturing(): the default stream cannot be queried while another stream is being captured.
    return result >= kFirstCaptureError && result <= kLastCaptureError ? kSuccess : result;
  });
  return known && status == kCaptureActive ? id : 0;
}

bool CudaDevice::watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept {
  int status = 0;
  std::uint64_t id = 0;
  Graph graph = nullptr;
  UserObject object = nullptr;
  if (driver_.user_object_create == nullptr || driver_.graph_retain_user_object == nullptr) return false;
  // The graph takes the only reference. Its executable copies, and their work in progress, add references.
  const bool made = enqueue("cuStreamGetCaptureInfo",
                            [&] {
                              return driver_.stream_get_capture_info(stream_of(stream), &status, &id, &graph,
                                                                     nullptr, nullptr);
                            }) &&
                    status == kCaptureActive && graph != nullptr && enqueue("cuUserObjectCreate", [&] {
                      return driver_.user_object_create(&object, data, ended, 1, kUserObjectNoDestructorSync);
                    });
  if (!made) return false;
  // If the graph does not take the reference, the object keeps it, because its release would call `ended`.
  return enqueue("cuGraphRetainUserObject",
                 [&] { return driver_.graph_retain_user_object(graph, object, 1, kGraphUserObjectMove); });
}

bool CudaDevice::open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept {
  void* parameters[] = {&gate, &armed};
  return launch_blocks(stream, kernels_.gate, parameters);
}

bool CudaDevice::set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept {
  // A kernel in every commit mode: the word is in device memory, so a kernel's store is visible to later
  // work.
  void* parameters[] = {&word, &value};
  return launch_blocks(stream, kernels_.commit, parameters);
}

bool CudaDevice::collect(StreamHandle stream, const device::Collection& collection) noexcept {
  device::Collection copy = collection;
  void* parameters[] = {&copy};
  return launch_blocks(stream, kernels_.collect, parameters, collection.count);
}

}  // namespace tdcore::cuda
