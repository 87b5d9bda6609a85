// Search, check and use of libnvrtc.
#include "cuda/nvrtc.hpp"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/kernel_cache.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/load_symbol.hpp"

namespace tdcore::cuda {

namespace {

// Paths of libnvrtc in packages, relative to a folder of sys.path.
constexpr const char* kInPackages[] = {
    "/nvidia/cu13/lib/libnvrtc.so*", "/nvidia/cuda_nvrtc/lib/libnvrtc.so*", "/torch/lib/libnvrtc*.so*",
    "/cupy/.data/lib/libnvrtc.so*",  "/jaxlib/cuda/libnvrtc.so*",           "/nvidia/cu*/lib/libnvrtc.so*",
};
constexpr const char* kNames[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
constexpr const char* kToolkits[] = {"CUDA_HOME", "CUDA_PATH"};

/// Whether the file is the compiler: libnvrtc-builtins is its data, and libnvrtc.alt is a second build.
bool is_nvrtc(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libnvrtc") && !name.starts_with("libnvrtc-builtins") &&
         name.find(".alt") == std::string_view::npos;
}

void add_matches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    // Newest first, by the order of the names.
    for (std::size_t i = found.gl_pathc; i-- > 0;) {
      if (is_nvrtc(found.gl_pathv[i])) paths.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
}

int note_loaded(dl_phdr_info* library, std::size_t, void* paths) {
  const std::string_view path = library->dlpi_name != nullptr ? library->dlpi_name : "";
  if (is_nvrtc(path)) static_cast<std::vector<std::string>*>(paths)->emplace_back(path);
  return 0;
}

}  // namespace

CompileTarget choose_target(int architecture, std::span<const int> known) noexcept {
  CompileTarget best;
  for (const int candidate : known) {
    if (candidate > architecture) break;
    // Machine code runs on later architectures of its family, PTX on all later architectures.
    best = CompileTarget{.architecture = candidate, .machine_code = candidate / 10 == architecture / 10};
  }
  return best;
}

std::vector<std::string> nvrtc_paths(const std::vector<std::string>& folders) {
  std::vector<std::string> paths;
  (void)::dl_iterate_phdr(note_loaded, &paths);
  for (const std::string& folder : folders) {
    for (const char* const place : kInPackages) add_matches(folder + place, paths);
  }
  paths.insert(paths.end(), std::begin(kNames), std::end(kNames));
  for (const char* const variable : kToolkits) {
    const char* const toolkit = std::getenv(variable);
    if (toolkit != nullptr && toolkit[0] != '\0')
      add_matches(std::string(toolkit) + "/lib64/libnvrtc.so*", paths);
  }
  add_matches("/usr/local/cuda/lib64/libnvrtc.so*", paths);
  return paths;
}

bool Nvrtc::fill(void* library) {
  return load_symbol(library, "nvrtcVersion", version_) &&
         load_symbol(library, "nvrtcGetNumSupportedArchs", count_architectures_) &&
         load_symbol(library, "nvrtcGetSupportedArchs", architectures_) &&
         load_symbol(library, "nvrtcCreateProgram", create_) &&
         load_symbol(library, "nvrtcCompileProgram", compile_) &&
         load_symbol(library, "nvrtcDestroyProgram", destroy_) &&
         load_symbol(library, "nvrtcGetErrorString", error_) &&
         load_symbol(library, "nvrtcGetProgramLogSize", log_size_) &&
         load_symbol(library, "nvrtcGetProgramLog", log_) &&
         load_symbol(library, "nvrtcGetPTXSize", ptx_size_) && load_symbol(library, "nvrtcGetPTX", ptx_) &&
         load_symbol(library, "nvrtcGetCUBINSize", cubin_size_) &&
         load_symbol(library, "nvrtcGetCUBIN", cubin_);
}

std::unique_ptr<const Nvrtc> Nvrtc::open(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  std::unique_ptr<Nvrtc> nvrtc(new Nvrtc);
  int count = 0;
  if (!nvrtc->fill(library) || nvrtc->version_(&nvrtc->major_, &nvrtc->minor_) != 0 ||
      nvrtc->count_architectures_(&count) != 0 || count <= 0) {
    return nullptr;
  }
  nvrtc->known_.resize(static_cast<std::size_t>(count));
  if (nvrtc->architectures_(nvrtc->known_.data()) != 0) return nullptr;
  std::sort(nvrtc->known_.begin(), nvrtc->known_.end());
  link_map* map = nullptr;
  const bool known =
      ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr;
  nvrtc->path_ = known ? map->l_name : path;
  return nvrtc;
}

std::string Nvrtc::version() const { return std::to_string(major_) + "." + std::to_string(minor_); }

std::string Nvrtc::key(int architecture) const {
  const CompileTarget target = choose_target(architecture, known_);
  return "kernels " + hash_text(kernel_source()) + " by nvrtc " + version() + " for " +
         (target.machine_code ? "sm_" : "compute_") + std::to_string(target.architecture);
}

bool Nvrtc::get(Program program, Size size, Text text, std::string& into) const {
  std::size_t bytes = 0;
  if (size(program, &bytes) != 0 || bytes == 0) return false;
  into.resize(bytes);
  return text(program, into.data()) == 0;
}

bool Nvrtc::compile(std::string_view source, int architecture, std::string& image,
                    std::string& reason) const {
  const CompileTarget target = choose_target(architecture, known_);
  const std::string what = "NVRTC " + version() + " (" + path_ + ")";
  if (target.architecture == 0) {
    reason += (reason.empty() ? "" : "; ") + what + " does not support devices as old as sm_" +
              std::to_string(architecture);
    return false;
  }
  const std::string text(source);
  const std::string option = std::string("--gpu-architecture=") + (target.machine_code ? "sm_" : "compute_") +
                             std::to_string(target.architecture);
  const char* const options[] = {option.c_str(), "--std=c++20", "--disable-warnings"};
  Program program = nullptr;
  Code code = create_(&program, text.c_str(), "kernels.cuh", 0, nullptr, nullptr);
  if (code == 0) code = compile_(program, static_cast<int>(std::size(options)), options);
  bool made = false;
  if (code == 0) {
    made =
        target.machine_code ? get(program, cubin_size_, cubin_, image) : get(program, ptx_size_, ptx_, image);
  }
  if (!made) {
    std::string log;
    if (program != nullptr) (void)get(program, log_size_, log_, log);
    reason += (reason.empty() ? "" : "; ") + what + " does not compile the kernels for sm_" +
              std::to_string(target.architecture) + ": " + error_(code) + " " + log.substr(0, 2000);
  }
  if (program != nullptr) (void)destroy_(&program);
  return made;
}

}  // namespace tdcore::cuda
