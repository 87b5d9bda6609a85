// Set-up of a CUDA device (context, description, kernels, probe of its commit modes) and its destruction.
#include <unistd.h>

#include <cstdlib>

#include "cuda/commit_probe.hpp"
#include "cuda/cuda_device.hpp"

namespace tdcore::cuda {

namespace {

constexpr std::uint64_t kWarmUpBytes = 256;

}  // namespace

CudaDevice::CudaDevice(const Driver& driver, DeviceOrdinal device, const CudaDeviceOptions& options)
    : driver_(driver), device_(device), options_(options), pid_(::getpid()) {}

std::unique_ptr<CudaDevice> CudaDevice::open(const Driver& driver, int ordinal,
                                             const CudaDeviceOptions& options, std::string& reason) noexcept {
  try {
    if (!initialize(driver, reason)) return nullptr;
    DeviceOrdinal device = 0;
    if (const Result result = driver.device_get(&device, ordinal); result != kSuccess) {
      reason = "there is no device " + std::to_string(ordinal) + ": " + error_text(driver, result) +
               "; check CUDA_VISIBLE_DEVICES";
      return nullptr;
    }
    std::unique_ptr<CudaDevice> made(new CudaDevice(driver, device, options));
    return made->set_up(reason) ? std::move(made) : nullptr;
  } catch (...) {
    try {
      reason = "no host memory is left to set the device up";
    } catch (...) {  // no memory for the reason either
    }
    return nullptr;
  }
}

bool CudaDevice::set_up(std::string& reason) {
  // Another thread may be capturing a CUDA graph at the first use of the device.
  int mode = kCaptureModeRelaxed;
  const bool relaxed = driver_.exchange_capture_mode(&mode) == kSuccess;
  const auto finish = [&](bool good) {
    if (relaxed) (void)driver_.exchange_capture_mode(&mode);
    return good;
  };
  describe();
  Result result = driver_.primary_context_retain(&context_, device_);
  if (result == kSuccess) result = driver_.context_push(context_);
  if (result != kSuccess) {
    reason = "the context of " + info_.name + " cannot be created: " + error_text(driver_, result) +
             "; another process may hold the device alone (nvidia-smi -q -d COMPUTE)";
    return finish(false);
  }
  kernels_ = load_kernels(driver_, architecture_, info_.multiprocessors, options_.kernels, reason);
  info_.kernels = kernels_.from;
  info_.launch_tiles = kernels_.stats.resident_blocks * kTilesPerBlock;
  bool good = kernels_.module != nullptr;
  if (good && driver_.function_load == nullptr && !launch_all_kernels()) {
    good = false;
    reason = "the kernels cannot be loaded: " + errors();
  }
  if (good) {
    const CommitMode first = can_write_stream_ ? CommitMode::kStreamWrite : CommitMode::kCommitKernel;
    if (!can_write_stream_) info_.commit_mode_reason = "the device cannot write 64-bit words in stream order";
    info_.best_commit_mode = probe_commit(*this, first, options_.probe_ms, info_.commit_mode_reason);
    if (off_.load(std::memory_order_relaxed)) reason = errors();
  }
  Context was = nullptr;
  (void)driver_.context_pop(&was);
  return finish(good && !off_.load(std::memory_order_relaxed));
}

/// Launches each kernel once, without any effect. Drivers before 12.4 load the code of a kernel at its first
/// launch, which is not allowed while a graph is captured.
bool CudaDevice::launch_all_kernels() {
  const StreamHandle stream = make_stream();
  auto* const words = static_cast<std::uint64_t*>(allocate(kWarmUpBytes));
  if (stream == 0 || words == nullptr || !fill_zero(stream, words, kWarmUpBytes)) return false;
  device::Launch nothing{};
  nothing.gate = words;  // closed
  device::Collection collection{};
  collection.count = 1;
  collection.records[0].outcome = reinterpret_cast<device::CollectionOutcome*>(words + 1);
  collection.records[0].kind = reinterpret_cast<std::uint32_t*>(words);
  return launch(stream, Kernel::kStats, nothing) && launch(stream, Kernel::kPack, nothing) &&
         open_gate(stream, words, words) && set_word(stream, words, 0) && collect(stream, collection);
}

void CudaDevice::describe() {
  const auto attribute = [&](int which) {
    int value = 0;
    return driver_.device_get_attribute(&value, which, device_) == kSuccess ? value : 0;
  };
  char name[256] = {};
  std::size_t bytes = 0;
  (void)driver_.device_get_name(name, sizeof name - 1, device_);
  (void)driver_.device_total_mem(&bytes, device_);
  info_.name = name[0] != '\0' ? name : "device " + std::to_string(device_);
  info_.memory_bytes = bytes;
  const int multiprocessors = attribute(kAttributeMultiprocessors);
  info_.multiprocessors = multiprocessors > 0 ? static_cast<std::uint32_t>(multiprocessors) : 1;
  architecture_ = attribute(kAttributeMajor) * 10 + attribute(kAttributeMinor);
  can_write_stream_ = driver_.stream_write_value64 != nullptr && attribute(kAttributeStreamWrite64) != 0;
}

CudaDevice::~CudaDevice() {
  // A forked child has the parent's handles but not its CUDA state. At the end of the process the driver may
  // be unloaded; then each call returns an error and has no effect.
  if (context_ == nullptr || ::getpid() != pid_) return;
  int mode = kCaptureModeRelaxed;
  const bool relaxed = driver_.exchange_capture_mode(&mode) == kSuccess;
  Context was = nullptr;
  const bool pushed = driver_.context_push(context_) == kSuccess;
  if (pushed) {
    for (const Stream stream : streams_) (void)driver_.stream_destroy(stream);
    for (const Event event : events_) (void)driver_.event_destroy(event);
    if (kernels_.module != nullptr) (void)driver_.module_unload(kernels_.module);
    for (void* const piece : pinned_) (void)driver_.mem_host_unregister(piece);
    for (void* const memory : host_memory_) (void)driver_.mem_free_host(memory);
    for (const DevicePointer memory : memory_) (void)driver_.mem_free(memory);
    (void)driver_.context_pop(&was);
  }
  (void)driver_.primary_context_release(device_);
  if (relaxed) (void)driver_.exchange_capture_mode(&mode);
}

std::unique_ptr<CudaDevice> open_cuda_device(int ordinal, std::string& reason) noexcept {
  try {
    const Driver* const driver = shared_driver(reason);
    if (driver == nullptr) return nullptr;
    CudaDeviceOptions options;
    options.kernels = kernel_options_from_environment();
    return CudaDevice::open(*driver, ordinal, options, reason);
  } catch (...) {
    return nullptr;
  }
}

}  // namespace tdcore::cuda
