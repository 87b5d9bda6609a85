// ring_memory.hpp: the memfd behind a ring, mapped into this process.
//
// create() makes it (trainer), attach() maps a descriptor that came from elsewhere (flusher) and validates
// it. Sealed against shrinking and growing, so that no one can turn an access into SIGBUS. Fork: the mapping
// is MADV_DONTFORK. In a forked child the destructor frees nothing: the address range and the descriptor
// numbers may belong to others by then. Threads: after construction all members are constant, except for the
// prefault thread, which start_prefault() starts once and the destructor stops and joins.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "control_page.hpp"

namespace tdcore {

/// Tells a forked child from the process that made the guard, for the price of two loads. A private word is
/// wiped by the kernel (MADV_WIPEONFORK) and a generation number is raised by a pthread_atfork handler;
/// either is enough, so a kernel without the one or a raw clone() without the other is seen too.
class ForkGuard {
 public:
  ForkGuard();  // throws std::system_error
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  /// True in the process that made it. Any thread.
  bool here() const noexcept {
    return *alive_word_ == 1 && generation_ == fork_generation.load(std::memory_order_relaxed);
  }

 private:
  static void raise_generation() noexcept;

  // Raised in every child made by fork(). Relaxed: the child has one thread, and that one raised it.
  static inline std::atomic<std::uint64_t> fork_generation{0};

  const volatile std::uint64_t* alive_word_ =
      nullptr;                    // 1 here, 0 in a child; a page of its own, constant after construction
  std::uint64_t generation_ = 0;  // constant after construction
};

class RingMemory {
 public:
  /// Throws std::invalid_argument (sizes) or std::system_error (says the call and the bytes asked for).
  /// `taken`: takes the memory now; else it is only mapped, and nobody may touch more than the control page
  /// before take().
  static std::shared_ptr<RingMemory> create(const Sizes& sizes, bool taken = true);

  /// Duplicates fd. Throws std::invalid_argument when it is not a ring of this build, or std::system_error.
  static std::shared_ptr<RingMemory> attach(int fd);

  /// Takes the memory. Throws std::system_error.
  void take();

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
  void* base() const noexcept { return base_; }
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

  void start_prefault() noexcept;
  bool prefault_done() const noexcept { return prefaulted_.load(std::memory_order_acquire); }

 private:
  RingMemory() : guard_(std::make_shared<const ForkGuard>()) {}
  void map(const Layout& layout, const Sizes& sizes);
  void prefault() noexcept;

  const std::shared_ptr<const ForkGuard> guard_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::uint64_t total_bytes_ = 0;
  Slot* slots_ = nullptr;
  std::byte* data_ = nullptr;
  std::byte* names_ = nullptr;
  std::atomic<std::uint64_t>* order_ = nullptr;
  Sizes sizes_;

  std::unique_ptr<std::thread> prefault_thread_;  // start_prefault() and destructor only
  std::atomic<bool> prefault_started_{false};     // exchange: the first caller starts the thread
  std::atomic<bool> prefault_stop_{false};        // relaxed: a hint to stop; join() orders the rest
  std::atomic<bool> prefaulted_{false};           // release by the thread; pairs with prefault_done()
};

}  // namespace tdcore
