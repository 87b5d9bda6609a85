#include "names.hpp"

#include <cstring>
#include <stdexcept>

namespace tdcore {
namespace {

struct NameHeader {
  std::uint32_t name_bytes;
  std::uint32_t origin_bytes;
  std::uint32_t kind;
  std::uint32_t reserved;
};
static_assert(sizeof(NameHeader) == 16);

constexpr std::uint64_t kCountShift = 32;
constexpr std::uint64_t kBytesMask = 0xffffffff;

std::uint64_t entry_bytes(std::uint64_t name_bytes, std::uint64_t origin_bytes) noexcept {
  return round_up(sizeof(NameHeader) + name_bytes + origin_bytes, 8);
}

std::string key_of(std::string_view name, std::uint32_t kind, std::string_view origin) {
  std::string key;
  key.reserve(name.size() + origin.size() + 2 * sizeof(std::uint32_t));
  const auto name_bytes = static_cast<std::uint32_t>(name.size());
  key.append(reinterpret_cast<const char*>(&kind), sizeof(kind));
  key.append(reinterpret_cast<const char*>(&name_bytes), sizeof(name_bytes));
  key.append(name);
  key.append(origin);
  return key;
}

/// Appends and publishes. Under the writer's mutex.
std::optional<std::uint32_t> append(RingMemory& memory, std::string_view name, std::uint32_t kind,
                                    std::string_view origin) noexcept {
  std::atomic<std::uint64_t>& published = memory.control().names_published;
  const std::uint64_t word = published.load(std::memory_order_relaxed);  // written under this mutex only
  const std::uint64_t count = word >> kCountShift;
  const std::uint64_t used = word & kBytesMask;
  const std::uint64_t needed = entry_bytes(name.size(), origin.size());
  if (needed > memory.names_bytes() - used || count >= kBytesMask) return std::nullopt;
  std::byte* const at = memory.names() + used;
  const NameHeader header{static_cast<std::uint32_t>(name.size()), static_cast<std::uint32_t>(origin.size()),
                          kind, 0};
  std::memcpy(at, &header, sizeof(header));
  if (!name.empty()) std::memcpy(at + sizeof(header), name.data(), name.size());
  if (!origin.empty()) std::memcpy(at + sizeof(header) + name.size(), origin.data(), origin.size());
  published.store(((count + 1) << kCountShift) | (used + needed),
                  std::memory_order_release);  // pairs with read_names()
  return static_cast<std::uint32_t>(count);
}

}  // namespace

std::optional<std::uint32_t> NameWriter::intern(RingMemory& memory, std::string_view name, std::uint32_t kind,
                                                std::string_view origin) noexcept {
  try {
    if (name.size() > memory.names_bytes() || origin.size() > memory.names_bytes()) return std::nullopt;
    std::string key = key_of(name, kind, origin);
    const std::lock_guard lock(mutex_);
    const auto [found, added] = ids_.try_emplace(std::move(key), 0);
    if (!added) return found->second;
    const std::optional<std::uint32_t> id = append(memory, name, kind, origin);
    if (id) {
      found->second = *id;
    } else {
      ids_.erase(found);
    }
    return id;
  } catch (...) {  // no memory for the key: as if the table were full
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
    throw std::runtime_error("the ring's table of names is corrupt: more bytes in use than it has");
  while (cursor.id < count) {
    NameHeader header{};
    if (used - cursor.offset < sizeof(header))
      throw std::runtime_error("the ring's table of names is corrupt: it ends inside an entry");
    std::memcpy(&header, memory.names() + cursor.offset, sizeof(header));
    const std::uint64_t bytes = entry_bytes(header.name_bytes, header.origin_bytes);
    if (bytes > used - cursor.offset)
      throw std::runtime_error("the ring's table of names is corrupt: an entry is longer than the table");
    const char* const text = reinterpret_cast<const char*>(memory.names() + cursor.offset + sizeof(header));
    names.push_back({std::string(text, header.name_bytes), header.kind,
                     std::string(text + header.name_bytes, header.origin_bytes)});
    cursor.offset += bytes;
    ++cursor.id;
  }
  return names;
}

}  // namespace tdcore
