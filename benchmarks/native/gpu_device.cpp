// gpu_device.cpp: functions to open a device, wait, copy and measure time.
#include "gpu_device.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "cuda/cuda_device.hpp"
#include "sim/sim_device.hpp"

namespace tdcore::bench {
namespace {

constexpr std::uint64_t kStageBytes = std::uint64_t{8} << 20;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Pinned memory and an event, created once for each device, because a device cannot release them.
struct Stage {
  void* memory = nullptr;
  EventHandle event = 0;
};

Stage& stage_of(Device& device) {
  static std::vector<std::pair<Device*, Stage>> stages;
  for (auto& [owner, stage] : stages) {
    if (owner == &device) return stage;
  }
  stages.emplace_back(&device, Stage{pinned_memory(device, kStageBytes), device.make_event()});
  return stages.back().second;
}

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name) {
  if (name == "host" || name == "early") {
    SimDeviceOptions quick;
    quick.delay_us = 0;
    quick.early_words = name == "early";
    return std::make_unique<SimDevice>(quick);
  }
  if (name.rfind("cuda:", 0) != 0) {
    throw std::runtime_error("device must be cuda:N, host or early, got " + name);
  }
  std::string reason;
  const cuda::Driver* driver = cuda::shared_driver(reason);
  if (driver == nullptr || !cuda::initialize(*driver, reason)) {
    throw std::runtime_error(reason);
  }
  cuda::CudaDeviceOptions options;
  options.kernels = cuda::kernel_options_from_environment();
  std::unique_ptr<Device> device =
      cuda::CudaDevice::open(*driver, std::stoi(name.substr(5)), options, reason);
  if (device == nullptr) throw std::runtime_error(reason);
  return device;
}

void check(Device& device, bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string(what) + " failed: " + device.errors());
}

void* device_memory(Device& device, std::uint64_t bytes) {
  void* memory = device.allocate(bytes);
  if (memory == nullptr) {
    throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " bytes of device memory");
  }
  return memory;
}

void* pinned_memory(Device& device, std::uint64_t bytes) {
  void* memory = device.allocate_host(bytes);
  if (memory == nullptr) {
    throw std::runtime_error("cannot allocate " + std::to_string(bytes) + " bytes of pinned memory");
  }
  return memory;
}

void* pinned_mapping(Device& device, std::uint64_t bytes) {
  const int descriptor = memfd_create("tdcore-bench", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error("cannot create a memory file of " + std::to_string(bytes) + " bytes");
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap of a memory file failed");
  check(device, device.pin(memory, bytes), "pinning of a memory file");
  return memory;
}

void wait(Device& device, StreamHandle stream) {
  const EventHandle event = stage_of(device).event;
  check(device, device.record_event(event, stream), "an event");
  for (;;) {
    const EventState state = device.query_event(event);
    if (state == EventState::kDone) return;
    check(device, state != EventState::kFailed, "work");
  }
}

void upload(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes) {
  void* stage = stage_of(device).memory;
  for (std::uint64_t at = 0; at < bytes; at += kStageBytes) {
    const std::uint64_t piece = std::min(kStageBytes, bytes - at);
    std::memcpy(stage, static_cast<const std::byte*>(from) + at, piece);
    check(device, device.copy_to_device(stream, static_cast<std::byte*>(to) + at, stage, piece), "a copy");
    wait(device, stream);
  }
}

void download(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes) {
  void* stage = stage_of(device).memory;
  for (std::uint64_t at = 0; at < bytes; at += kStageBytes) {
    const std::uint64_t piece = std::min(kStageBytes, bytes - at);
    check(device, device.copy_to_host(stream, stage, static_cast<const std::byte*>(from) + at, piece),
          "a copy");
    wait(device, stream);
    std::memcpy(static_cast<std::byte*>(to) + at, stage, piece);
  }
}

double seconds_of(Device& device, StreamHandle stream, double least, const std::function<void()>& run) {
  int repeats = 1;
  for (;;) {
    wait(device, stream);
    const double start = now();
    for (int i = 0; i < repeats; ++i) run();
    wait(device, stream);
    const double taken = now() - start;
    if (taken >= least || repeats >= 4096) return taken / repeats;
    const double wanted = 1.2 * least / std::max(taken, 1e-6) * repeats;
    repeats = static_cast<int>(std::clamp(std::ceil(wanted), repeats + 1.0, 4096.0));
  }
}

PlainCopies::PlainCopies(const std::string& device) {
  if (device.rfind("cuda:", 0) != 0) return;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto entry = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    return function != nullptr;
  };
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  void* context = nullptr;
  if (entry(retain, "cuDevicePrimaryCtxRetain") && entry(set_current, "cuCtxSetCurrent") &&
      retain(&context, std::stoi(device.substr(5))) == 0 && set_current(context) == 0) {
    entry(within_, "cuMemcpyDtoDAsync_v2");
  }
}

bool PlainCopies::within(void* to, const void* from, std::uint64_t bytes,
                         StreamHandle stream) const noexcept {
  return within_ != nullptr &&
         within_(reinterpret_cast<std::uint64_t>(to), reinterpret_cast<std::uint64_t>(from), bytes,
                 reinterpret_cast<void*>(stream)) == 0;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string field(const char* name, double value) {
  char text[128];
  std::snprintf(text, sizeof text, "\"%s\": %.6g", name, value);
  return text;
}

std::string field(const char* name, const std::string& value) {
  std::string text = "\"";
  text.append(name).append("\": \"");
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  text += '"';
  return text;
}

std::string object(const std::vector<std::string>& fields) {
  std::string text = "{";
  for (const std::string& each : fields) {
    if (text.size() > 1) text.append(", ");
    text.append(each);
  }
  text.append("}");
  return text;
}

std::string array(const std::vector<std::string>& rows) {
  std::string text = "[";
  for (const std::string& each : rows) {
    text.append(text.size() > 1 ? ",\n  " : "\n  ").append(each);
  }
  text.append("]");
  return text;
}

}  // namespace tdcore::bench
