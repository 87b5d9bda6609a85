// driver.hpp: the CUDA driver as a table of functions, found in libcuda.so.1 at run time.
//
// tdcore does not link against CUDA and needs no CUDA header: the declarations below are the used part of the
// driver's binary interface (12.0, driver 525), and each entry point is loaded by the name with its version.
// If the driver is missing, too old or incomplete, the result is an error text and never a crash. Loading the
// library does not initialize CUDA. initialize() does, and must not be called before the first tensor on a
// device, because CUDA does not work in children that are forked later. Threads: any; the table never changes
// after its creation, and the library is never closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tdcore::cuda {

using Result = int;  // CUresult
using DeviceOrdinal = int;
using DevicePointer = std::uint64_t;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using GraphNode = struct GraphNodeTag*;
using UserObject = struct UserObjectTag*;
using HostFunction = void (*)(void* data);

// Results that are distinguished; numbers as in cuda.h.
inline constexpr Result kSuccess = 0;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kNotReady = 600;
inline constexpr Result kFirstCaptureError = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
inline constexpr Result kLastCaptureError = 908;   // CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD

// Flags and attributes, numbers as in cuda.h.
inline constexpr unsigned kHostPortable = 1, kHostDeviceMap = 2;  // of cuMemHostAlloc and cuMemHostRegister
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeRelaxed = 2, kCaptureActive = 1;
inline constexpr unsigned kUserObjectNoDestructorSync = 1, kGraphUserObjectMove = 1;
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeMajor = 75, kAttributeMinor = 76;
inline constexpr int kAttributeStreamWrite64 = 122;
inline constexpr int kAttributeMps = 133;

inline constexpr int kOldestVersion = 12000;  // value of cuDriverGetVersion for driver 525
inline constexpr const char* kOldestDriver = "525 (CUDA 12.0)";

// member, symbol, parameters. NVIDIA's headers rename functions to their newest version; an exported name
// with a version never changes its meaning.
#define TDCORE_CUDA_ENTRY_POINTS(X)                                                                         \
  X(get_error_name, cuGetErrorName, (Result error, const char** text))                                      \
  X(init, cuInit, (unsigned flags))                                                                         \
  X(driver_get_version, cuDriverGetVersion, (int* version))                                                 \
  X(device_get_count, cuDeviceGetCount, (int* count))                                                       \
  X(device_get, cuDeviceGet, (DeviceOrdinal * device, int ordinal))                                         \
  X(device_get_name, cuDeviceGetName, (char* name, int bytes, DeviceOrdinal device))                        \
  X(device_total_mem, cuDeviceTotalMem_v2, (std::size_t* bytes, DeviceOrdinal device))                      \
  X(device_get_attribute, cuDeviceGetAttribute, (int* value, int attribute, DeviceOrdinal device))          \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (Context * context, DeviceOrdinal device))            \
  X(primary_context_release, cuDevicePrimaryCtxRelease_v2, (DeviceOrdinal device))                          \
  X(context_get_current, cuCtxGetCurrent, (Context * context))                                              \
  X(context_push, cuCtxPushCurrent_v2, (Context context))                                                   \
  X(context_pop, cuCtxPopCurrent_v2, (Context * context))                                                   \
  X(priority_range, cuCtxGetStreamPriorityRange, (int* least, int* greatest))                               \
  X(module_load, cuModuleLoadDataEx,                                                                        \
    (Module * module, const void* image, unsigned options, int* names, void** values))                      \
  X(module_unload, cuModuleUnload, (Module module))                                                         \
  X(module_get_function, cuModuleGetFunction, (Function * function, Module module, const char* name))       \
  X(max_active_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                         \
    (int* blocks, Function function, int threads, std::size_t shared_bytes))                                \
  X(mem_get_info, cuMemGetInfo_v2, (std::size_t* free, std::size_t* total))                                 \
  X(mem_alloc, cuMemAlloc_v2, (DevicePointer * memory, std::size_t bytes))                                  \
  X(mem_free, cuMemFree_v2, (DevicePointer memory))                                                         \
  X(mem_host_alloc, cuMemHostAlloc, (void** memory, std::size_t bytes, unsigned flags))                     \
  X(mem_free_host, cuMemFreeHost, (void* memory))                                                           \
  X(mem_host_register, cuMemHostRegister_v2, (void* memory, std::size_t bytes, unsigned flags))             \
  X(mem_host_unregister, cuMemHostUnregister, (void* memory))                                               \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer_v2,                                              \
    (DevicePointer * device, void* memory, unsigned flags))                                                 \
  X(memcpy_to_device, cuMemcpyHtoDAsync_v2,                                                                 \
    (DevicePointer to, const void* from, std::size_t bytes, Stream stream))                                 \
  X(memcpy_to_host, cuMemcpyDtoHAsync_v2, (void* to, DevicePointer from, std::size_t bytes, Stream stream)) \
  X(memset_bytes, cuMemsetD8Async,                                                                          \
    (DevicePointer memory, unsigned char value, std::size_t bytes, Stream stream))                          \
  X(stream_create, cuStreamCreateWithPriority, (Stream * stream, unsigned flags, int priority))             \
  X(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                                    \
  X(stream_is_capturing, cuStreamIsCapturing, (Stream stream, int* status))                                 \
  X(stream_wait_event, cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                     \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                                  \
  X(event_create, cuEventCreate, (Event * event, unsigned flags))                                           \
  X(event_destroy, cuEventDestroy_v2, (Event event))                                                        \
  X(event_record, cuEventRecord, (Event event, Stream stream))                                              \
  X(event_query, cuEventQuery, (Event event))                                                               \
  X(launch_kernel, cuLaunchKernel,                                                                          \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,           \
     void** extra))

struct Driver {
#define TDCORE_CUDA_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  TDCORE_CUDA_ENTRY_POINTS(TDCORE_CUDA_MEMBER)
#undef TDCORE_CUDA_MEMBER
  // Null if the driver does not have the function, which is optional.
  Result (*stream_write_value64)(Stream stream, DevicePointer word, std::uint64_t value,
                                 unsigned flags) = nullptr;  // cuStreamWriteValue64_v2
  Result (*function_load)(Function function) = nullptr;      // cuFuncLoad, since 12.4
  // For graphs. Without one of them, tensors of captured streams are not captured.
  Result (*stream_get_capture_info)(Stream stream, int* status, std::uint64_t* id, Graph* graph,
                                    const GraphNode** dependencies,
                                    std::size_t* count) = nullptr;  // cuStreamGetCaptureInfo_v2
  Result (*user_object_create)(UserObject* object, void* data, HostFunction destroy, unsigned references,
                               unsigned flags) = nullptr;  // cuUserObjectCreate
  Result (*graph_retain_user_object)(Graph graph, UserObject object, unsigned references,
                                     unsigned flags) = nullptr;  // cuGraphRetainUserObject
  int version = 0;                                               // 12040 is CUDA 12.4
  std::string path;                                              // path of the library
};

/// Loads the driver in `path`; null, with the reason and advice, if it cannot be used. Does not initialize
/// CUDA.
std::unique_ptr<const Driver> open_driver(const char* path, std::string& reason);

/// The driver of the process: libcuda.so.1, or the library in TDCORE_LIBCUDA (for tests). Searched once.
const Driver* shared_driver(std::string& reason);

/// Calls cuInit. False, with the reason, if no device can be used. Further calls are cheap.
bool initialize(const Driver& driver, std::string& reason);

/// "CUDA_ERROR_OUT_OF_MEMORY (2)".
std::string error_text(const Driver& driver, Result result);

/// Whether every later call of the process fails after this error.
bool is_sticky(Result result) noexcept;

/// "12.4" of 12040.
std::string version_text(int version);

}  // namespace tdcore::cuda
