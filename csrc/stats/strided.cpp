// Views of any strides: gathered in C order into a bounce block that stays in the cache, then reduced and
// copied.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/limits.hpp"
#include "stats/chunk.hpp"
#include "stats/cpu.hpp"

namespace tdcore {
namespace {

// On the stack of the reducing thread; fits into the second-level cache. A transpose needs this size, because
// one cache line of the source has elements of several rows, and these rows are in the block together.
constexpr std::uint64_t kBounceBytes = 256 * 1024;

struct Dimension {
  std::uint64_t extent;
  std::int64_t stride;  // in elements
};

/// A view without extents of 1, and with neighboring dimensions joined if their memory is contiguous. The C
/// order is unchanged.
struct StridedLayout {
  std::array<Dimension, kMaxDims> dims;
  std::size_t count = 0;

  explicit StridedLayout(const TensorView& view) noexcept {
    std::int64_t dense = 1;  // C contiguous strides, built backwards
    std::array<Dimension, kMaxDims> reversed;
    for (int axis = view.ndim - 1; axis >= 0; --axis) {
      const auto extent = static_cast<std::uint64_t>(view.shape[axis]);
      const std::int64_t stride = view.strides == nullptr ? dense : view.strides[axis];
      dense *= view.shape[axis];
      if (extent == 1) {
        continue;
      }
      if (count != 0) {
        Dimension& inner = reversed[count - 1];
        if (stride == static_cast<std::int64_t>(inner.extent) * inner.stride) {
          inner.extent *= extent;
          continue;
        }
      }
      reversed[count++] = {extent, stride};
    }
    if (count == 0) {
      reversed[count++] = {1, 1};
    }
    std::reverse_copy(reversed.begin(), reversed.begin() + static_cast<std::ptrdiff_t>(count), dims.begin());
  }

  [[nodiscard]] bool contiguous() const noexcept {
    return count == 1 && (dims[0].stride == 1 || dims[0].extent == 1);
  }
};

/// Whether the elements fill their memory without gaps or overlap, in some order. Then `first` is the
/// distance in elements from the view's first element to the element with the lowest address.
bool is_dense(const StridedLayout& layout, std::int64_t& first) noexcept {
  std::array<Dimension, kMaxDims> sorted = layout.dims;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(layout.count);
  first = 0;
  for (auto dim = sorted.begin(); dim != end; ++dim) {
    if (dim->stride < 0) {
      first += (static_cast<std::int64_t>(dim->extent) - 1) * dim->stride;
      dim->stride = -dim->stride;
    }
  }
  std::sort(sorted.begin(), end, [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  std::uint64_t expected = 1;
  for (auto dim = sorted.begin(); dim != end; ++dim) {
    if (static_cast<std::uint64_t>(dim->stride) != expected) {
      return false;
    }
    expected *= dim->extent;
  }
  return true;
}

struct Bytes16 {
  std::uint64_t words[2];
};

template <class T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// Copies `elements` elements, at a distance of `stride` elements, to consecutive places.
template <class T>
void copy_run(std::byte* to, const std::byte* from, std::uint64_t elements, std::int64_t stride) noexcept {
  if (stride == 1) {
    std::memcpy(to, from, elements * sizeof(T));
    return;
  }
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(T));
  for (std::uint64_t i = 0; i < elements; ++i, from += step, to += sizeof(T)) {
    std::memcpy(to, from, sizeof(T));
  }
}

/// Copies `rows` <= kTile rows for copy_transposed(). Inlined, so that the usual number of rows is a
/// constant.
template <class T, std::uint64_t kTile>
inline __attribute__((always_inline)) void copy_strip(std::byte* to, const std::byte* from,
                                                      std::uint64_t rows, std::uint64_t columns,
                                                      std::int64_t stride) noexcept {
  const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(T));
  for (std::uint64_t first = 0; first < columns; first += kTile) {
    const std::uint64_t width = std::min(kTile, columns - first);
    T tile[kTile][kTile];
    for (std::uint64_t j = 0; j < width; ++j, from += step) {
      __builtin_prefetch(from + 2 * static_cast<std::int64_t>(kTile) * step);
      T line[kTile];
      std::memcpy(line, from, rows * sizeof(T));
      for (std::uint64_t row = 0; row < rows; ++row) {
        tile[row][j] = line[row];
      }
    }
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::memcpy(to + (row * columns + first) * sizeof(T), tile[row], width * sizeof(T));
    }
  }
}

/// Copies a transpose: `rows` rows of `columns` elements. The elements of a row have a distance of `stride`,
/// and rows a distance of one element. Square tiles, one cache line of the source wide, are transposed in a
/// small buffer, so that each line is read once and written once, even if strides are powers of two and lines
/// compete for the same cache sets.
template <class T>
void copy_transposed(std::byte* to, const std::byte* from, std::uint64_t rows, std::uint64_t columns,
                     std::int64_t stride) noexcept {
  constexpr std::uint64_t kTile = 64 / sizeof(T);
  for (; rows >= kTile; rows -= kTile, to += kTile * columns * sizeof(T), from += kTile * sizeof(T)) {
    copy_strip<T, kTile>(to, from, kTile, columns, stride);
  }
  if (rows != 0) {
    copy_strip<T, kTile>(to, from, rows, columns, stride);
  }
}

/// Copies the elements of a view in C order.
class Gatherer {
 public:
  Gatherer(const StridedLayout& layout, const void* data, std::size_t element_bytes,
           std::uint64_t first) noexcept
      : layout_{layout}, at_{static_cast<const std::byte*>(data)}, element_bytes_{element_bytes} {
    for (std::size_t axis = layout.count; axis-- != 0;) {
      const Dimension& dim = layout.dims[axis];
      index_[axis] = first % dim.extent;
      first /= dim.extent;
      at_ += static_cast<std::int64_t>(index_[axis]) * dim.stride * bytes();
    }
  }

  /// Whether the view is read as a transpose.
  [[nodiscard]] bool transposed() const noexcept {
    return layout_.count >= 2 && layout_.dims[layout_.count - 2].stride == 1;
  }

  void gather(std::byte* to, std::uint64_t elements) noexcept {
    switch (element_bytes_) {
      case 1:
        return gather_as<std::uint8_t>(to, elements);
      case 2:
        return gather_as<std::uint16_t>(to, elements);
      case 4:
        return gather_as<std::uint32_t>(to, elements);
      case 8:
        return gather_as<std::uint64_t>(to, elements);
      default:
        return gather_as<Bytes16>(to, elements);
    }
  }

 private:
  [[nodiscard]] std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(element_bytes_); }

  template <class T>
  void gather_as(std::byte* to, std::uint64_t elements) noexcept {
    const std::size_t inner = layout_.count - 1;
    const Dimension& row = layout_.dims[inner];
    while (elements != 0) {
      std::uint64_t here = 0;
      if (index_[inner] == 0 && transposed() && elements >= 2 * row.extent) {
        const Dimension& rows = layout_.dims[inner - 1];
        const std::uint64_t count = std::min(elements / row.extent, rows.extent - index_[inner - 1]);
        copy_transposed<T>(to, at_, count, row.extent, row.stride);
        here = count * row.extent;
        advance(inner - 1, count);
      } else {
        here = std::min(elements, row.extent - index_[inner]);
        copy_run<T>(to, at_, here, row.stride);
        advance(inner, here);
      }
      to += here * sizeof(T);
      elements -= here;
    }
  }

  /// Moves by `steps` along `axis`, which has at least as many left, and carries to the next axis.
  void advance(std::size_t axis, std::uint64_t steps) noexcept {
    index_[axis] += steps;
    at_ += static_cast<std::int64_t>(steps) * layout_.dims[axis].stride * bytes();
    while (index_[axis] == layout_.dims[axis].extent && axis != 0) {
      at_ -= static_cast<std::int64_t>(index_[axis]) * layout_.dims[axis].stride * bytes();
      index_[axis] = 0;
      --axis;
      ++index_[axis];
      at_ += layout_.dims[axis].stride * bytes();
    }
  }

  const StridedLayout& layout_;
  const std::byte* at_;  // the next element
  std::size_t element_bytes_;
  std::array<std::uint64_t, kMaxDims> index_{};
};

/// Number of elements to gather at a time: one block, or for a transpose the capacity of the bounce block.
std::uint64_t piece_elements(const Gatherer& gatherer, std::size_t element_bytes) noexcept {
  const std::uint64_t room = kBounceBytes / element_bytes;
  return gatherer.transposed() ? room : std::min(room, kBlockElements);
}
static_assert(kBounceBytes % (16 * kBlockElements) == 0, "pieces must be multiples of a block");

struct Strided {
  const KernelTable& kernels;
  const StridedLayout& layout;
  const void* data;
  Dtype dtype;
  std::uint64_t first;
  std::uint64_t elements;
  std::byte* destination;  // or null
  bool stream;
};

TensorStats reduce_strided_chunk(const void* context, std::uint64_t chunk) noexcept {
  const auto& job = *static_cast<const Strided*>(context);
  const DefaultFloatMode mode;
  const std::size_t element_bytes = dtype_bytes(job.dtype);
  const std::uint64_t begin = chunk * kChunkElements;
  const std::uint64_t end = std::min(begin + kChunkElements, job.elements);
  alignas(64) std::byte bounce[kBounceBytes];
  Gatherer gatherer{job.layout, job.data, element_bytes, job.first + begin};
  const std::uint64_t piece = piece_elements(gatherer, element_bytes);
  TensorStats stats;
  ChunkReducer reducer{job.kernels, job.dtype, stats};
  for (std::uint64_t at = begin; at < end; at += piece) {
    const std::uint64_t here = std::min(piece, end - at);
    gatherer.gather(bounce, here);
    reducer.feed(bounce, job.destination == nullptr ? nullptr : job.destination + at * element_bytes, here,
                 job.stream);
  }
  if (job.stream) {
    job.kernels.fence();
  }
  reducer.finish();
  return stats;
}

TensorStats run_strided(const Strided& job, int threads) noexcept {
  const std::uint64_t chunks = (job.elements + kChunkElements - 1) / kChunkElements;
  return run_chunks(reduce_strided_chunk, &job, chunks, threads);
}

TensorStats without_values(std::uint64_t elements) noexcept {
  TensorStats stats = empty_stats();
  stats.count = elements;
  return stats;
}

bool fits(const TensorView& view) noexcept {
  return view.ndim >= 0 && view.ndim <= static_cast<int>(kMaxDims);
}

}  // namespace

std::uint64_t element_count(const TensorView& view) noexcept {
  std::uint64_t count = 1;
  for (int axis = 0; axis < view.ndim; ++axis) {
    count *= static_cast<std::uint64_t>(view.shape[axis]);
  }
  return count;
}

bool is_contiguous(const TensorView& view) noexcept {
  if (view.strides == nullptr || element_count(view) <= 1) {
    return true;
  }
  return fits(view) && StridedLayout{view}.contiguous();
}

bool is_dense(const TensorView& view, std::int64_t& first) noexcept {
  first = 0;
  return fits(view) && is_dense(StridedLayout{view}, first);
}

TensorStats reduce(const TensorView& view, int threads) noexcept {
  const std::uint64_t elements = element_count(view);
  if (is_contiguous(view)) {
    return reduce(view.data, elements, view.dtype, threads);
  }
  if (!fits(view) || elements == 0 || !has_stats(view.dtype)) {
    return without_values(elements);
  }
  const StridedLayout layout{view};
  if (std::int64_t first = 0; is_dense(layout, first)) {
    const std::int64_t offset = first * static_cast<std::int64_t>(dtype_bytes(view.dtype));
    return reduce(static_cast<const std::byte*>(view.data) + offset, elements, view.dtype, threads);
  }
  return run_strided({active_kernels(), layout, view.data, view.dtype, 0, elements, nullptr, false}, threads);
}

TensorStats reduce_strided(const TensorView& view, std::uint64_t first_element,
                           std::uint64_t elements) noexcept {
  if (is_contiguous(view)) {
    const std::byte* data = static_cast<const std::byte*>(view.data);
    return reduce(elements == 0 ? data : data + first_element * dtype_bytes(view.dtype), elements,
                  view.dtype);
  }
  if (!fits(view) || elements == 0 || !has_stats(view.dtype)) {
    return without_values(elements);
  }
  const StridedLayout layout{view};
  return run_strided(
      {active_kernels(), layout, view.data, view.dtype, first_element, elements, nullptr, false}, 1);
}

TensorStats reduce_copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                                void* destination) noexcept {
  if (elements == 0 || !fits(view)) {
    return without_values(elements);
  }
  if (is_contiguous(view)) {
    const std::byte* data = static_cast<const std::byte*>(view.data);
    return reduce_copy(data + first_element * dtype_bytes(view.dtype), destination, elements, view.dtype);
  }
  if (!has_stats(view.dtype)) {
    copy_strided(view, first_element, elements, destination);
    return without_values(elements);
  }
  const StridedLayout layout{view};
  return run_strided(
      {active_kernels(), layout, view.data, view.dtype, first_element, elements,
       static_cast<std::byte*>(destination), use_streaming(elements * dtype_bytes(view.dtype))},
      1);
}

void copy_strided(const TensorView& view, std::uint64_t first_element, std::uint64_t elements,
                  void* destination) noexcept {
  const std::size_t element_bytes = dtype_bytes(view.dtype);
  if (elements == 0 || element_bytes == 0 || !fits(view)) {
    return;
  }
  if (is_contiguous(view)) {
    copy_streaming(static_cast<const std::byte*>(view.data) + first_element * element_bytes, destination,
                   elements * element_bytes);
    return;
  }
  const StridedLayout layout{view};
  Gatherer{layout, view.data, element_bytes, first_element}.gather(static_cast<std::byte*>(destination),
                                                                   elements);
}

}  // namespace tdcore
