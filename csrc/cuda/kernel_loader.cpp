// Images are tried until the driver accepts one. Its functions are then loaded immediately, and not at their
// first launch.
#include "cuda/kernel_loader.hpp"

#include <cstdlib>
#include <mutex>

#include "cuda/kernel_cache.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/kernels.hpp"
#include "cuda/nvrtc.hpp"

namespace tdcore::cuda {

namespace {

void add_reason(std::string& reason, const std::string& more) {
  reason += (reason.empty() ? "" : "; ") + more;
}

Result take_kernel(const Driver& driver, Module module, const char* name, unsigned threads,
                   std::uint32_t multiprocessors, LoadedKernel& kernel) {
  kernel.name = name;
  kernel.threads = threads;
  Result result = driver.module_get_function(&kernel.function, module, name);
  // Otherwise lazy loading loads the code at the first launch, which may wait for the device.
  if (result == kSuccess && driver.function_load != nullptr) result = driver.function_load(kernel.function);
  int blocks = 0;
  if (result == kSuccess) {
    result = driver.max_active_blocks(&blocks, kernel.function, static_cast<int>(threads), 0);
  }
  kernel.resident_blocks = static_cast<unsigned>(blocks > 0 ? blocks : 1) * multiprocessors;
  return result;
}

/// False, with the reason, if the driver rejects the image.
bool load_image(const Driver& driver, const char* image, const char* from, std::uint32_t multiprocessors,
                Kernels& kernels, std::string& reason) {
  Kernels loaded;
  loaded.from = from;
  Result result = driver.module_load(&loaded.module, image, 0, nullptr, nullptr);
  const bool opened = result == kSuccess;
  if (opened)
    result = take_kernel(driver, loaded.module, device::kStatsKernel, device::kStatsThreads, multiprocessors,
                         loaded.stats);
  if (result == kSuccess)
    result = take_kernel(driver, loaded.module, device::kPackKernel, device::kPackThreads, multiprocessors,
                         loaded.pack);
  if (result == kSuccess)
    result = take_kernel(driver, loaded.module, device::kCommitKernel, 1, multiprocessors, loaded.commit);
  if (result == kSuccess)
    result = take_kernel(driver, loaded.module, device::kGateKernel, 1, multiprocessors, loaded.gate);
  if (result == kSuccess)
    result = take_kernel(driver, loaded.module, device::kCollectKernel, device::kCollectThreads,
                         multiprocessors, loaded.collect);
  if (result == kSuccess) {
    kernels = loaded;
    return true;
  }
  if (opened) (void)driver.module_unload(loaded.module);
  add_reason(reason, std::string("the driver does not take the kernels (") + from +
                         "): " + error_text(driver, result));
  return false;
}

bool load_fatbin(const Driver& driver, std::uint32_t multiprocessors, Kernels& kernels, std::string& reason) {
  const std::string_view fatbin = kernel_fatbin();
  if (fatbin.empty()) {
    add_reason(reason, "this build contains no compiled kernels (it was built without nvcc)");
    return false;
  }
  return load_image(driver, fatbin.data(), "fatbin", multiprocessors, kernels, reason);
}

/// Loads the image of one NVRTC for the architecture, from the cache if possible.
bool load_compiled(const Driver& driver, const Nvrtc& nvrtc, int architecture, std::uint32_t multiprocessors,
                   const KernelCache& cache, Kernels& kernels, std::string& reason) {
  const std::string key = nvrtc.key(architecture);
  std::string image;
  std::string unused;
  if (cache.load(key, image) && load_image(driver, image.data(), "nvrtc", multiprocessors, kernels, unused)) {
    return true;
  }
  if (!nvrtc.compile(kernel_source(), architecture, image, reason)) return false;
  if (!load_image(driver, image.data(), "nvrtc", multiprocessors, kernels, reason)) return false;
  cache.store(key, image);
  return true;
}

bool load_nvrtc(const Driver& driver, int architecture, std::uint32_t multiprocessors,
                const KernelOptions& options, Kernels& kernels, std::string& reason) {
  const KernelCache cache(options.cache_folder);
  bool found = false;
  for (const std::string& path : nvrtc_paths(options.folders)) {
    const std::unique_ptr<const Nvrtc> nvrtc = Nvrtc::open(path);
    if (nvrtc == nullptr) continue;
    found = true;
    if (load_compiled(driver, *nvrtc, architecture, multiprocessors, cache, kernels, reason)) return true;
  }
  // An NVRTC newer than the driver may generate code that the driver rejects, so the advice is a package for
  // the driver's major version.
  add_reason(reason, std::string(found ? "no NVRTC that was found serves" : "no NVRTC was found") +
                         "; pip install \"tdcore-capture[" + (driver.version < 13000 ? "cuda12" : "cuda") +
                         "]\"");
  return false;
}

std::mutex folders_mutex;  // guards package_folders
std::vector<std::string>& package_folders() {
  static std::vector<std::string> folders;
  return folders;
}

}  // namespace

Kernels load_kernels(const Driver& driver, int architecture, std::uint32_t multiprocessors,
                     const KernelOptions& options, std::string& reason) {
  Kernels kernels;
  const bool loaded =
      (options.choice != KernelChoice::kNvrtc && load_fatbin(driver, multiprocessors, kernels, reason)) ||
      (options.choice != KernelChoice::kFatbin &&
       load_nvrtc(driver, architecture, multiprocessors, options, kernels, reason));
  if (!loaded && options.choice == KernelChoice::kFatbin) {
    add_reason(reason, "TDCORE_CUDA_KERNELS=fatbin disables their compilation: unset it");
  }
  return kernels;
}

KernelOptions kernel_options_from_environment() {
  KernelOptions options;
  const char* const choice = std::getenv("TDCORE_CUDA_KERNELS");
  const std::string_view asked = choice != nullptr ? choice : "";
  if (asked == "fatbin") options.choice = KernelChoice::kFatbin;
  if (asked == "nvrtc") options.choice = KernelChoice::kNvrtc;
  options.cache_folder = default_cache_folder();
  const std::scoped_lock lock(folders_mutex);
  options.folders = package_folders();
  return options;
}

void set_package_folders(std::vector<std::string> folders) {
  const std::scoped_lock lock(folders_mutex);
  package_folders() = std::move(folders);
}

}  // namespace tdcore::cuda
