// cuda_device.hpp: an NVIDIA device behind device.hpp, through the driver's functions alone.
//
// It works in the device's primary context, the one that every framework uses: streams, events and memory of
// both go together. A thread whose current context is another one gets ours for the length of a call. Set-up
// loads the kernels and tries which way of committing works; after that nothing is loaded, allocated or
// waited for by what enqueues. An error is kept; one after which the context is lost turns the device off.
// CUDA graphs: while another thread captures a stream in "global" mode, CUDA forbids calls that might wait
// and breaks that capture when one is made; all such calls here are made in "relaxed" mode, where they are
// allowed. A stream that is being captured itself is the caller's to leave alone (is_capturing).
// Threads and fork: as device.hpp says. The owner lets it go only when nothing is in flight.
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

struct CudaDeviceOptions {
  KernelOptions kernels;
  // Memory is pinned in pieces: one call for very much memory fails in drivers from 580 on (16 bytes of
  // kernel memory in one piece for each page). Large, so that records of usual rings never lie across two
  // pieces.
  std::uint64_t pin_chunk_bytes = std::uint64_t{16} << 30;
  int probe_ms = 1000;  // longest wait of the probe of a commit
};

class CudaDevice final : public Device {
 public:
  /// Null, with the reason and what to do, when the device cannot be used. ordinal: as the framework counts,
  /// within CUDA_VISIBLE_DEVICES. Starts CUDA when it is not started yet; takes some 10 ms (seconds where
  /// kernels are compiled).
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

  void* device_address(void* pinned) const noexcept override;
  bool is_capturing(StreamHandle stream) noexcept override;
  bool copy_to_device(StreamHandle stream, void* device, const void* pinned,
                      std::uint64_t bytes) noexcept override;
  bool copy_to_host(StreamHandle stream, void* pinned, const void* device,
                    std::uint64_t bytes) noexcept override;
  bool fill_zero(StreamHandle stream, void* device, std::uint64_t bytes) noexcept override;
  bool launch(StreamHandle stream, Kernel kernel, const device::Launch& launch) noexcept override;
  bool write_word(StreamHandle stream, std::uint64_t* pinned, std::uint64_t value,
                  CommitMode commit_mode) noexcept override;
  bool record_event(EventHandle event, StreamHandle stream) noexcept override;
  bool wait_event(StreamHandle stream, EventHandle event) noexcept override;
  EventState query_event(EventHandle event) noexcept override;
  std::string first_error() const override;

 private:
  class Current;
  class Relaxed;
  /// Pinned memory that the device sees at another address than the host does.
  struct Moved {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::uintptr_t offset;  // added to a host address
  };

  CudaDevice(const Driver& driver, DeviceOrdinal device, const CudaDeviceOptions& options);

  bool set_up(std::string& reason);
  void describe();
  bool keep(Result result, const char* what) noexcept;
  template <class Call>
  bool enqueue(const char* what, Call&& call) noexcept;
  template <class Call>
  bool prepare(const char* what, Call&& call) noexcept;
  /// The pieces that `memory` was pinned in; none when it could not be.
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

  mutable std::mutex mutex_;  // of what follows, up to off_
  std::vector<DevicePointer> memory_;
  std::vector<void*> host_memory_;  // from cuMemHostAlloc
  std::vector<void*> pinned_;       // pieces from cuMemHostRegister
  std::vector<Stream> streams_;
  std::vector<Event> events_;
  std::string first_error_;

  std::atomic<bool> off_{false};  // relaxed: a late reader's call fails by itself
  static constexpr std::size_t kMaxMoved = 64;
  Moved moved_[kMaxMoved] = {};
  std::atomic<std::size_t> moved_count_{0};  // release in remember_moved(), acquire in device_address()
};

/// The device `ordinal` of the process's driver, with the options that the environment sets.
std::unique_ptr<CudaDevice> open_cuda_device(int ordinal, std::string& reason) noexcept;

}  // namespace tdcore::cuda
