// gpu_device.hpp: what the parts of the GPU benchmark share: a device, waiting for it, lists of tensors,
// times.
//
// Everything goes through Device, so that all of it also runs on SimDevice; only the plain copies that serve
// as limits are CUDA's own functions (CudaDriver below), and are left out there.
// Threads: one, unless a function says otherwise.
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

/// "cuda:0"; "host" is simulated; "early" too, with commits before their bytes, which a soak must find.
/// Throws std::runtime_error with the reason when it cannot be used.
std::unique_ptr<Device> open_device(const std::string& name);

/// Device memory and pinned memory; throw std::runtime_error when there is none.
void* device_memory(Device& device, std::uint64_t bytes);
void* pinned_memory(Device& device, std::uint64_t bytes);
/// A memfd, mapped and pinned, as a ring is.
void* pinned_mapping(Device& device, std::uint64_t bytes);

/// Throws std::runtime_error with the device's words when a call was refused.
void check(Device& device, bool ok, const char* what);

/// Spins until all that was enqueued on the stream is done; throws when the device failed.
void wait(Device& device, StreamHandle stream);

/// Host memory into device memory by way of pinned memory; waits.
void upload(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes);
void download(Device& device, StreamHandle stream, void* to, const void* from, std::uint64_t bytes);

/// Seconds of one `run`, which enqueues on the stream: repeated until the device is busy for `least` seconds,
/// between two waits.
double seconds_of(Device& device, StreamHandle stream, double least, const std::function<void()>& run);

/// A copy within the device by CUDA itself: the limit of the kernels. Not there on the simulated device.
class PlainCopies {
 public:
  /// Makes the device's context the calling thread's: only this thread may copy.
  explicit PlainCopies(const std::string& device);
  bool there() const noexcept { return within_ != nullptr; }
  bool within(void* to, const void* from, std::uint64_t bytes, StreamHandle stream) const noexcept;

 private:
  int (*within_)(std::uint64_t, std::uint64_t, std::size_t, void*) = nullptr;  // cuMemcpyDtoDAsync
};

/// A tensor of a list: extents and strides in elements; no strides: contiguous.
struct Shape {
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;
  Dtype dtype = Dtype::kF32;

  std::uint64_t elements() const noexcept;
  std::uint64_t storage_elements() const noexcept;  // from the first to the last in memory
};

struct List {
  std::string name;
  std::vector<Shape> tensors;

  std::uint64_t bytes() const noexcept;
};

/// Lists whose bytes are at most about `most`: one large tensor, 500 tiny ones, weights and gradients of
/// ResNet-50 and of a transformer of GPT-2's size, strided ones.
std::vector<List> lists(std::uint64_t most);
/// One tensor of each dtype that has statistics.
std::vector<List> one_of_each_dtype(std::uint64_t bytes);

struct Options {
  std::string device = "cuda:0";
  bool quick = false;
  std::uint64_t records = 100'000;  // of the soak, on each commit mode
  double seconds = 0.05;            // least busy time of a measurement
  int rounds = 5;
};

/// JSON text of each part; one line of progress goes to standard error. They throw std::runtime_error.
std::string check_kernels(Device& device);  // against the CPU path; counts what differs
std::string kernel_rates(Device& device, const Options& options);
std::string dma_rates(Device& device, const Options& options);
std::string commit_soak(Device& device, const Options& options);
std::string call_costs(const Options& options);  // opens a device of its own

/// Median of a copy of the values.
double median(std::vector<double> values);
/// "name": value, of a JSON object; {fields}; [rows], one a line.
std::string field(const char* name, double value);
std::string field(const char* name, const std::string& value);
std::string object(const std::vector<std::string>& fields);
std::string array(const std::vector<std::string>& rows);

}  // namespace tdcore::bench
