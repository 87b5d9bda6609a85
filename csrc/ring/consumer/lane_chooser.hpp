// lane_chooser.hpp: selects the lane from which the next record is taken.
//
// The lanes take turns, so that no lane waits for the others. A lane whose oldest record is not committed, or
// early (lane_reader.hpp), is passed over. Threads: the consumer's.
//
// Markers. A record without rows marks a step as complete (rules/completeness.py). Its ticket must be after
// the tickets of the step's rows. Therefore a marker, once it is found, waits for all records that can be
// taken in the other lanes: records that were committed before it, with all records before them in their
// lanes. The lanes are searched again after the marker's commit word was loaded (acquire), so these records
// are found. Only records that were reserved by then count, so that the wait ends. Of several markers, the
// marker with the oldest time is first. Records after a record that the device has not finished cannot be
// taken. For such records, the device writes the marker after them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ring/consumer/lane_order.hpp"
#include "ring/consumer/lane_reader.hpp"

namespace tdcore {

class LaneChooser {
 public:
  struct Choice {
    std::uint32_t lane = 0;
    Found found;
  };

  explicit LaneChooser(std::span<const std::shared_ptr<RingMemory>> lanes) noexcept : lanes_(lanes) {}

  /// The next record after `at`, or nothing. Calls `early(lane)` for each lane whose oldest record is early.
  template <typename Early>
  std::optional<Choice> choose(const Mark& at, bool producer_dead, Early&& early) noexcept;

 private:
  /// A marker that was found as the oldest record of its lane.
  struct Marker {
    bool seen = false;
    Cursor at;
    std::int64_t time_ns = 0;
    std::array<Cursor, kMaxLanes> reserved{};  // in each lane when it was found: it waits only for these
  };

  std::optional<std::uint32_t> oldest_marker(const Mark& at) noexcept;
  bool comes_before(std::uint32_t lane, const Mark& at, std::optional<std::uint32_t> marker) const noexcept;
  bool note_marker(std::uint32_t lane, const Mark& at, std::int64_t time_ns) noexcept;

  std::span<const std::shared_ptr<RingMemory>> lanes_;
  std::array<Marker, kMaxLanes> markers_{};
  std::uint32_t turn_ = 0;
};

template <typename Early>
std::optional<LaneChooser::Choice> LaneChooser::choose(const Mark& at, bool producer_dead,
                                                       Early&& early) noexcept {
  const auto count = static_cast<std::uint32_t>(lanes_.size());
  for (;;) {
    const std::optional<std::uint32_t> marker = oldest_marker(at);
    std::optional<Choice> waiting;  // the marker itself
    bool looks_again = false;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t lane = (turn_ + i) % count;
      // In a lane that was never used, only the control page may be accessed.
      if (!any_reserved(*lanes_[lane], at.lanes[lane])) continue;
      const Found found = look(*lanes_[lane], at.lanes[lane], producer_dead);
      if (found.what == Found::What::kEarly) early(lane);
      if (found.what == Found::What::kNothing || found.what == Found::What::kEarly) continue;
      std::int64_t time_ns = 0;
      if (is_marker(found.view, time_ns)) {
        looks_again = note_marker(lane, at, time_ns) || looks_again;
        if (marker == lane) waiting = Choice{lane, found};
      } else if (comes_before(lane, at, marker)) {
        turn_ = (lane + 1) % count;
        return Choice{lane, found};
      }
    }
    if (!looks_again) return waiting;
  }
}

}  // namespace tdcore
