#include "base/memory_limits.hpp"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tdcore {
namespace {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

std::atomic<std::uint64_t> pretended{kUnlimited};  // relaxed: the number orders no other access

/// The number at the start of a file; kUnlimited if there is no number ("max") or no file.
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
    if (key == "MemAvailable:") return kib > 0 ? kib * 1024 : kUnlimited;  // 0: a sandbox without the value
    std::getline(file, unit);
  }
  return kUnlimited;
}

/// Available bytes in one cgroup: its limit minus the memory that cannot be dropped, unlike page cache.
/// kUnlimited without a limit, with a limit of 0 (in some sandboxes), or without statistics.
std::uint64_t cgroup_bytes(const std::string& folder, const char* limit_file,
                           std::initializer_list<std::string_view> held_keys) {
  const std::uint64_t limit = number_in(folder + limit_file);
  std::ifstream file(folder + "/memory.stat");
  if (limit == kUnlimited || limit == 0 || !file) return kUnlimited;
  std::uint64_t held = 0;
  std::string key;
  std::uint64_t value = 0;
  while (file >> key >> value) {
    if (std::find(held_keys.begin(), held_keys.end(), key) != held_keys.end()) held += value;
  }
  return limit - std::min(limit, held);
}

/// The least available bytes of all groups from this process's group to the root.
std::uint64_t unified_bytes(std::string path) {
  std::uint64_t least = kUnlimited;
  for (;;) {
    least = std::min(least, cgroup_bytes("/sys/fs/cgroup" + path, "/memory.max", {"anon", "shmem"}));
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
        least = std::min(least, cgroup_bytes(folder, "/memory.limit_in_bytes", {"total_rss", "total_shmem"}));
      }
    }
  }
  return least;
}

}  // namespace

std::uint64_t available_memory_bytes() noexcept {
  try {
    return std::min({machine_bytes(), cgroups_bytes(), pretended.load(std::memory_order_relaxed)});
  } catch (...) {  // no memory for a string
    return kUnlimited;
  }
}

void pretend_available_memory(std::uint64_t bytes) noexcept {
  pretended.store(bytes, std::memory_order_relaxed);
}

}  // namespace tdcore
