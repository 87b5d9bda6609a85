#include "device/device_pieces.hpp"

#include <new>

namespace tdcore {

bool PieceList::make(Device& device, std::size_t capacity) noexcept {
  try {
    pieces_.resize(capacity);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (Piece& piece : pieces_) {
    piece.event = device.make_event();
    if (piece.event == 0) return false;
  }
  return true;
}

bool make_room(Device& device, PieceList& pieces, const FifoSpace& space, const Stretch& stretch,
               StreamHandle stream, Reuse reuse, bool& refused) noexcept {
  if (pieces.full()) return false;
  if (space.fits(stretch)) return true;
  if (reuse == Reuse::kNever) return false;
  const std::uint64_t needed = space.needed(stretch);
  // A piece that is needed in part stays in the list with all of its stretch: the next who takes of it waits
  // for it, too.
  for (std::size_t i = 0; i < pieces.size() && pieces[i].memory.begin < needed; ++i) {
    const Piece& piece = pieces[i];
    if (piece.done || !space.share_memory(piece.memory, stretch)) continue;
    if (reuse == Reuse::kBehindSameStream && piece.stream != stream) return false;
    // Also where the handles are the same, which costs the device nothing then: a stream that was destroyed
    // may have left its handle to another one, and CUDA's per-thread stream is another one in each thread.
    if (!device.wait_event(stream, piece.event)) {
      refused = true;
      return false;
    }
  }
  return true;
}

}  // namespace tdcore
