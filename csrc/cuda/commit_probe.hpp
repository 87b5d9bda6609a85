// commit_probe.hpp: which way of committing works on a device, found by trying.
// Threads: one; at set-up only, it waits.
#pragma once

#include <string>

#include "device/device.hpp"

namespace tdcore {

/// The best commit mode from `first` on on which a word written behind a copy is seen by the host, the copied
/// bytes with it; kPoll when none is. reason: why not a better one; added to what it holds. patience_ms: for
/// each.
CommitMode probe_commit(Device& device, CommitMode first, int patience_ms, std::string& reason) noexcept;

}  // namespace tdcore
