// memory_limits.hpp: how much memory this process may still take: what the machine has and what its cgroup
// allows. An estimate, read from /proc and /sys: taking more than this ends in the kernel's out-of-memory
// killer rather than in an error code. Threads: pure function of the system's state. Never throws; what
// cannot be read does not limit.
#pragma once

#include <cstdint>

namespace tdcore {

std::uint64_t available_memory_bytes() noexcept;

}  // namespace tdcore
