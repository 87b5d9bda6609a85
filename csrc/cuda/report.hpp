// report.hpp: what of CUDA works on this machine, for tdcore doctor.
//
// Starts CUDA and opens every device in turn, with its kernels and the probe of its commit, and lets it go:
// for a process of its own that ends soon, never for a training. Threads: one.
#pragma once

#include <string>
#include <vector>

#include "cuda/kernel_loader.hpp"
#include "device/device.hpp"

namespace tdcore::cuda {

struct DeviceFinding {
  std::string name;
  std::uint64_t memory_bytes = 0;
  int architecture = 0;  // 90 for compute capability 9.0
  bool mig = false;      // a slice of a device
  bool mps = false;      // shared with other processes through the MPS server
  std::string reason;    // why it cannot be used; empty: it can
  std::string kernels;
  CommitMode commit_mode = CommitMode::kPoll;
  std::string commit_mode_reason;
};

struct SystemReport {
  std::string driver_path;
  int driver_version = 0;     // 12040 for CUDA 12.4; 0 without
  std::string driver_reason;  // why there is none, or why it does not start; empty: it works
  std::vector<DeviceFinding> devices;
  std::string nvrtc_path;  // empty: none
  std::string nvrtc_version;
  std::string fatbin;  // architectures; empty: built without nvcc
};

SystemReport report(const KernelOptions& options);

}  // namespace tdcore::cuda
