// memory_limits.hpp: estimate of the memory that this process may still allocate: the free memory of the
// machine, limited by the cgroup of the process. Read from /proc and /sys. If a process allocates more, the
// kernel's out-of-memory killer ends it, without an error code. Threads: any; a function of the system's
// state. Never throws; a value that cannot be read counts as no limit.
#pragma once

#include <cstdint>

namespace tdcore {

std::uint64_t available_memory_bytes() noexcept;

/// For tests: sets the maximum that available_memory_bytes() returns. Any thread.
void pretend_available_memory(std::uint64_t bytes) noexcept;

}  // namespace tdcore
