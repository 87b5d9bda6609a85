// names.hpp: the table of names in shared memory: (name, kind, origin, shard), append-only, id = index.
//
// shard: where the tensor lies in a larger one, as text that nothing here looks at (tdcore/shard.py); mostly
// empty. Entry: u32 name_bytes | u32 origin_bytes | u32 kind | u32 shard_bytes | name | origin | shard |
// padding to 8. control.names_published = [count:32 | bytes:32] is stored with release after an entry is
// complete; a reader loads it with acquire and reads only below it. So a restarted consumer reads all names
// from 0. Threads: NameWriter::intern() from any thread of the trainer (a mutex, held for one look-up or
// append); read_names() from any process.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ring_memory.hpp"

namespace tdcore {

struct Name {
  std::string name;
  std::uint32_t kind = 0;
  std::string origin;
  std::string shard;
};

class NameWriter {
 public:
  /// Empty when the table is full or memory is short.
  [[nodiscard]] std::optional<std::uint32_t> intern(RingMemory& memory, std::string_view name,
                                                    std::uint32_t kind, std::string_view origin,
                                                    std::string_view shard) noexcept;

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::uint32_t> ids_;  // under mutex_; key = the whole entry
};

/// Position of the next name to read. Start with {} to read from id 0.
struct NameCursor {
  std::uint32_t id = 0;
  std::uint64_t offset = 0;
};

/// Names published since `cursor`, which moves on. Throws std::runtime_error when the table is corrupt.
std::vector<Name> read_names(const RingMemory& memory, NameCursor& cursor);

}  // namespace tdcore
