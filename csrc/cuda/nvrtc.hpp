// nvrtc.hpp: NVIDIA's run-time compiler, searched in the folders of frameworks and packages, and never
// linked.
//
// NVRTC needs no driver and no device: CI compiles the kernels with it for every architecture. Threads: any.
// A library that was opened stays open.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tdcore::cuda {

/// Target of a compilation: machine code of `architecture`, or its PTX, which the driver compiles.
struct CompileTarget {
  int architecture = 0;  // 0: no target is possible
  bool machine_code = true;
};

/// Target for a device of `architecture` by a compiler that supports `known` (ascending): machine code of the
/// same architecture, machine code of an older one of its family, or the newest PTX that the device can run.
CompileTarget choose_target(int architecture, std::span<const int> known) noexcept;

/// Paths and names to try, best first: a library that the process has already loaded (it matches the
/// framework, and so the driver), libraries in the packages under `folders`, then the library of the system.
std::vector<std::string> nvrtc_paths(const std::vector<std::string>& folders);

class Nvrtc {
 public:
  /// Opens the library. Null if it does not exist or is too old (before 11.2).
  static std::unique_ptr<const Nvrtc> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// "13.0"
  std::string version() const;

  /// Text that identifies the result of compile().
  std::string key(int architecture) const;
  /// Compiles `source` to an image, a cubin or PTX, for cuModuleLoadDataEx. False, with the reason, after
  /// errors.
  bool compile(std::string_view source, int architecture, std::string& image, std::string& reason) const;

 private:
  using Program = struct ProgramTag*;
  using Code = int;
  using Size = Code (*)(Program, std::size_t*);
  using Text = Code (*)(Program, char*);

  Nvrtc() = default;
  bool fill(void* library);
  bool get(Program program, Size size, Text text, std::string& into) const;

  Code (*version_)(int*, int*) = nullptr;
  Code (*count_architectures_)(int*) = nullptr;
  Code (*architectures_)(int*) = nullptr;
  Code (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  Code (*compile_)(Program, int, const char* const*) = nullptr;
  Code (*destroy_)(Program*) = nullptr;
  const char* (*error_)(Code) = nullptr;
  Size log_size_ = nullptr, ptx_size_ = nullptr, cubin_size_ = nullptr;
  Text log_ = nullptr, ptx_ = nullptr, cubin_ = nullptr;

  std::string path_;
  int major_ = 0;
  int minor_ = 0;
  std::vector<int> known_;  // architectures, ascending
};

}  // namespace tdcore::cuda
