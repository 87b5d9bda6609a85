// gpu_launches.hpp: a list of tensors in device memory, and the kernel launches for it.
// Threads: one.
#pragma once

#include <vector>

#include "gpu_device.hpp"

namespace tdcore::bench {

/// Device memory that is allocated piece by piece and reused as a whole, because Device cannot free memory.
class Pool {
 public:
  Pool(Device& device, std::uint64_t bytes)
      : begin_(static_cast<std::byte*>(device_memory(device, bytes))), bytes_(bytes) {}
  void* take(std::uint64_t bytes);  // 256-byte aligned; throws if the pool is too small
  void reset() noexcept { used_ = 0; }

 private:
  std::byte* begin_;
  std::uint64_t bytes_;
  std::uint64_t used_ = 0;
};

/// Tensors of a list with random contents, the targets of their packed bytes and statistics, and scratch.
class Placed {
 public:
  /// results: pinned memory for the statistics of all tensors, one after another.
  Placed(Device& device, StreamHandle stream, Pool& pool, const List& list, TensorStats* results);

  device::Launch stats() const noexcept { return launch_; }
  device::Launch pack() const noexcept { return launch_; }
  const std::vector<std::byte>& contents(std::size_t tensor) const noexcept { return contents_[tensor]; }
  const void* packed(std::size_t tensor) const noexcept { return packed_[tensor]; }
  /// Source and target of the plain copy, in device memory, of at least the size of the list.
  void* begin() const noexcept { return begin_; }
  void* target() const noexcept { return target_; }

 private:
  device::Launch launch_{};
  std::vector<std::vector<std::byte>> contents_;  // storage of each tensor, only for small lists
  std::vector<void*> packed_;
  void* begin_ = nullptr;
  void* target_ = nullptr;
};

/// Maximum number of bytes that Placed takes from the pool.
std::uint64_t pool_bytes(const List& list);

}  // namespace tdcore::bench
