// Driver, devices, compiler: each is checked separately, so that a missing part does not hide the others.
#include "cuda/report.hpp"

#include "cuda/cuda_device.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/nvrtc.hpp"

namespace tdcore::cuda {

namespace {

int attribute_of(const Driver& driver, DeviceOrdinal device, int which) {
  int value = 0;
  return driver.device_get_attribute(&value, which, device) == kSuccess ? value : 0;
}

DeviceFinding look_at(const Driver& driver, int ordinal, const KernelOptions& options) {
  DeviceFinding finding;
  DeviceOrdinal device = 0;
  if (driver.device_get(&device, ordinal) == kSuccess) {
    char name[256] = {};
    std::size_t bytes = 0;
    (void)driver.device_get_name(name, sizeof name - 1, device);
    (void)driver.device_total_mem(&bytes, device);
    finding.name = name;
    finding.memory_bytes = bytes;
    finding.architecture =
        attribute_of(driver, device, kAttributeMajor) * 10 + attribute_of(driver, device, kAttributeMinor);
    finding.mig = finding.name.find(" MIG ") != std::string::npos;  // the driver reports it only in the name
    finding.mps = attribute_of(driver, device, kAttributeMps) != 0;
  }
  CudaDeviceOptions device_options;
  device_options.kernels = options;
  std::string reason;
  const std::unique_ptr<CudaDevice> opened = CudaDevice::open(driver, ordinal, device_options, reason);
  if (opened == nullptr) {
    finding.reason = reason;
  } else {
    finding.kernels = opened->info().kernels;
    finding.commit_mode = opened->info().best_commit_mode;
    finding.commit_mode_reason = opened->info().commit_mode_reason;
  }
  return finding;
}

}  // namespace

SystemReport report(const KernelOptions& options) {
  SystemReport found;
  found.fatbin = kernel_fatbin_architectures();
  for (const std::string& path : nvrtc_paths(options.folders)) {
    if (const auto nvrtc = Nvrtc::open(path); nvrtc != nullptr) {
      found.nvrtc_path = nvrtc->path();
      found.nvrtc_version = nvrtc->version();
      break;
    }
  }
  const Driver* const driver = shared_driver(found.driver_reason);
  if (driver == nullptr) return found;
  found.driver_path = driver->path;
  found.driver_version = driver->version;
  int count = 0;
  if (!initialize(*driver, found.driver_reason) || driver->device_get_count(&count) != kSuccess) return found;
  for (int ordinal = 0; ordinal < count; ++ordinal)
    found.devices.push_back(look_at(*driver, ordinal, options));
  return found;
}

}  // namespace tdcore::cuda
