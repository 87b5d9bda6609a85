#include "ring/consumer/lane_chooser.hpp"

namespace tdcore {

/// The lane of the oldest marker, among the markers that are still the oldest record of their lane.
std::optional<std::uint32_t> LaneChooser::oldest_marker(const Mark& at) noexcept {
  std::optional<std::uint32_t> oldest;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    Marker& marker = markers_[lane];
    marker.seen = marker.seen && marker.at.pack() == at.lanes[lane].pack();
    if (marker.seen && (!oldest || marker.time_ns < markers_[*oldest].time_ns)) oldest = lane;
  }
  return oldest;
}

/// Whether the next record in `lane` was reserved before the marker was found.
bool LaneChooser::comes_before(std::uint32_t lane, const Mark& at,
                               std::optional<std::uint32_t> marker) const noexcept {
  if (!marker) return true;
  const RingMemory& memory = *lanes_[lane];
  const std::uint64_t left = markers_[*marker].reserved[lane].tickets_since(at.lanes[lane]);
  return left != 0 && left <= memory.slot_count();  // more: the reader has passed the place
}

/// Stores a marker. True if the marker is new.
bool LaneChooser::note_marker(std::uint32_t lane, const Mark& at, std::int64_t time_ns) noexcept {
  Marker& marker = markers_[lane];
  if (marker.seen && marker.at.pack() == at.lanes[lane].pack()) return false;
  marker.seen = true;
  marker.at = at.lanes[lane];
  marker.time_ns = time_ns;
  for (std::size_t other = 0; other < lanes_.size(); ++other) {
    // Relaxed: the marker's commit was loaded with acquire, so this load finds all reservations before it.
    marker.reserved[other] =
        Cursor::unpack(lanes_[other]->control().reservation.load(std::memory_order_relaxed));
  }
  return true;
}

}  // namespace tdcore
