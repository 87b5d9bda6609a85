// A driver without a device: the entry points of libcuda.so.1 that csrc/cuda/driver.hpp uses.
#include "fake_cuda.hpp"

#include "device/launch.hpp"

#include <cstdlib>
#include <cstring>
#include <functional>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using tdcore::testing::FakeCuda;

FakeCuda& fake() {
  static FakeCuda state;
  return state;
}

std::function<void()>& delayed() {
  static std::function<void()> copy;
  return copy;
}

void* const kContext = reinterpret_cast<void*>(0xc0);

/// Status at the start of a call: 0, or the status that the test has requested.
int enter(const char* name) {
  const int number = ++fake().calls[name];
  const auto all = fake().failing.find(name);
  if (all != fake().failing.end()) return all->second;
  const auto one = fake().fail_at.find(name);
  return one != fake().fail_at.end() && one->second == number ? 2 : 0;
}

/// Like enter(), for a call that needs the context.
int enter_current(const char* name) {
  if (fake().contexts.empty() || fake().contexts.back() != kContext) {
    ++fake().not_current;
    return 201;
  }
  return enter(name);
}

/// Like enter_current(), for a call that invalidates a capture unless it is made in relaxed mode.
int enter_waiting(const char* name) {
  if (fake().capture_mode != 2) ++fake().strict;
  return enter_current(name);
}

template <class Act>
int done(int result, Act&& act) {
  if (result == 0) act();
  return result;
}

template <class Handle>
void make(Handle* handle) {
  static std::uintptr_t next = 0x1000;
  *handle = reinterpret_cast<Handle>(next += 16);
  ++fake().live;
}

}  // namespace

EXPORT FakeCuda* tdcore_fake_cuda() { return &fake(); }

EXPORT int cuGetErrorName(int error, const char** text) {
  *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}
EXPORT int cuInit(unsigned) { return fake().devices == 0 ? 100 : enter("cuInit"); }
EXPORT int cuDriverGetVersion(int* version) { return *version = fake().version, 0; }
EXPORT int cuDeviceGetCount(int* count) { return *count = fake().devices, enter("cuDeviceGetCount"); }
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= fake().devices ? 101 : enter("cuDeviceGet");
}
EXPORT int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Fake H100 MIG 1g.10gb", static_cast<std::size_t>(bytes));
  return enter("cuDeviceGetName");
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{8} << 30, 0; }
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  const FakeCuda& it = fake();
  *value = attribute == 16    ? 4
           : attribute == 75  ? it.major
           : attribute == 76  ? it.minor
           : attribute == 122 ? (it.stream_writes ? 1 : 0)
                              : 0;
  return enter("cuDeviceGetAttribute");
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  return done(enter("cuDevicePrimaryCtxRetain"), [&] { *context = kContext, ++fake().live; });
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  return done(enter("cuDevicePrimaryCtxRelease"), [] { --fake().live; });
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = fake().contexts.empty() ? nullptr : fake().contexts.back();
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  return done(enter("cuCtxPushCurrent"), [&] { fake().contexts.push_back(context); });
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  *context = fake().contexts.back();
  fake().contexts.pop_back();
  return 0;
}
EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }

// A module is its image's first word; a function is its name.
EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  const std::string begin(static_cast<const char*>(image), 4);
  fake().images.push_back(begin);
  for (const std::string& refused : fake().refused_images) {
    if (begin.starts_with(refused)) return 209;
  }
  return done(enter_waiting("cuModuleLoadDataEx"), [&] { make(module); });
}
EXPORT int cuModuleUnload(void*) {
  return done(enter_waiting("cuModuleUnload"), [] { --fake().live; });
}
EXPORT int cuModuleGetFunction(void** function, void*, const char* name) {
  return done(enter_current("cuModuleGetFunction"), [&] { *function = const_cast<char*>(name); });
}
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  return *blocks = 8, 0;
}

EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{8} << 30;
  return enter("cuMemGetInfo");
}
EXPORT int cuMemAlloc_v2(std::uint64_t* memory, std::size_t bytes) {
  return done(enter_waiting("cuMemAlloc"), [&] {
    *memory = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    ++fake().live;
  });
}
EXPORT int cuMemFree_v2(std::uint64_t memory) {
  return done(enter_waiting("cuMemFree"), [&] {
    std::free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)));
    --fake().live;
  });
}
EXPORT int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  if (flags != 3) return 1;
  return done(enter_waiting("cuMemHostAlloc"), [&] {
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    ++fake().live;
  });
}
EXPORT int cuMemFreeHost(void* memory) {
  return done(enter_waiting("cuMemFreeHost"), [&] { std::free(memory), --fake().live; });
}
EXPORT int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  if (flags != 3 || bytes == 0 || at % 4096 != 0 || bytes % 4096 != 0) return 1;
  return done(enter_waiting("cuMemHostRegister"), [&] { fake().registered[at] = bytes; });
}
EXPORT int cuMemHostUnregister(void* memory) {
  const int result = enter_waiting("cuMemHostUnregister");
  return result != 0                                                              ? result
         : fake().registered.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1 ? 0
                                                                                  : 713;
}
EXPORT int cuMemHostGetDevicePointer_v2(std::uint64_t* device, void* memory, unsigned) {
  // If memory is moved, registered pieces after the first piece have another offset.
  const std::uintptr_t pieces = fake().registered.empty() ? 0 : fake().registered.size() - 1;
  *device = reinterpret_cast<std::uintptr_t>(memory) + fake().moved_by * (1 + pieces);
  return enter_current("cuMemHostGetDevicePointer");
}

EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  return done(enter_current("cuMemcpyHtoDAsync"),
              [&] { std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), from, bytes); });
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  return done(enter_current("cuMemcpyDtoHAsync"), [=] {
    const auto copy = [=] {
      std::memcpy(to, reinterpret_cast<void*>(static_cast<std::uintptr_t>(from)), bytes);
    };
    if (fake().late_copies) {
      delayed() = copy;
    } else {
      copy();
    }
  });
}
EXPORT int cuMemsetD8Async(std::uint64_t memory, unsigned char value, std::size_t bytes, void*) {
  return done(enter_current("cuMemsetD8Async"), [&] {
    std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)), value, bytes);
  });
}
EXPORT int cuStreamWriteValue64_v2(void*, std::uint64_t word, std::uint64_t value, unsigned flags) {
  return done(enter_current("cuStreamWriteValue64"), [&] {
    if (flags != 0 || fake().drop_stream_writes) return;
    std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(word - fake().moved_by)), &value,
                sizeof value);
  });
}

EXPORT int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (flags != 1) return 1;
  fake().priorities.push_back(priority);
  return done(enter_current("cuStreamCreateWithPriority"), [&] { make(stream); });
}
EXPORT int cuStreamDestroy_v2(void*) {
  return done(enter_current("cuStreamDestroy"), [] { --fake().live; });
}
EXPORT int cuStreamIsCapturing(void*, int* status) {
  *status = fake().capture_status;
  return enter_current("cuStreamIsCapturing");
}
EXPORT int cuStreamGetCaptureInfo_v2(void*, int* status, std::uint64_t* id, void** graph, const void**,
                                     std::size_t*) {
  return done(enter_current("cuStreamGetCaptureInfo"), [&] {
    *status = fake().capture_status;
    *id = fake().capture_id;
    if (graph != nullptr) *graph = &fake();
  });
}
EXPORT int cuUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned references,
                              unsigned flags) {
  if (references != 1 || flags != 1) return 1;
  return done(enter_current("cuUserObjectCreate"), [&] {
    *object = data;
    fake().graph_ended = destroy;
  });
}
EXPORT int cuGraphRetainUserObject(void* graph, void* object, unsigned references, unsigned flags) {
  if (graph != &fake() || references != 1 || flags != 1) return 1;
  return done(enter_current("cuGraphRetainUserObject"), [&] { fake().graph_data = object; });
}
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return enter_current("cuStreamWaitEvent"); }
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, fake().capture_mode), 0; }
EXPORT int cuEventCreate(void** event, unsigned flags) {
  if (flags != 2) return 1;
  return done(enter_current("cuEventCreate"), [&] { make(event); });
}
EXPORT int cuEventDestroy_v2(void*) {
  return done(enter_current("cuEventDestroy"), [] { --fake().live; });
}
EXPORT int cuEventRecord(void*, void*) { return enter_current("cuEventRecord"); }
EXPORT int cuEventQuery(void*) {
  const int result = enter_waiting("cuEventQuery");
  return result == 0 && fake().events_pending ? 600 : result;
}

constexpr int kRelaxedMode = 2;

EXPORT int cuLaunchKernel(void* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                          unsigned, unsigned, void* stream, void** parameters, void**) {
  const std::string name = static_cast<const char*>(function);
  if (fake().loaded.insert(name).second && fake().capture_status != 0 &&
      fake().capture_mode != kRelaxedMode) {
    ++fake().loads_in_capture;
    return 900;
  }
  return done(enter_current("cuLaunchKernel"), [&] {
    tdcore::testing::FakeLaunch seen{.kernel = name,
                                     .blocks = blocks,
                                     .threads = threads,
                                     .stream = reinterpret_cast<std::uintptr_t>(stream),
                                     .launch = {}};
    if (name == "tdcore_commit") {
      auto* word = *static_cast<std::uint64_t**>(parameters[0]);
      word = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uintptr_t>(word) - fake().moved_by);
      if (!fake().drop_commit_kernel) *word = *static_cast<std::uint64_t*>(parameters[1]);
    } else if (name == "tdcore_gate") {
      **static_cast<std::uint64_t**>(parameters[0]) = **static_cast<const std::uint64_t**>(parameters[1]);
    } else {
      const char* const launch = static_cast<const char*>(parameters[0]);
      const std::size_t bytes = name == "tdcore_stats"     ? sizeof(tdcore::device::InlineLaunch)
                                : name == "tdcore_collect" ? sizeof(tdcore::device::Collection)
                                                           : sizeof(tdcore::device::Launch);
      seen.launch.assign(launch, launch + bytes);
    }
    fake().launches.push_back(seen);
  });
}
