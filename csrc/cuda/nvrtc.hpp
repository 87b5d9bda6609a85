// nvrtc.hpp: NVIDIA's run-time compiler, found where frameworks and packages put it, and never linked.
//
// Nothing here needs a driver or a device: CI compiles the kernels with it for every architecture.
// Threads: any. A library that was opened stays open.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tdcore::cuda {

/// What to compile for: machine code of `architecture`, or its PTX, which the driver finishes.
struct CompileTarget {
  int architecture = 0;  // 0: nothing serves
  bool machine_code = true;
};

/// For a device of `architecture` by a compiler that knows `known` (ascending): its own machine code, that of
/// an older member of its family, or the newest PTX that it can run.
CompileTarget choose_target(int architecture, std::span<const int> known) noexcept;

/// Paths and names to try, best first: a library that the process has loaded already (it fits the framework
/// and so the driver), libraries in the packages under `folders`, then the machine's own.
std::vector<std::string> nvrtc_paths(const std::vector<std::string>& folders);

class Nvrtc {
 public:
  /// Null when there is none, or one that is too old (before 11.2).
  static std::unique_ptr<const Nvrtc> open(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  /// "13.0"
  std::string version() const;

  /// What tells the result of compile() apart from all others.
  std::string key(int architecture) const;
  /// The image of `source`, a cubin or PTX, for cuModuleLoadDataEx. False with the reason.
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
