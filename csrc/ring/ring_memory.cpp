#include "ring/ring_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/memory_limits.hpp"
#include "base/signal_free_thread.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace tdcore {
namespace {

constexpr std::uint64_t kMinDataBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kMaxDataBytes = std::uint64_t{64} << 30;
constexpr std::uint64_t kMinSlots = 16;
constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << 20;
constexpr std::uint64_t kMinNamesBytes = std::uint64_t{4} << 10;
constexpr std::uint64_t kMaxNamesBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kPrefaultChunkBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kNamesStepBytes = std::uint64_t{64} << 10;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void throw_errno(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

void check_power_of_two(const char* name, std::uint64_t value, std::uint64_t low, std::uint64_t high) {
  if (value < low || value > high || !std::has_single_bit(value)) {
    throw std::invalid_argument(std::string(name) + " must be a power of two from " + std::to_string(low) +
                                " to " + std::to_string(high) + ", got " + std::to_string(value));
  }
}

void check_sizes(const Sizes& sizes) {
  check_power_of_two("data_bytes", sizes.data_bytes, kMinDataBytes, kMaxDataBytes);
  check_power_of_two("slots", sizes.slots, kMinSlots, kMaxSlots);
  check_power_of_two("names_bytes", sizes.names_bytes, kMinNamesBytes, kMaxNamesBytes);
  if (sizes.order_entries != 0)
    check_power_of_two("order_entries", sizes.order_entries, kMinSlots, kMaxSlots * 16);
  if (sizes.step_rows != 0) check_power_of_two("step_rows", sizes.step_rows, kStepTimeRows, kStepTimeRows);
}

/// Throws if less memory is available. `setting`: name of the setting with which the user can need less.
void check_memory(std::uint64_t bytes, const std::string& setting) {
  const std::uint64_t available = available_memory_bytes();
  if (bytes > available) {
    throw_errno(ENOMEM, "a ring of " + std::to_string(bytes) +
                            " bytes does not fit: the machine and its cgroup have " +
                            std::to_string(available) + " bytes available; make " + setting + " smaller");
  }
}

/// Allocates the memory, so that a lack of memory is an error here and not a SIGBUS in the training. The
/// kernel may kill the process instead of returning an error, so the available memory is checked first.
void reserve_memory(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string& setting) {
  if (bytes == 0) return;
  check_memory(bytes, setting);
  int result = 0;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    throw_errno(errno, "no memory for a ring of " + std::to_string(bytes) +
                           " bytes (fallocate of a memfd); make " + setting +
                           " smaller or raise the memory limit of this container");
  }
}

}  // namespace

std::shared_ptr<RingMemory> RingMemory::create(const Sizes& sizes, std::uint64_t first_data) {
  check_sizes(sizes);
  if (first_data != 0) check_power_of_two("first_data_bytes", first_data, kPageBytes, sizes.data_bytes);
  const Layout layout = layout_for(sizes);
  std::shared_ptr<RingMemory> memory(new RingMemory);
  memory->fd_ = ::memfd_create("tdcore-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->fd_ < 0) throw_errno(errno, "memfd_create");
  if (::ftruncate(memory->fd_, static_cast<off_t>(layout.total_bytes)) != 0) {
    throw_errno(errno, "ftruncate of a memfd to " + std::to_string(layout.total_bytes) + " bytes");
  }
  if (::fcntl(memory->fd_, F_ADD_SEALS, kSeals) != 0)
    throw_errno(errno, "fcntl(F_ADD_SEALS) of the ring's memfd");
  memory->map(layout, sizes);
  if (first_data != 0)
    check_memory(layout.total_bytes - sizes.names_bytes, "data_bytes");  // the maximum size
  reserve_memory(memory->fd_, 0, layout.names_offset, "data_bytes");
  if (first_data != 0) memory->take_parts(first_data, "data_bytes");

  ControlPage& control = *new (memory->base_) ControlPage{};
  control.version = kRingVersion;
  control.slots = static_cast<std::uint32_t>(sizes.slots);
  control.layout = layout_hash();
  control.data_bytes = sizes.data_bytes;
  control.names_bytes = sizes.names_bytes;
  control.order_entries = sizes.order_entries;
  control.step_rows = sizes.step_rows;
  control.names_offset = layout.names_offset;
  control.order_offset = layout.order_offset;
  control.steps_offset = layout.steps_offset;
  control.slots_offset = layout.slots_offset;
  control.data_offset = layout.data_offset;
  control.total_bytes = layout.total_bytes;
  control.data_limit.store(sizes.data_bytes, std::memory_order_relaxed);
  control.last_step.store(-1, std::memory_order_relaxed);
  control.magic = kRingMagic;
  return memory;
}

void RingMemory::take(std::uint64_t data_bytes) { take_parts(data_bytes, "device_lane_bytes"); }

void RingMemory::give_back(std::uint64_t data_bytes) noexcept {
  const std::uint64_t before = data_taken();
  if (data_bytes >= before) return;
  const auto data = static_cast<std::uint64_t>(data_ - base_);
  (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(data + data_bytes),
                    static_cast<off_t>(before - data_bytes));
  data_taken_.store(data_bytes, std::memory_order_relaxed);
}

void RingMemory::take_parts(std::uint64_t data_bytes, const std::string& setting) {
  const auto names = static_cast<std::uint64_t>(names_ - base_);
  const auto order = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(order_) - base_);
  const auto data = static_cast<std::uint64_t>(data_ - base_);
  reserve_memory(fd_, order, data + data_bytes - order, setting);
  data_taken_.store(data_bytes, std::memory_order_relaxed);
  const std::uint64_t first = std::min(kNamesStepBytes, sizes_.names_bytes);
  reserve_memory(fd_, names, first, setting);
  names_taken_.store(first, std::memory_order_relaxed);
}

void RingMemory::take_data(std::uint64_t bytes) {
  const std::uint64_t before = data_taken();
  if (bytes <= before) return;
  const auto data = static_cast<std::uint64_t>(data_ - base_);
  reserve_memory(fd_, data + before, bytes - before, "data_bytes");
  data_taken_.store(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(prefault_mutex_);
  if (!prefault_started_) return;
  prefault_threads_.push_back(start_signal_free_thread(
      [this, begin = data + before, end = data + bytes] { (void)prefault_range(begin, end); }));
}

bool RingMemory::take_names(std::uint64_t bytes) noexcept {
  const std::uint64_t before = names_taken();
  if (bytes <= before) return true;
  if (bytes > sizes_.names_bytes) return false;
  const auto names = static_cast<std::uint64_t>(names_ - base_);
  const std::uint64_t ahead = before + std::max(kNamesStepBytes, before / 2);
  for (const std::uint64_t wished :
       {std::max(bytes, ahead), bytes}) {  // the least size, if `ahead` is too much
    const std::uint64_t end = std::min(round_up(wished, kPageBytes), sizes_.names_bytes);
    try {
      reserve_memory(fd_, names + before, end - before, "names_bytes");
      names_taken_.store(end, std::memory_order_relaxed);
      return true;
    } catch (const std::exception&) {  // no memory, or no memory for the message
    }
  }
  return false;
}

std::shared_ptr<RingMemory> RingMemory::attach(int fd) {
  std::shared_ptr<RingMemory> memory(new RingMemory);
  memory->fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (memory->fd_ < 0) throw_errno(errno, "cannot attach to a ring: descriptor " + std::to_string(fd));
  const std::string where = "descriptor " + std::to_string(fd) + " is not a tdcore ring: ";
  struct stat status{};
  if (::fstat(memory->fd_, &status) != 0) throw_errno(errno, "fstat of descriptor " + std::to_string(fd));
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || file_bytes < sizeof(ControlPage)) {
    throw std::invalid_argument(where + "it has " + std::to_string(status.st_size) +
                                " bytes, the control page alone needs " +
                                std::to_string(sizeof(ControlPage)));
  }
  const int seals = ::fcntl(memory->fd_, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw std::invalid_argument(where + "it is not a memfd sealed against shrinking and growing");
  }
  void* const page = ::mmap(nullptr, sizeof(ControlPage), PROT_READ, MAP_SHARED, memory->fd_, 0);
  if (page == MAP_FAILED) throw_errno(errno, "mmap of a ring's control page");
  const auto& control = *static_cast<const ControlPage*>(page);
  const std::uint64_t magic = control.magic;
  const std::uint32_t version = control.version;
  const std::uint64_t hash = control.layout;
  const Sizes sizes{control.data_bytes, control.slots, control.names_bytes, control.order_entries,
                    control.step_rows};
  const Layout stored{control.names_offset, control.order_offset, control.steps_offset,
                      control.slots_offset, control.data_offset,  control.total_bytes};
  ::munmap(page, sizeof(ControlPage));

  if (magic != kRingMagic) throw std::invalid_argument(where + "no magic number at its start");
  if (version != kRingVersion || hash != layout_hash()) {
    throw std::invalid_argument(where + "it was created by another build (layout version " +
                                std::to_string(version) + ", this one is " + std::to_string(kRingVersion) +
                                "); run trainer and flusher from one installation");
  }
  check_sizes(sizes);
  const Layout layout = layout_for(sizes);
  if (stored.names_offset != layout.names_offset || stored.order_offset != layout.order_offset ||
      stored.steps_offset != layout.steps_offset || stored.slots_offset != layout.slots_offset ||
      stored.data_offset != layout.data_offset || stored.total_bytes != layout.total_bytes ||
      file_bytes != layout.total_bytes) {
    throw std::invalid_argument(where + "the offsets of its parts do not match its sizes (" +
                                std::to_string(file_bytes) + " bytes, expected " +
                                std::to_string(layout.total_bytes) + ")");
  }
  memory->map(layout, sizes);
  return memory;
}

void RingMemory::map(const Layout& layout, const Sizes& sizes) {
  void* const base = ::mmap(nullptr, layout.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED)
    throw_errno(errno, "mmap of a ring of " + std::to_string(layout.total_bytes) + " bytes");
  base_ = static_cast<std::byte*>(base);
  total_bytes_ = layout.total_bytes;
  (void)::madvise(
      base, layout.total_bytes,
      MADV_DONTFORK);  // guard_ detects a child; without the mapping, a child does not keep the memory
  (void)::madvise(base, layout.total_bytes, MADV_DONTDUMP);  // keeps the ring out of core dumps
  slots_ = reinterpret_cast<Slot*>(base_ + layout.slots_offset);
  data_ = base_ + layout.data_offset;
  names_ = base_ + layout.names_offset;
  order_ = reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + layout.order_offset);
  step_rows_ = reinterpret_cast<StepTimeRow*>(base_ + layout.steps_offset);
  sizes_ = sizes;
}

RingMemory::~RingMemory() {
  if (!here()) {
    for (std::unique_ptr<std::thread>& thread : prefault_threads_)
      (void)thread.release();  // a thread of the parent
    return;
  }
  prefault_stop_.store(true, std::memory_order_relaxed);
  for (const std::unique_ptr<std::thread>& thread : prefault_threads_) {
    if (thread && thread->joinable()) thread->join();
  }
  if (base_ != nullptr) ::munmap(base_, total_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void RingMemory::start_prefault() noexcept {
  if (!here()) return;
  try {
    const std::lock_guard lock(prefault_mutex_);
    if (prefault_started_) return;
    prefault_started_ = true;
    // Without a thread, the first lap of the ring touches the pages.
    prefault_threads_.push_back(start_signal_free_thread([this] { prefault(); }));
  } catch (...) {  // no memory for the list: the same as without a thread
    return;
  }
}

void RingMemory::prefault() noexcept {
  const auto names = static_cast<std::uint64_t>(names_ - base_);
  const auto order = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(order_) - base_);
  const std::uint64_t first_names = std::min(kNamesStepBytes, sizes_.names_bytes);  // allocated by create()
  const std::uint64_t end = static_cast<std::uint64_t>(data_ - base_) + data_taken();
  if (prefault_range(0, names + first_names) && prefault_range(order, end))
    prefaulted_.store(true, std::memory_order_release);
}

/// False if it was stopped.
bool RingMemory::prefault_range(std::uint64_t begin, std::uint64_t end) noexcept {
  bool by_kernel = true;
  for (std::uint64_t offset = begin; offset < end; offset += kPrefaultChunkBytes) {
    if (prefault_stop_.load(std::memory_order_relaxed)) return false;
    const std::uint64_t bytes = std::min(kPrefaultChunkBytes, end - offset);
    if (by_kernel && ::madvise(base_ + offset, bytes, MADV_POPULATE_WRITE) == 0) continue;
    if (errno == EINVAL || errno == ENOSYS) by_kernel = false;
    for (std::uint64_t page = 0; page < bytes; page += kPageBytes) {
      // An atomic "or 0" allocates the page and does not change a byte that a producer may be writing there.
      (void)__atomic_fetch_or(reinterpret_cast<unsigned char*>(base_ + offset + page), 0, __ATOMIC_RELAXED);
    }
  }
  return true;
}

}  // namespace tdcore
