// kernel_cache.hpp: compiled kernels on disk, so that NVRTC works once per machine and not once per run.
//
// One file per key. A file is written under another name and renamed, and checked when it is read. Many
// processes may write the same file at the same time, and a damaged or foreign file is ignored. Nothing here
// fails: without a writable folder the kernels are compiled each time.
// Threads: any.
#pragma once

#include <string>
#include <string_view>

namespace tdcore::cuda {

/// TDCORE_CACHE/kernels, or tdcore/kernels in XDG_CACHE_HOME or ~/.cache, as tdcore/sinks/cache.py has it;
/// empty when there is no home.
std::string default_cache_folder();

class KernelCache {
 public:
  /// folder: made when something is stored; empty: nothing is kept.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

  /// key: any text that identifies this image.
  bool load(const std::string& key, std::string& image) const;
  void store(const std::string& key, std::string_view image) const;

 private:
  std::string path_of(const std::string& key) const;

  std::string folder_;
};

/// 16 hex digits of a text (FNV-1a, 64 bits), to name files and distinguish sources; no protection.
std::string hash_text(std::string_view text);

}  // namespace tdcore::cuda
