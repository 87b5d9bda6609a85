// memory_limits.hpp: how much memory this process may still allocate: the free memory of the machine, limited
// by its cgroup. An estimate from /proc and /sys. If a process allocates more, the kernel's out-of-memory
// killer ends it, without an error code. Threads: any; a function of the system's state. Never throws; a
// value that cannot be read is not a limit.
#pragma once

#include <cstdint>

namespace tdcore {

std::uint64_t available_memory_bytes() noexcept;

/// For tests: available_memory_bytes() returns no more than this. Any thread.
void pretend_available_memory(std::uint64_t bytes) noexcept;

}  // namespace tdcore
