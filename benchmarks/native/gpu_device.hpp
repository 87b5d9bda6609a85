// gpu_device.hpp: functions that the parts of the GPU benchmark share: device, waits, lists of tensors,
// times.
//
// All parts use Device, so that they also run on SimDevice. Only the plain copies that serve as limits call
// CUDA directly (PlainCopies below); they are left out on SimDevice.
// Threads: one, unless a function documents otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "ring/record.hpp"

namespace tdcore::bench {

/// Opens "cuda:0", or a simulated device: "host", or "early", which writes commit words before their bytes,
/// so that the soak test must find them. Throws std::runtime_error with the reason if it cannot be used.
std::unique_ptr<Device> open_device(const std::string& name);

/// Allocate device memory and pinned memory. Throw std::runtime_error if this fails.
void* device_memory(Device& device, std::uint64_t bytes);
void* pinned_memory(Device& device, std::uint64_t bytes);
/// A memory file (memfd), mapped and pinned like a ring.
void* pinned_mapping(Device& device, std::uint64_t bytes);

/// Throws std::runtime_error with the error of the device if a call has failed.
void check(Device& device, bool ok, const char* what);

/// Spins until all work on the stream is done. Throws if the device has failed.
void wait(Device& device, StreamHandle stream);

/// Copy between host memory and device memory through pinned memory, and wait.
void upload(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes);
void download(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes);

/// Seconds of one `run`, which enqueues work on the stream. `run` is repeated between two waits until the
/// device was busy for `least` seconds.
double seconds_of(Device& device, StreamHandle stream, double least, const std::function<void()>& run);

/// Copies within the device by CUDA itself, the limit of the kernels. Not available on a simulated device.
class PlainCopies {
 public:
  /// Makes the context of the device current in the calling thread. Only this thread may copy.
  explicit PlainCopies(const std::string& device);
  bool there() const noexcept { return within_ != nullptr; }
  bool within(void* to, const void* from, std::uint64_t bytes, StreamHandle stream) const noexcept;

 private:
  int (*within_)(std::uint64_t, std::uint64_t, std::size_t, void*) = nullptr;  // cuMemcpyDtoDAsync
};

/// A tensor of a list. Extents and strides are in elements; without strides the tensor is contiguous.
struct Shape {
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;
  Dtype dtype = Dtype::kF32;

  std::uint64_t elements() const noexcept;
  std::uint64_t storage_elements() const noexcept;  // from the first to the last element in memory
};

struct List {
  std::string name;
  std::vector<Shape> tensors;

  std::uint64_t bytes() const noexcept;
};

/// Lists of at most about `most` bytes: one large tensor, 500 tiny tensors, weights and gradients of
/// ResNet-50 and of a transformer of the size of GPT-2, strided tensors.
std::vector<List> lists(std::uint64_t most);
/// One tensor of each dtype that has statistics.
std::vector<List> one_of_each_dtype(std::uint64_t bytes);

struct Options {
  std::string device = "cuda:0";
  bool quick = false;
  std::uint64_t records = 100'000;  // of the soak test, in each commit mode
  double seconds = 0.05;            // minimum busy time of a measurement
  int rounds = 5;
};

/// Run one part. Return JSON text, and print lines of progress to standard error. Throw std::runtime_error.
std::string commit_probes(Device& device);  // the commit modes that work on memory of each kind
std::string check_kernels(Device& device);  // compares with the CPU path, and counts differences
std::string kernel_rates(Device& device, const Options& options);
std::string dma_rates(Device& device, const Options& options);
std::string commit_soak(Device& device, const Options& options);
std::string call_costs(const Options& options);  // opens its own device

/// Median of the values, which are copied.
double median(std::vector<double> values);
/// JSON text: "name": value; {fields}; [rows], one row per line.
std::string field(const char* name, double value);
std::string field(const char* name, const std::string& value);
std::string object(const std::vector<std::string>& fields);
std::string array(const std::vector<std::string>& rows);

}  // namespace tdcore::bench
