// The lanes of a main ring, and the functions that differ for a lane (ring.hpp).
#include <time.h>
#include <unistd.h>

#include <stdexcept>

#include "ring/ring_pin.hpp"

namespace tdcore {
namespace {

constexpr std::uint64_t kLaneNamesBytes = 4096;  // names are in the main ring; the table cannot be empty

/// A number that a main ring and its lanes share, and that differs from the numbers of all other rings.
std::uint64_t new_family() noexcept {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_ns =
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  return (static_cast<std::uint64_t>(::getpid()) << 40) ^ now_ns;
}

}  // namespace

void Ring::make_lanes() {
  RingConfig config = config_;
  config.data_bytes = config_.device_lane_bytes;
  config.limit_bytes = config_.device_lane_limit;
  config.slots = config_.device_lane_slots;
  config.threads = 1;
  config.device_lanes = 0;
  ControlPage& main = memory_->control();
  main.family = new_family();
  main.device_lanes = config_.device_lanes;
  lanes_.reserve(config_.device_lanes);
  for (std::uint32_t lane = 1; lane <= config_.device_lanes; ++lane) {
    try {
      std::shared_ptr<RingMemory> memory =
          RingMemory::create({config.data_bytes, config.slots, kLaneNamesBytes, 0}, 0);
      memory->control().family = main.family;
      memory->control().lane = lane;
      lanes_.push_back(std::shared_ptr<Ring>(new Ring(config, std::move(memory), false)));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("device lanes: ") + error.what());
    }
  }
}

/// Sets the size of a lane that is not in use. Under take_mutex_.
void Ring::set_lane_size(std::uint64_t bytes) noexcept {
  limit_.store(bytes, std::memory_order_relaxed);
  sizes_[0].capacity = bytes / kUnitBytes;
  memory_->control().data_limit.store(bytes, std::memory_order_relaxed);
}

bool Ring::shrink_lane() noexcept {
  const Pin pin(*this);
  const std::uint64_t first = config_.first_limit();
  if (!pin || limit_bytes() == first) return false;
  const std::lock_guard lock(take_mutex_);
  set_lane_size(first);
  memory_->give_back(first);
  return true;
}

bool Ring::take_memory(std::string* why) noexcept {
  const Pin pin(*this);
  if (!pin) return false;
  if (memory_taken_.load(std::memory_order_acquire)) return true;  // pairs with the release below
  try {
    const std::lock_guard lock(take_mutex_);
    if (!take_tried_) {
      take_tried_ = true;
      const std::uint64_t first = config_.first_limit();
      while (!memory_taken_.load(std::memory_order_relaxed) && take_error_.empty()) {
        try {
          memory_->take(limit_bytes());
          memory_taken_.store(true, std::memory_order_release);  // pairs with the acquire above
        } catch (const std::exception& error) {
          if (limit_bytes() == first) take_error_ = error.what();
          set_lane_size(first);
        }
      }
    }
    if (why != nullptr) *why = take_error_;
    return memory_taken_.load(std::memory_order_relaxed);
  } catch (...) {  // no memory for the reason
    return false;
  }
}

Mapping Ring::mapping() const noexcept {
  const Pin pin(*this);
  if (!pin) return {};
  const auto before = static_cast<std::uint64_t>(memory_->data() - static_cast<std::byte*>(memory_->base()));
  return {memory_->base(), before + limit_bytes()};
}

std::uint64_t Ring::waited_ns() const noexcept {
  std::uint64_t sum = waited_ns_.load(std::memory_order_relaxed);
  if (!guard_->here()) return 0;
  for (const std::shared_ptr<Ring>& lane : lanes_) sum += lane->waited_ns();
  return sum;
}

std::uint64_t Ring::early_commits() const noexcept {
  const Pin pin(*this);
  if (pin) return memory_->control().early_commits.load(std::memory_order_relaxed);
  // Acquire: pairs with the release in close().
  return guard_->here() && counters_final_.load(std::memory_order_acquire) ? final_early_commits_ : 0;
}

std::vector<int> Ring::fds() const {
  if (closed_.load(std::memory_order_relaxed)) return {};
  std::vector<int> all{fd_};
  for (const std::shared_ptr<Ring>& lane : lanes_) all.push_back(lane->fd_);
  return all;
}

std::vector<std::shared_ptr<RingMemory>> Ring::memories() const {
  std::vector<std::shared_ptr<RingMemory>> all{memory()};
  for (const std::shared_ptr<Ring>& lane : lanes_) all.push_back(lane->memory());
  return all;
}

}  // namespace tdcore
