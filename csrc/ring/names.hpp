// names.hpp: the table of names in shared memory: (name, kind, origin, shard), append-only, id = index.
//
// shard: the position of the tensor in a larger tensor, as text that only Python reads
// (tdcore/format/shard.py); usually empty.
//
// Entry: u32 name_bytes | u32 origin_bytes | u32 kind | u32 shard_bytes | name | origin | shard | padding to
// 8.
//
// control.names_published = [count:32 | bytes:32] is stored with release after an entry is complete; a reader
// loads it with acquire and reads only the published bytes. A restarted consumer reads all names from id 0.
//
// The table grows in place: the ring has address space for `names_bytes` of it, and intern() allocates memory
// for the next entry (RingMemory::take_names). If there is no more memory, a new name is left out. The last
// kept_for_small() bytes are reserved for the names of losses, scalars, metrics and hyperparameters, which
// are few, and important to understand a run.
//
// Threads: NameWriter::intern() from any thread of the trainer (a mutex is held for one look-up or append,
// and while the table grows); read_names() from any process.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ring/ring_memory.hpp"

namespace tdcore {

struct Name {
  std::string name;
  std::uint32_t kind = 0;
  std::string origin;
  std::string shard;
};

/// Whether the name is of a loss, scalar, hyperparameter or metric (TensorKind in tdcore/format/layout.py).
constexpr bool is_small_kind(std::uint32_t kind) noexcept {
  return kind == 6 || kind == 7 || kind == 9 || kind == 11;
}

/// Bytes at the end of a table of at most `names_bytes` that only names of small kinds may use.
constexpr std::uint64_t kept_for_small(std::uint64_t names_bytes) noexcept {
  constexpr std::uint64_t kMost = std::uint64_t{16} << 10;
  return names_bytes / 8 < kMost ? names_bytes / 8 : kMost;
}

/// Id of a name that readers reject; valid ids are smaller.
inline constexpr std::uint32_t kUnfitNameId = 0xFFFFFFFE;

class NameWriter {
 public:
  /// Returns the id of the name; nothing if the table cannot grow any more or memory is short.
  [[nodiscard]] std::optional<std::uint32_t> intern(RingMemory& memory, std::string_view name,
                                                    std::uint32_t kind, std::string_view origin,
                                                    std::string_view shard) noexcept;

 private:
  [[nodiscard]] bool make_room(RingMemory& memory, std::uint64_t end, std::uint32_t kind) noexcept;
  std::optional<std::uint32_t> append(RingMemory& memory, const std::string& entry,
                                      std::uint32_t kind) noexcept;

  std::mutex mutex_;
  std::unordered_map<std::string, std::uint32_t> ids_;  // under mutex_; key = the whole entry
  std::chrono::steady_clock::time_point
      no_growth_until_{};  // under mutex_; set when the table could not grow
};

/// Position of the next name to read. Start with {} to read from id 0.
struct NameCursor {
  std::uint32_t id = 0;
  std::uint64_t offset = 0;
};

/// Names published since `cursor`, which is advanced. Throws std::runtime_error if the table is corrupt.
std::vector<Name> read_names(const RingMemory& memory, NameCursor& cursor);

}  // namespace tdcore
