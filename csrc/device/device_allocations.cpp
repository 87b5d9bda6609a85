#include "device/device_allocations.hpp"

#include <new>

namespace tdcore {

bool AllocationList::make(Device& device, std::size_t capacity) noexcept {
  try {
    allocations_.resize(capacity);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (Allocation& allocation : allocations_) {
    allocation.event = device.make_event();
    if (allocation.event == 0) return false;
  }
  return true;
}

bool make_room(Device& device, AllocationList& allocations, const FifoSpace& space, const Extent& extent,
               StreamHandle stream, Reuse reuse, bool& refused) noexcept {
  if (allocations.full()) return false;
  if (space.fits(extent)) return true;
  if (reuse == Reuse::kNever) return false;
  const std::uint64_t needed = space.needed(extent);
  // An allocation that is needed only in part stays in the list with all of its extent, so that the next user
  // of the extent also waits for it.
  for (std::size_t i = 0; i < allocations.size() && allocations[i].memory.begin < needed; ++i) {
    const Allocation& allocation = allocations[i];
    if (allocation.done || !space.share_memory(allocation.memory, extent)) continue;
    if (reuse == Reuse::kBehindSameStream && allocation.stream != stream) return false;
    // Also if the handles are equal, which costs the device nothing: a new stream may have the handle of a
    // destroyed stream, and CUDA's per-thread stream is a different stream in each thread.
    if (!device.wait_event(stream, allocation.awaited)) {
      refused = true;
      return false;
    }
  }
  return true;
}

}  // namespace tdcore
