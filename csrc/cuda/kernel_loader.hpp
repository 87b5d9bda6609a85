// kernel_loader.hpp: the kernels as functions of one context: from the fatbin, or compiled by NVRTC.
//
// The fatbin first. A driver that does not take it (no code for the device, made by a newer CUDA) gets what
// NVRTC makes of the same source, which is kept on disk. Neither: a sentence that says what to install.
// Threads: any; the context must be current.
#pragma once

#include <string>
#include <vector>

#include "cuda/driver.hpp"

namespace tdcore::cuda {

enum class KernelChoice { kAny, kFatbin, kNvrtc };

struct KernelOptions {
  KernelChoice choice = KernelChoice::kAny;
  std::vector<std::string> folders;  // where packages lie that may bring NVRTC, as in sys.path
  std::string cache_folder;          // of compiled kernels; empty: none
};

struct LoadedKernel {
  const char* name = "";
  Function function = nullptr;
  unsigned threads = 1;          // of a block
  unsigned resident_blocks = 1;  // that run at once on the whole device
};

struct Kernels {
  Module module = nullptr;  // null: none
  std::string from;         // "fatbin" or "nvrtc"
  LoadedKernel stats;
  LoadedKernel pack;
  LoadedKernel commit;
};

/// architecture: 90 for compute capability 9.0. reason: the failures, also if another way has worked.
Kernels load_kernels(const Driver& driver, int architecture, std::uint32_t multiprocessors,
                     const KernelOptions& options, std::string& reason);

/// TDCORE_CUDA_KERNELS (fatbin, nvrtc), the cache's folder, and the folders of set_package_folders().
KernelOptions kernel_options_from_environment();

/// Where Python looks for packages; copied.
void set_package_folders(std::vector<std::string> folders);

}  // namespace tdcore::cuda
