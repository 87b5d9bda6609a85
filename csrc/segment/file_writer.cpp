#include "segment/file_writer.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

namespace tdcore {
namespace {

constexpr std::uint64_t kPageBounceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kPreallocateFromBytes = std::uint64_t{1} << 20;
constexpr std::size_t kMaxPiecesPerCall = 1024;  // IOV_MAX on Linux
constexpr std::uint64_t kMaxBytesPerCall = std::uint64_t{1} << 30;

[[noreturn]] void fail(const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), path);
}

/// The file while it is being written. The destructor closes the file and removes it, unless it is kept.
class NewFile {
 public:
  NewFile(const std::string& path, bool direct) : path_(path), direct_(direct) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    if (direct_) {
      fd_ = open_new(kFlags | O_DIRECT);
      if (fd_ < 0 && errno == EINVAL) {
        direct_ = false;
        // Some file systems create the file before they reject the flag.
        fd_ = open_new(kFlags);
        if (fd_ < 0 && errno == EEXIST) fd_ = open_new(O_WRONLY | O_CLOEXEC | O_TRUNC);
      }
    } else {
      fd_ = open_new(kFlags);
    }
    if (fd_ < 0) fail(path_, errno);
  }
  ~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  bool direct() const noexcept { return direct_; }
  std::uint64_t offset() const noexcept { return offset_; }

  void preallocate(std::uint64_t bytes) {
    if (bytes < kPreallocateFromBytes) return;
    while (::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
        fail(path_, errno);  // before half of the file is written
      return;                // not supported: the writes allocate
    }
  }

  /// Appends all of `pieces` to the file, and changes them. Falls back to ordinary writes if O_DIRECT is
  /// rejected.
  void append(std::vector<iovec>& pieces) {
    std::size_t next = 0;
    while (next < pieces.size()) {
      const std::size_t count = std::min(pieces.size() - next, kMaxPiecesPerCall);
      const ssize_t written =
          ::pwritev(fd_, &pieces[next], static_cast<int>(count), static_cast<off_t>(offset_));
      if (written < 0) {
        if (errno == EINTR) continue;
        if (errno == EINVAL && direct_) {
          stop_direct();
          continue;
        }
        fail(path_, errno);
      }
      if (written == 0) fail(path_, EIO);
      offset_ += static_cast<std::uint64_t>(written);
      next = drop_written(pieces, next, static_cast<std::size_t>(written));
      // A short direct write may end inside a page. It cannot be continued with O_DIRECT.
      if (direct_ && next < pieces.size() && offset_ % kPageBytes != 0) stop_direct();
    }
    pieces.clear();
  }

  void truncate(std::uint64_t bytes) {
    while (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
      if (errno != EINTR) fail(path_, errno);
    }
  }

  void finish(bool sync) {
    if (sync) {
      while (::fdatasync(fd_) != 0) {
        if (errno != EINTR) fail(path_, errno);
      }
    }
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 && errno != EINTR) {  // network file systems report late errors here
      const int error = errno;
      ::unlink(path_.c_str());
      fail(path_, error);
    }
  }

 private:
  int open_new(int flags) const {
    int fd = -1;
    do {
      fd = ::open(path_.c_str(), flags, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
  }

  void stop_direct() {
    const int flags = ::fcntl(fd_, F_GETFL);
    if (flags < 0 || ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) != 0) fail(path_, errno);
    direct_ = false;
  }

  static std::size_t drop_written(std::vector<iovec>& pieces, std::size_t next, std::size_t written) {
    while (next < pieces.size() && written >= pieces[next].iov_len) written -= pieces[next++].iov_len;
    if (written > 0) {
      pieces[next].iov_base = static_cast<char*>(pieces[next].iov_base) + written;
      pieces[next].iov_len -= written;
    }
    return next;
  }

  const std::string path_;
  bool direct_;
  int fd_ = -1;
  std::uint64_t offset_ = 0;
};

iovec as_iovec(const std::byte* data, std::uint64_t bytes) { return {const_cast<std::byte*>(data), bytes}; }

/// Splits pieces into pages for O_DIRECT: pages at page addresses are written directly, other bytes through a
/// buffer.
class PageWriter {
 public:
  explicit PageWriter(NewFile& file) : file_(file), bounce_(kPageBounceBytes) {}

  void add(const std::byte* data, std::uint64_t bytes) {
    while (bytes > 0) {
      const bool aligned = reinterpret_cast<std::uintptr_t>(data) % kPageBytes == 0;
      std::uint64_t taken = 0;
      if (aligned && held_ % kPageBytes == 0 && bytes >= kPageBytes) {
        flush_bounce();
        taken = std::min(bytes, kMaxBytesPerCall) / kPageBytes * kPageBytes;
        pieces_.push_back(as_iovec(data, taken));
        queued_ += taken;
        if (pieces_.size() == kMaxPiecesPerCall || queued_ >= kMaxBytesPerCall) flush_pieces();
      } else {
        flush_pieces();
        const std::uint64_t to_page = kPageBytes - held_ % kPageBytes;
        taken = std::min({bytes, kPageBounceBytes - held_, aligned ? to_page : bytes});
        std::memcpy(bounce_.data() + held_, data, taken);
        held_ += taken;
        if (held_ == kPageBounceBytes) flush_bounce();
      }
      data += taken;
      bytes -= taken;
    }
  }

  /// Writes the remaining bytes. A partial page at the end is filled up with zeros.
  void finish(std::uint64_t total) {
    flush_pieces();
    const std::uint64_t padded = round_up(held_, kPageBytes);
    if (padded != held_) std::memset(bounce_.data() + held_, 0, padded - held_);
    held_ = padded;
    flush_bounce();
    if (file_.offset() != total) file_.truncate(total);
  }

 private:
  void flush_pieces() {
    if (!pieces_.empty()) file_.append(pieces_);
    queued_ = 0;
  }
  void flush_bounce() {
    if (held_ == 0) return;
    flush_pieces();
    std::vector<iovec> one{as_iovec(bounce_.data(), held_)};
    file_.append(one);
    held_ = 0;
  }

  NewFile& file_;
  PageBuffer bounce_;
  std::uint64_t held_ = 0;     // bytes in bounce_
  std::vector<iovec> pieces_;  // not written yet; either pieces_ or bounce_ is empty
  std::uint64_t queued_ = 0;   // bytes in pieces_
};

}  // namespace

bool write_file(const std::string& path, std::span<const SegmentPiece> pieces, bool direct, bool sync) {
  std::uint64_t total = 0;
  for (const SegmentPiece& piece : pieces) total += piece.bytes;
  NewFile file(path, direct && total > 0);
  file.preallocate(total);
  if (file.direct()) {
    PageWriter writer(file);
    for (const SegmentPiece& piece : pieces) writer.add(piece.data, piece.bytes);
    writer.finish(total);
  } else {
    std::vector<iovec> all;
    for (const SegmentPiece& piece : pieces) {
      if (piece.bytes > 0) all.push_back(as_iovec(piece.data, piece.bytes));
    }
    file.append(all);
  }
  const bool was_direct = file.direct();
  file.finish(sync);
  return was_direct;
}

}  // namespace tdcore
