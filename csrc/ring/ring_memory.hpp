// ring_memory.hpp: the memfd behind a ring, mapped into this process.
//
// create() creates the memfd (trainer); attach() maps a descriptor of another process (flusher) and validates
// it. The memfd is sealed against shrinking and growing, so that no process can turn an access into SIGBUS.
//
// Fork: the mapping is MADV_DONTFORK. In a forked child the destructor frees nothing, because the child may
// have reused the address range and the descriptor numbers.
//
// The memfd is sparse. Memory that was not allocated must not be accessed: if no memory is left, the kernel
// would end the process. create() allocates the beginning of the names and of the data, and all other parts;
// take_names() and take_data() allocate more of these two. A reader accesses only published bytes, which were
// allocated before.
//
// Threads: after construction all members are constant, except for names_taken_ and data_taken_ (see there)
// and the threads that prefault, which start under a mutex and which the destructor stops and joins.
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

/// Size of the data that a new ring allocates: 1 to 4 MiB, and data_bytes divided by a power of 4.
constexpr std::uint64_t first_data_bytes(std::uint64_t data_bytes) noexcept {
  constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
  while (data_bytes / 4 >= kLeast) data_bytes /= 4;
  return data_bytes;
}

class RingMemory {
 public:
  /// Throws std::invalid_argument (sizes) or std::system_error (with the call and the requested bytes).
  /// first_data: number of bytes of the data that are allocated. With 0 all parts are only mapped, and only
  /// the control page may be accessed before take().
  static std::shared_ptr<RingMemory> create(const Sizes& sizes, std::uint64_t first_data);

  /// Duplicates fd. Throws std::invalid_argument if it is not a ring of this build, or std::system_error.
  static std::shared_ptr<RingMemory> attach(int fd);

  /// Allocates the first `data_bytes` of the data, the beginning of the names, and all other parts. Throws
  /// std::system_error.
  void take(std::uint64_t data_bytes);
  /// Frees the data after the first `data_bytes`, which no record has used.
  void give_back(std::uint64_t data_bytes) noexcept;

  /// Allocates the first `bytes` of the table of names, and some more in advance. False if there is no
  /// memory, or if the table cannot be so long. One thread at a time, of the trainer.
  [[nodiscard]] bool take_names(std::uint64_t bytes) noexcept;
  /// Allocated bytes of the table of names. Any thread of the trainer.
  std::uint64_t names_taken() const noexcept { return names_taken_.load(std::memory_order_relaxed); }

  /// Allocates the first `bytes` of the data. Throws std::system_error. One thread at a time, of the trainer.
  void take_data(std::uint64_t bytes);
  /// Allocated bytes of the data. Any thread of the trainer.
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
  std::atomic<std::uint64_t>* order() const noexcept { return order_; }  // order_entries() words
  StepTimeRow* step_rows() const noexcept { return step_rows_; }         // step_row_count() rows
  std::uint64_t step_row_count() const noexcept { return sizes_.step_rows; }
  std::uint64_t slot_count() const noexcept { return sizes_.slots; }
  std::uint64_t data_bytes() const noexcept { return sizes_.data_bytes; }
  std::uint64_t names_bytes() const noexcept { return sizes_.names_bytes; }
  std::uint64_t order_entries() const noexcept { return sizes_.order_entries; }
  /// Allocated bytes of all parts together.
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
  StepTimeRow* step_rows_ = nullptr;
  Sizes sizes_;
  std::atomic<std::uint64_t> names_taken_{0};  // by take_names(); relaxed: orders no other access

  std::atomic<std::uint64_t> data_taken_{0};  // by take_data(); relaxed: orders no other access

  std::mutex prefault_mutex_;  // guards the next two
  std::vector<std::unique_ptr<std::thread>>
      prefault_threads_;  // at most one per growth, and one at the start
  bool prefault_started_ = false;
  std::atomic<bool> prefault_stop_{false};  // relaxed: a hint to stop; join() orders the rest
  std::atomic<bool> prefaulted_{false};     // release by the thread; pairs with prefault_done()
};

}  // namespace tdcore
