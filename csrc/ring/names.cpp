#include "ring/names.hpp"

#include <cstring>
#include <stdexcept>

namespace tdcore {
namespace {

struct NameHeader {
  std::uint32_t name_bytes;
  std::uint32_t origin_bytes;
  std::uint32_t kind;
  std::uint32_t shard_bytes;
};
static_assert(sizeof(NameHeader) == 16);

constexpr std::uint64_t kCountShift = 32;
constexpr std::uint64_t kBytesMask = 0xffffffff;

std::uint64_t entry_bytes(const NameHeader& header) noexcept {
  const std::uint64_t text = std::uint64_t{header.name_bytes} + header.origin_bytes + header.shard_bytes;
  return round_up(sizeof(header) + text, 8);
}

/// The entry in the form of the table, without padding; also the key of the name's id in the map.
std::string entry_of(std::string_view name, std::uint32_t kind, std::string_view origin,
                     std::string_view shard) {
  const NameHeader header{static_cast<std::uint32_t>(name.size()), static_cast<std::uint32_t>(origin.size()),
                          kind, static_cast<std::uint32_t>(shard.size())};
  std::string entry;
  entry.reserve(sizeof(header) + name.size() + origin.size() + shard.size());
  entry.append(reinterpret_cast<const char*>(&header), sizeof(header));
  return entry.append(name).append(origin).append(shard);
}

constexpr std::chrono::seconds kPauseAfterRefusedNames{1};

}  // namespace

/// Whether an entry that ends at `end` may be written. Allocates memory for it. Under mutex_.
bool NameWriter::make_room(RingMemory& memory, std::uint64_t end, std::uint32_t kind) noexcept {
  const std::uint64_t kept = kept_for_small(memory.names_bytes());
  if (end + kept <= memory.names_taken()) return true;
  if (end + kept <= memory.names_bytes() && std::chrono::steady_clock::now() >= no_growth_until_) {
    if (memory.take_names(end + kept)) return true;
    no_growth_until_ = std::chrono::steady_clock::now() + kPauseAfterRefusedNames;
  }
  return is_small_kind(kind) && end <= memory.names_taken();
}

/// Appends and publishes an entry. Under mutex_.
std::optional<std::uint32_t> NameWriter::append(RingMemory& memory, const std::string& entry,
                                                std::uint32_t kind) noexcept {
  std::atomic<std::uint64_t>& published = memory.control().names_published;
  const std::uint64_t word = published.load(std::memory_order_relaxed);  // only written under this mutex
  const std::uint64_t count = word >> kCountShift;
  const std::uint64_t used = word & kBytesMask;
  const std::uint64_t end = used + round_up(entry.size(), 8);
  if (count >= kUnfitNameId || !make_room(memory, end, kind)) return std::nullopt;
  std::memcpy(memory.names() + used, entry.data(), entry.size());
  published.store(((count + 1) << kCountShift) | end, std::memory_order_release);  // pairs with read_names()
  return static_cast<std::uint32_t>(count);
}

std::optional<std::uint32_t> NameWriter::intern(RingMemory& memory, std::string_view name, std::uint32_t kind,
                                                std::string_view origin, std::string_view shard) noexcept {
  try {
    for (const std::string_view text : {name, origin, shard})
      if (text.size() > memory.names_bytes()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto [found, added] = ids_.try_emplace(entry_of(name, kind, origin, shard), 0);
    if (!added) return found->second;
    const std::optional<std::uint32_t> id = append(memory, found->first, kind);
    if (id) {
      found->second = *id;
    } else {
      ids_.erase(found);
    }
    return id;
  } catch (...) {  // no memory for the key: handled like a full table
    return std::nullopt;
  }
}

std::vector<Name> read_names(const RingMemory& memory, NameCursor& cursor) {
  const std::uint64_t word =
      memory.control().names_published.load(std::memory_order_acquire);  // pairs with append()
  const std::uint64_t count = word >> kCountShift;
  const std::uint64_t used = word & kBytesMask;
  std::vector<Name> names;
  if (used > memory.names_bytes())
    throw std::runtime_error(
        "the ring's table of names is corrupt: more bytes are in use than the table has");
  while (cursor.id < count) {
    NameHeader header{};
    if (used - cursor.offset < sizeof(header))
      throw std::runtime_error("the ring's table of names is corrupt: it ends inside an entry");
    std::memcpy(&header, memory.names() + cursor.offset, sizeof(header));
    const std::uint64_t bytes = entry_bytes(header);
    if (bytes > used - cursor.offset)
      throw std::runtime_error("the ring's table of names is corrupt: an entry is longer than the table");
    const char* const text = reinterpret_cast<const char*>(memory.names() + cursor.offset + sizeof(header));
    const char* const origin = text + header.name_bytes;
    const char* const shard = origin + header.origin_bytes;
    names.push_back({std::string(text, header.name_bytes), header.kind,
                     std::string(origin, header.origin_bytes), std::string(shard, header.shard_bytes)});
    cursor.offset += bytes;
    ++cursor.id;
  }
  return names;
}

}  // namespace tdcore
