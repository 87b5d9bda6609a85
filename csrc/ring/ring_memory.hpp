// ring_memory.hpp: the memfd behind a ring, mapped into this process.
//
// create() makes it (trainer), attach() maps a descriptor that came from elsewhere (flusher) and validates
// it. Sealed against shrinking and growing, so that no one can turn an access into SIGBUS. Fork: the mapping
// is MADV_DONTFORK. In a forked child the destructor frees nothing: the address range and the descriptor
// numbers may belong to others by then.
//
// The memfd is sparse. Memory that was not allocated must not be touched: if there is none left, the kernel
// would end the process. create() allocates the beginning of the names and of the data, and all other parts;
// take_names() and take_data() allocate more of these two. A reader touches only published bytes, which were
// allocated before. Threads: after construction all members are constant, except for names_taken_ and
// data_taken_ (see there) and the threads that prefault, which start under a mutex and which the destructor
// stops and joins.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"
#include "ring/control_page.hpp"

namespace tdcore {

/// Of how much data a ring takes the memory when it is made: 1 to 4 MiB, a power of 4 below the whole.
constexpr std::uint64_t first_data_bytes(std::uint64_t data_bytes) noexcept {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
  while (data_bytes / 4 >= kLeast) data_bytes /= 4;
  return data_bytes;
}

class RingMemory {
 public:
  /// Throws std::invalid_argument (sizes) or std::system_error (with the call and the requested bytes).
  /// first_data: number of bytes of the data that are allocated now; with 0 everything is only mapped, and
  /// only the control page may be touched before take().
  static std::shared_ptr<RingMemory> create(const Sizes& sizes, std::uint64_t first_data);

  /// Duplicates fd. Throws std::invalid_argument when it is not a ring of this build, or std::system_error.
  static std::shared_ptr<RingMemory> attach(int fd);

  /// Takes all of the data, the beginning of the names, and all else. Throws std::system_error.
  void take();

  /// Takes memory, so that the first `bytes` of the table of names may be touched, and some more in advance.
  /// False when there is none, or the table cannot be so long. One thread at a time, of the trainer.
  [[nodiscard]] bool take_names(std::uint64_t bytes) noexcept;
  /// Bytes of the table of names whose memory is taken. Any thread of the trainer.
  std::uint64_t names_taken() const noexcept { return names_taken_.load(std::memory_order_relaxed); }

  /// Takes memory, so that the first `bytes` of the data may be touched. Throws std::system_error. One thread
  /// at a time, of the trainer.
  void take_data(std::uint64_t bytes);
  /// Bytes of the data whose memory is taken. Any thread of the trainer.
  std::uint64_t data_taken() const noexcept { return data_taken_.load(std::memory_order_relaxed); }

  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  bool here() const noexcept { return guard_->here(); }
  std::shared_ptr<const ForkGuard> guard() const noexcept { return guard_; }
  int fd() const noexcept { return fd_; }
  ControlPage& control() const noexcept { return *reinterpret_cast<ControlPage*>(base_); }
  Slot* slots() const noexcept { return slots_; }
  std::byte* data() const noexcept { return data_; }
  std::byte* names() const noexcept { return names_; }
  std::atomic<std::uint64_t>* order() const noexcept { return order_; }  // order_entries() of them
  std::uint64_t slot_count() const noexcept { return sizes_.slots; }
  std::uint64_t data_bytes() const noexcept { return sizes_.data_bytes; }
  std::uint64_t names_bytes() const noexcept { return sizes_.names_bytes; }
  std::uint64_t order_entries() const noexcept { return sizes_.order_entries; }
  /// Bytes whose memory is taken, all parts together.
  std::uint64_t taken_bytes() const noexcept {
    const std::uint64_t data = data_taken();
    if (data == 0) return static_cast<std::uint64_t>(names_ - base_);
    return static_cast<std::uint64_t>(data_ - base_) - sizes_.names_bytes + names_taken() + data;
  }
  void* base() const noexcept { return base_; }
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

  void start_prefault() noexcept;
  bool prefault_done() const noexcept { return prefaulted_.load(std::memory_order_acquire); }

 private:
  RingMemory() : guard_(std::make_shared<const ForkGuard>()) {}
  void map(const Layout& layout, const Sizes& sizes);
  void take_parts(std::uint64_t data_bytes, const std::string& setting);
  void prefault() noexcept;
  bool prefault_range(std::uint64_t begin, std::uint64_t end) noexcept;

  const std::shared_ptr<const ForkGuard> guard_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::uint64_t total_bytes_ = 0;
  Slot* slots_ = nullptr;
  std::byte* data_ = nullptr;
  std::byte* names_ = nullptr;
  std::atomic<std::uint64_t>* order_ = nullptr;
  Sizes sizes_;
  std::atomic<std::uint64_t> names_taken_{0};  // take_names(); relaxed: a number, orders nothing

  std::atomic<std::uint64_t> data_taken_{0};  // take_data(); relaxed: a number, orders nothing

  std::mutex prefault_mutex_;  // guards the next two
  std::vector<std::unique_ptr<std::thread>>
      prefault_threads_;  // one per growth at most, and that of the start
  bool prefault_started_ = false;
  std::atomic<bool> prefault_stop_{false};  // relaxed: a hint to stop; join() orders the rest
  std::atomic<bool> prefaulted_{false};     // release by the thread; pairs with prefault_done()
};

}  // namespace tdcore
