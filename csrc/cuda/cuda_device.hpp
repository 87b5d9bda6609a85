// cuda_device.hpp: an NVIDIA device as a Device (device.hpp), through functions of the driver only.
//
// CudaDevice uses the device's primary context, like every framework, so that its streams, events and memory
// work together with those of the framework. If a thread has another current context, the primary context is
// made current during a call. Set-up loads the kernels and tests the commit modes. After set-up, functions
// that enqueue work do not load, allocate or wait. The first and the latest error are stored; an error after
// which the context is lost turns the device off.
//
// CUDA graphs: while another thread captures a stream in "global" mode, CUDA forbids calls that may wait, and
// such a call invalidates the capture. Therefore these calls are made in "relaxed" mode, in which they are
// allowed. These calls concern streams, events and memory that take no part in the capture, so they add
// nothing to the graph. On a stream that is itself being captured (is_capturing) only kernels with a gate are
// launched. A launch on such a stream adds a node to the graph and is allowed in every mode.
//
// Threads and fork: as in device.hpp. The owner destroys the device only if no work is in flight.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/driver.hpp"
#include "cuda/kernel_loader.hpp"
#include "device/device.hpp"

namespace tdcore::cuda {

// The blocks of a launch occupy all multiprocessors. Work on other streams, such as a collective operation,
// can start between two launches, so a launch is short: about 0.15 ms on an H100 for float32.
inline constexpr std::uint64_t kTilesPerBlock = 16;

struct CudaDeviceOptions {
  KernelOptions kernels;
  // Memory is pinned in pieces of this size, because one call for very much memory fails in drivers from 580
  // on (16 bytes of contiguous kernel memory per page). The pieces are large, so that records of usual rings
  // are never across two pieces.
  std::uint64_t pin_chunk_bytes = std::uint64_t{16} << 30;
  int probe_ms = 1000;  // longest wait of the probe of a commit
};

class CudaDevice final : public Device {
 public:
  /// Opens a device. Null, with the reason and advice, if the device cannot be used. ordinal: number of the
  /// device in the framework, within CUDA_VISIBLE_DEVICES. Initializes CUDA if necessary; takes some 10 ms
  /// (seconds if kernels are compiled).
  static std::unique_ptr<CudaDevice> open(const Driver& driver, int ordinal, const CudaDeviceOptions& options,
                                          std::string& reason) noexcept;
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// 90 for compute capability 9.0.
  int architecture() const noexcept { return architecture_; }

  void* allocate(std::uint64_t bytes) noexcept override;
  void* allocate_host(std::uint64_t bytes) noexcept override;
  bool pin(void* memory, std::uint64_t bytes) noexcept override;
  StreamHandle make_stream() noexcept override;
  EventHandle make_event() noexcept override;
  std::uint64_t free_bytes() noexcept override;

  void* device_address(void* pinned) const noexcept override;
  bool is_capturing(StreamHandle stream) noexcept override;
  bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                      std::uint64_t bytes) noexcept override;
  bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                    std::uint64_t bytes) noexcept override;
  bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept override;
  bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept override;
  bool launch_inline(StreamHandle stream, const device::InlineLaunch& launch) noexcept override;
  bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                  CommitMode commit_mode) noexcept override;
  bool record_event(EventHandle event, StreamHandle stream) noexcept override;
  bool wait_event(StreamHandle stream, EventHandle event) noexcept override;
  EventState query_event(EventHandle event) noexcept override;
  std::uint64_t capture_id(StreamHandle stream) noexcept override;
  bool watch_graph(StreamHandle stream, void (*ended)(void*), void* data) noexcept override;
  bool open_gate(StreamHandle stream, std::uint64_t* gate, const std::uint64_t* armed) noexcept override;
  bool set_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) noexcept override;
  bool collect(StreamHandle stream, const device::Collection& collection) noexcept override;
  bool is_lost() const noexcept override { return off_.load(std::memory_order_relaxed); }
  std::string errors() const override;

 private:
  class Current;
  class Relaxed;
  /// Pinned memory whose device address differs from its host address.
  struct Moved {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::uintptr_t offset;  // added to a host address
  };

  CudaDevice(const Driver& driver, DeviceOrdinal device, const CudaDeviceOptions& options);

  bool set_up(std::string& reason);
  bool launch_all_kernels();
  void describe();
  bool keep(Result result, const char* what) noexcept;
  bool launch_blocks(StreamHandle stream, const LoadedKernel& kernel, void** parameters,
                     unsigned blocks = 1) noexcept;
  template <class Call>
  bool enqueue(const char* what, Call&& call) noexcept;
  template <class Call>
  bool prepare(const char* what, Call&& call) noexcept;
  /// Pins `memory` in pieces, and returns them; empty after an error.
  std::vector<void*> pin_pieces(void* memory, std::uint64_t bytes, std::uint64_t piece_bytes,
                                std::uintptr_t& offset);
  bool remember_moved(void* memory, std::uint64_t bytes, std::uintptr_t offset) noexcept;

  const Driver& driver_;
  const DeviceOrdinal device_;
  const CudaDeviceOptions options_;
  const pid_t pid_;
  Context context_ = nullptr;
  int architecture_ = 0;
  bool can_write_stream_ = false;
  Kernels kernels_;

  mutable std::mutex mutex_;  // guards the members up to off_
  std::vector<DevicePointer> memory_;
  std::vector<void*> host_memory_;  // from cuMemHostAlloc
  std::vector<void*> pinned_;       // pieces from cuMemHostRegister
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::string first_error_;
  std::string latest_error_;

  std::atomic<bool> off_{false};  // relaxed: the call of a late reader fails anyway
  static constexpr std::size_t kMaxMoved = 64;
  Moved moved_[kMaxMoved] = {};
  std::atomic<std::size_t> moved_count_{0};  // release in remember_moved(), acquire in device_address()
};

/// Opens the device `ordinal` of the process's driver, with the options of the environment.
std::unique_ptr<CudaDevice> open_cuda_device(int ordinal, std::string& reason) noexcept;

}  // namespace tdcore::cuda
