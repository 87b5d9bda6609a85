// commit_probe.hpp: test of the commit modes of a device.
// Threads: one. It waits, so call it only at set-up.
#pragma once

#include <cstdint>
#include <string>

#include "device/device.hpp"

namespace tdcore {

inline constexpr std::uint64_t kProbeHostBytes = 4096 + (std::uint64_t{1} << 20);

/// The best commit mode, beginning with `first`, with which a word after a copy becomes visible to the host
/// together with the copied bytes; kPoll if there is none. reason: the reasons against better modes are
/// appended. patience_ms: longest wait per mode, in milliseconds. host: kProbeHostBytes bytes of pinned
/// memory, aligned to pages, that the words and copies are written to; nullptr: memory that the driver
/// allocates.
CommitMode probe_commit(Device& device, CommitMode first, int patience_ms, std::string& reason,
                        void* host = nullptr) noexcept;

}  // namespace tdcore
