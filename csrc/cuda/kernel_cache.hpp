// kernel_cache.hpp: compiled kernels on disk, so that NVRTC works once per machine and not once per run.
//
// One file per key, written beside and renamed, checked when it is read: many processes may write the same
// one at once, and a file that is damaged, foreign or of something else is as good as none. Nothing here
// fails: without a folder that can be written kernels are compiled each time.
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

  /// key: what tells this image from all others, any text.
  bool load(const std::string& key, std::string& image) const;
  void store(const std::string& key, std::string_view image) const;

 private:
  std::string path_of(const std::string& key) const;

  std::string folder_;
};

/// 16 hex digits of a text (FNV-1a, 64 bits): names files and tells sources apart, guards against nobody.
std::string hash_text(std::string_view text);

}  // namespace tdcore::cuda
