// report.hpp: the state of CUDA on this machine, for `tdcore doctor`.
//
// The report initializes CUDA and opens and closes each device, with its kernels and the probe of its commit
// modes. Make it only in a separate process that ends soon, never in a training. Threads: one.
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
  bool mig = false;      // a MIG slice of a device
  bool mps = false;      // shared with other processes through the MPS server
  std::string reason;    // reason why the device cannot be used; empty if it can
  std::string kernels;
  CommitMode commit_mode = CommitMode::kPoll;
  std::string commit_mode_reason;
};

struct SystemReport {
  std::string driver_path;
  int driver_version = 0;     // 12040 for CUDA 12.4; 0 without a driver
  std::string driver_reason;  // why there is none, or why it does not start; empty: it works
  std::vector<DeviceFinding> devices;
  std::string nvrtc_path;  // empty: not found
  std::string nvrtc_version;
  std::string fatbin;  // architectures; empty: built without nvcc
};

SystemReport report(const KernelOptions& options);

}  // namespace tdcore::cuda
