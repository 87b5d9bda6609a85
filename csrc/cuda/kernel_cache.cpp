// A file is: magic, checksum of the rest, length of the key, key, image.
#include "cuda/kernel_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/crc32c.hpp"

namespace tdcore::cuda {

namespace {

constexpr char kMagic[8] = {'T', 'D', 'K', 'R', 'N', 'L', '0', '1'};
constexpr std::uint64_t kMaxBytes = 64 << 20;  // an image is some 100 KiB

struct Head {
  char magic[8];
  std::uint32_t checksum;  // crc32c of the bytes after this header
  std::uint32_t key_bytes;
};
static_assert(sizeof(Head) == 16);

class File {
 public:
  explicit File(int descriptor) noexcept : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool good() const noexcept { return descriptor_ >= 0; }
  int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

bool read_all(int descriptor, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::read(descriptor, to, bytes);
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int descriptor, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor, from, bytes);
    if (put <= 0) return false;
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

/// Reads the file if it is a regular file of this user that no other user may write, because the image runs
/// in the training.
bool read_own(const std::string& path, std::string& bytes) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat found{};
  if (!file.good() || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode)) return false;
  if (found.st_uid != ::geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) return false;
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size < sizeof(Head) || size > kMaxBytes) return false;
  bytes.resize(size);
  return read_all(file.get(), bytes.data(), bytes.size());
}

std::string text_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

}  // namespace

std::string default_cache_folder() {
  if (const std::string own = text_of("TDCORE_CACHE"); !own.empty()) return own + "/kernels";
  const std::string shared = text_of("XDG_CACHE_HOME");
  if (shared.starts_with('/')) return shared + "/tdcore/kernels";
  if (const std::string home = text_of("HOME"); !home.empty()) return home + "/.cache/tdcore/kernels";
  return {};
}

std::string hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string digits(16, '0');
  for (std::size_t i = 0; i < 16; ++i) digits[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
  return digits;
}

std::string KernelCache::path_of(const std::string& key) const {
  return folder_ + "/" + hash_text(key) + ".cubin";
}

bool KernelCache::load(const std::string& key, std::string& image) const {
  std::string bytes;
  if (folder_.empty() || !read_own(path_of(key), bytes)) return false;
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::string_view rest = std::string_view(bytes).substr(sizeof head);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 ||
      crc32c(rest.data(), rest.size()) != head.checksum) {
    return false;
  }
  if (head.key_bytes >= rest.size() || rest.substr(0, head.key_bytes) != key) return false;
  image = rest.substr(head.key_bytes);
  return true;
}

void KernelCache::store(const std::string& key, std::string_view image) const {
  if (folder_.empty()) return;
  std::error_code failed;  // errors have no consequence
  std::filesystem::create_directories(folder_, failed);
  const std::string rest = key + std::string(image);
  Head head{.magic = {}, .checksum = crc32c(rest.data(), rest.size()), .key_bytes = 0};
  head.key_bytes = static_cast<std::uint32_t>(key.size());
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  std::string beside = folder_ + "/.new-XXXXXX";
  const File file(::mkostemp(beside.data(), O_CLOEXEC));
  if (!file.good()) return;
  const bool written = write_all(file.get(), reinterpret_cast<const char*>(&head), sizeof head) &&
                       write_all(file.get(), rest.data(), rest.size()) && ::fsync(file.get()) == 0;
  if (!written || ::rename(beside.c_str(), path_of(key).c_str()) != 0) (void)::unlink(beside.c_str());
}

}  // namespace tdcore::cuda
