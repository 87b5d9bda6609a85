// memory_limits.hpp: how much memory this process may still take: what the machine has and what its cgroup
// allows. An estimate, read from /proc and /sys: taking more than this ends in the kernel's out-of-memory
// killer rather than in an error code. Threads: any; a function of the system's state. Never throws; what
// cannot be read does not limit.
#pragma once

#include <cstdint>

namespace tdcore {

std::uint64_t available_memory_bytes() noexcept;

/// For tests: available_memory_bytes() returns no more than this. Any thread.
void pretend_available_memory(std::uint64_t bytes) noexcept;

}  // namespace tdcore
