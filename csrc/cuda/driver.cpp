// Loads libcuda.so.1, finds its entry points, and checks its version.
#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <mutex>

#include "cuda/load_symbol.hpp"

namespace tdcore::cuda {

namespace {

/// Fills the table. Returns the first missing entry point; null if all exist.
const char* fill(void* library, Driver& driver) {
#define TDCORE_CUDA_TAKE(member, symbol, parameters) \
  if (!load_symbol(library, #symbol, driver.member)) return #symbol;
  TDCORE_CUDA_ENTRY_POINTS(TDCORE_CUDA_TAKE)
#undef TDCORE_CUDA_TAKE
  (void)load_symbol(library, "cuStreamWriteValue64_v2", driver.stream_write_value64);
  (void)load_symbol(library, "cuFuncLoad", driver.function_load);
  (void)load_symbol(library, "cuStreamGetCaptureInfo_v2", driver.stream_get_capture_info);
  (void)load_symbol(library, "cuUserObjectCreate", driver.user_object_create);
  (void)load_symbol(library, "cuGraphRetainUserObject", driver.graph_retain_user_object);
  return nullptr;
}

std::string path_of(void* library, const char* name) {
  link_map* map = nullptr;
  const bool known =
      ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr;
  return known ? map->l_name : name;
}

}  // namespace

std::unique_ptr<const Driver> open_driver(const char* path, std::string& reason) {
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const said = ::dlerror();
    reason = std::string("no CUDA driver: ") + (said != nullptr ? said : path) +
             "; install the NVIDIA driver, or start the container with GPUs";
    return nullptr;
  }
  auto driver = std::make_unique<Driver>();
  driver->path = path_of(library, path);
  // The version first: an old driver lacks entry points, and the error must mention its version.
  if (load_symbol(library, "cuDriverGetVersion", driver->driver_get_version)) {
    (void)driver->driver_get_version(&driver->version);
  }
  const char* const missing = fill(library, *driver);
  if (driver->version != 0 && driver->version < kOldestVersion) {
    reason = "the CUDA driver (" + driver->path + ") is for CUDA " + version_text(driver->version) +
             "; tdcore needs driver " + kOldestDriver + " or newer";
    return nullptr;
  }
  if (missing != nullptr) {
    reason = "the CUDA driver (" + driver->path + ") has no " + missing + "; tdcore needs driver " +
             kOldestDriver + " or newer";
    return nullptr;
  }
  return driver;
}

const Driver* shared_driver(std::string& reason) {
  // Kept until the process ends, because devices are destroyed late, in any order.
  static std::once_flag once;
  static const Driver* driver = nullptr;
  static std::string* why = nullptr;
  std::call_once(once, [] {
    auto said = std::make_unique<std::string>();
    const char* const named = std::getenv("TDCORE_LIBCUDA");
    driver = open_driver(named != nullptr && named[0] != '\0' ? named : "libcuda.so.1", *said).release();
    why = said.release();
  });
  reason = *why;
  return driver;
}

bool initialize(const Driver& driver, std::string& reason) {
  const Result result = driver.init(0);
  if (result == kSuccess) return true;
  reason = "CUDA cannot start: cuInit returned " + error_text(driver, result) +
           (result == kNoDevice ? "; no device is visible, check CUDA_VISIBLE_DEVICES and nvidia-smi"
                                : "; check that nvidia-smi works here");
  return false;
}

std::string error_text(const Driver& driver, Result result) {
  const char* name = nullptr;
  if (driver.get_error_name(result, &name) != kSuccess || name == nullptr) name = "error";
  return std::string(name) + " (" + std::to_string(result) + ")";
}

bool is_sticky(Result result) noexcept {
  switch (result) {
    case kDeinitialized:
    case 46:   // DEVICE_UNAVAILABLE
    case 201:  // INVALID_CONTEXT
    case 214:  // ECC_UNCORRECTABLE
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 806:  // MPS_RPC_FAILURE
    case 810:  // MPS_CLIENT_TERMINATED
    case 911:  // EXTERNAL_DEVICE
    case 999:  // UNKNOWN
      return true;
    default:
      return false;
  }
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace tdcore::cuda
