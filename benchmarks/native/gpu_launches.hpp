// gpu_launches.hpp: a list of tensors in device memory, and the launches over it.
// Threads: one.
#pragma once

#include <vector>

#include "gpu_device.hpp"

namespace tdcore::bench {

/// Device memory that is taken piece by piece and reused as a whole: Device gives nothing back.
class Pool {
 public:
  Pool(Device& device, std::uint64_t bytes)
      : begin_(static_cast<std::byte*>(device_memory(device, bytes))), bytes_(bytes) {}
  void* take(std::uint64_t bytes);  // 256-byte aligned; throws when the pool is too small
  void reset() noexcept { used_ = 0; }

 private:
  std::byte* begin_;
  std::uint64_t bytes_;
  std::uint64_t used_ = 0;
};

/// Tensors of a list with random contents, where their packed bytes and their statistics go, and scratch.
class Placed {
 public:
  /// results: pinned memory for the statistics of all tensors, one after another.
  Placed(Device& device, StreamHandle stream, Pool& pool, const List& list, TensorStats* results);

  device::Launch stats() const noexcept { return launch_; }
  device::Launch pack() const noexcept { return launch_; }
  const std::vector<std::byte>& contents(std::size_t tensor) const noexcept { return contents_[tensor]; }
  const void* packed(std::size_t tensor) const noexcept { return packed_[tensor]; }
  /// Device memory that holds at least the list's bytes, and its target: for the plain copy.
  void* begin() const noexcept { return begin_; }
  void* target() const noexcept { return target_; }

 private:
  device::Launch launch_{};
  std::vector<std::vector<std::byte>> contents_;  // storage of each tensor; kept where it is small
  std::vector<void*> packed_;
  void* begin_ = nullptr;
  void* target_ = nullptr;
};

/// Bytes that Placed takes of the pool, at most.
std::uint64_t pool_bytes(const List& list);

}  // namespace tdcore::bench
