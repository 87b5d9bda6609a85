// sim_pace.hpp: delays of the simulated device: random pauses, determined by a seed.
// Threads: one at a time.
#pragma once

#include <ctime>

#include <cstdint>

namespace tdcore {

class SimPace {
 public:
  SimPace(std::uint64_t seed, std::uint32_t delay_us) noexcept
      : state_(seed * 0x9E3779B97F4A7C15 + 1), delay_us_(delay_us) {}

  /// A random number from 0 to below - 1 (SplitMix64).
  std::uint64_t draw(std::uint64_t below) noexcept {
    std::uint64_t word = state_ += 0x9E3779B97F4A7C15;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    return (word ^ (word >> 31)) % below;
  }

  /// Sometimes returns immediately, sometimes sleeps up to the longest delay.
  void pause() noexcept {
    if (delay_us_ == 0 || draw(3) != 0) return;
    const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(draw(delay_us_) * 1000)};
    (void)::nanosleep(&time, nullptr);
  }

 private:
  std::uint64_t state_;
  const std::uint32_t delay_us_;
};

}  // namespace tdcore
