// kernel_cache.hpp: compiled kernels on disk, so that NVRTC compiles once per machine and not once per run.
//
// There is one file per key. A file is written under another name and renamed, and checked when it is read.
// Many processes may write the same file at the same time. A damaged file, or a file of another user, is
// ignored. Errors are ignored too: without a writable folder the kernels are compiled each time. Threads:
// any.
#pragma once

#include <string>
#include <string_view>

namespace tdcore::cuda {

/// TDCORE_CACHE/kernels, or tdcore/kernels in XDG_CACHE_HOME or ~/.cache, as in tdcore/sinks/cache.py; empty
/// without a home folder.
std::string default_cache_folder();

class KernelCache {
 public:
  /// folder: created when an image is stored; empty: no image is stored.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

  /// key: any text that identifies this image.
  bool load(const std::string& key, std::string& image) const;
  void store(const std::string& key, std::string_view image) const;

 private:
  std::string path_of(const std::string& key) const;

  std::string folder_;
};

/// Hash of a text as 16 hex digits (FNV-1a, 64 bits), for file names and to distinguish sources; not secure.
std::string hash_text(std::string_view text);

}  // namespace tdcore::cuda
