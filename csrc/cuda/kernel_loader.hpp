// kernel_loader.hpp: the kernels as functions of one context: from the fatbin, or compiled by NVRTC.
//
// The fatbin is tried first. If the driver rejects it (no code for the device, or built with a newer CUDA),
// NVRTC compiles the same source, and the result is stored on disk. If both fail, the reason contains advice.
// Threads: any; the context must be current.
#pragma once

#include <string>
#include <vector>

#include "cuda/driver.hpp"

namespace tdcore::cuda {

enum class KernelChoice { kAny, kFatbin, kNvrtc };

struct KernelOptions {
  KernelChoice choice = KernelChoice::kAny;
  std::vector<std::string> folders;  // folders of packages that may contain NVRTC, as in sys.path
  std::string cache_folder;          // folder of compiled kernels; empty: no cache
};

struct LoadedKernel {
  const char* name = "";
  Function function = nullptr;
  unsigned threads = 1;          // threads of a block
  unsigned resident_blocks = 1;  // blocks that run at once on the whole device
};

struct Kernels {
  Module module = nullptr;  // null: not loaded
  std::string from;         // "fatbin" or "nvrtc"
  LoadedKernel stats;
  LoadedKernel pack;
  LoadedKernel commit;
  LoadedKernel gate;
  LoadedKernel collect;
};

/// architecture: 90 for compute capability 9.0. reason: the failures, also if another image was loaded.
Kernels load_kernels(const Driver& driver, int architecture, std::uint32_t multiprocessors,
                     const KernelOptions& options, std::string& reason);

/// Options from TDCORE_CUDA_KERNELS (fatbin, nvrtc), the default cache folder and set_package_folders().
KernelOptions kernel_options_from_environment();

/// Sets the folders in which Python searches for packages.
void set_package_folders(std::vector<std::string> folders);

}  // namespace tdcore::cuda
