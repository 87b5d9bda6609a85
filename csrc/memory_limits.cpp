#include "memory_limits.hpp"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace tdcore {
namespace {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// The number at the start of a file; kUnlimited when there is none ("max", no such file).
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnlimited;
}

std::uint64_t machine_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return kUnlimited;
}

/// What one cgroup leaves: limit minus use, where page cache that can be dropped does not count as use.
std::uint64_t cgroup_bytes(const std::string& folder, const char* limit_file, const char* usage_file,
                           std::string_view cache_key) {
  const std::uint64_t limit = number_in(folder + limit_file);
  if (limit == kUnlimited) return kUnlimited;
  std::uint64_t used = number_in(folder + usage_file);
  if (used == kUnlimited) return kUnlimited;
  std::ifstream file(folder + "/memory.stat");
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (key == cache_key) used -= std::min(used, value);
  }
  return limit - std::min(limit, used);
}

/// All groups from ours to the root: any of them may be the tight one.
std::uint64_t unified_bytes(std::string path) {
  std::uint64_t least = kUnlimited;
  for (;;) {
    least = std::min(
        least, cgroup_bytes("/sys/fs/cgroup" + path, "/memory.max", "/memory.current", "inactive_file"));
    if (path.empty()) return least;
    path.erase(path.rfind('/'));
  }
}

std::uint64_t cgroups_bytes() {
  std::uint64_t least = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // "0::/path", or "N:memory:/path" (version 1)
    const std::size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    if (path == "/" || path.find("..") != std::string::npos) path.clear();
    if (line.starts_with("0::")) least = std::min(least, unified_bytes(path));
    if (line.find(":memory:") != std::string::npos) {
      for (const std::string& folder :
           {"/sys/fs/cgroup/memory" + path, std::string("/sys/fs/cgroup/memory")}) {
        least = std::min(least, cgroup_bytes(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                             "total_inactive_file"));
      }
    }
  }
  return least;
}

}  // namespace

std::uint64_t available_memory_bytes() noexcept {
  try {
    return std::min(machine_bytes(), cgroups_bytes());
  } catch (...) {  // no memory for a string
    return kUnlimited;
  }
}

}  // namespace tdcore
