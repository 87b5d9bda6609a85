// gpu_probe.cpp: tests which commit modes work, on memory of the driver and on a registered memory file.
//
// A ring is a memory file that is registered with the driver. The probe that selects the commit mode of a
// device uses memory that the driver allocates. Both kinds of memory must give the same result. Threads: one.
#include <cstdio>

#include "cuda/commit_probe.hpp"
#include "gpu_device.hpp"

namespace tdcore::bench {

namespace {

constexpr int kPatienceMs = 1000;

std::string row(const char* memory, Device& device, void* host, CommitMode first) {
  std::string reason;
  const CommitMode best = probe_commit(device, first, kPatienceMs, reason, host);
  const std::string text =
      object({field("memory", std::string(memory)), field("from_rung", std::string(commit_mode_name(first))),
              field("rung", std::string(commit_mode_name(best))), field("reason", reason)});
  std::fprintf(stderr, "probe: %s\n", text.c_str());
  return text;
}

}  // namespace

std::string commit_probes(Device& device) {
  void* const mapping = pinned_mapping(device, kProbeHostBytes);
  std::vector<std::string> rows;
  for (const CommitMode first : {CommitMode::kStreamWrite, CommitMode::kCommitKernel}) {
    rows.push_back(row("driver", device, nullptr, first));
    rows.push_back(row("registered memory file", device, mapping, first));
  }
  return array(rows);
}

}  // namespace tdcore::bench
