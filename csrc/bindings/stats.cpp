// Checksums, and the NumPy dtype of TensorStats. stats() is in bindings/capture.cpp.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.hpp"
#include "stats/cpu.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

// For fewer bytes, waiting for the GIL after the work may take longer than the work.
constexpr std::size_t kReleaseGilBytes = 256 * 1024;

/// The bytes of any object with the buffer protocol, held until destruction. BufferError if not contiguous.
class BorrowedBytes {
 public:
  explicit BorrowedBytes(const py::object& object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      throw py::error_already_set();
    }
  }
  BorrowedBytes(const BorrowedBytes&) = delete;
  BorrowedBytes& operator=(const BorrowedBytes&) = delete;
  ~BorrowedBytes() { PyBuffer_Release(&view_); }

  [[nodiscard]] const std::byte* data() const noexcept { return static_cast<const std::byte*>(view_.buf); }
  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

std::uint32_t crc32c_of(const py::object& data, std::uint32_t seed) {
  const BorrowedBytes bytes{data};
  if (bytes.size() < kReleaseGilBytes) {
    return crc32c(bytes.data(), bytes.size(), seed);
  }
  const py::gil_scoped_release nogil;
  return crc32c(bytes.data(), bytes.size(), seed);
}

std::vector<std::uint64_t> words_of(const BorrowedBytes& bytes, const char* name) {
  if (bytes.size() % sizeof(std::uint64_t) != 0) {
    throw py::value_error(std::string{"crc32c_many: "} + name + " must be uint64 values, got " +
                          std::to_string(bytes.size()) + " bytes, which is not a multiple of 8");
  }
  std::vector<std::uint64_t> words(bytes.size() / sizeof(std::uint64_t));
  if (!words.empty()) {
    std::memcpy(words.data(), bytes.data(), bytes.size());
  }
  return words;
}

py::bytes crc32c_many(const py::object& data, const py::object& offsets, const py::object& sizes) {
  const BorrowedBytes bytes{data};
  const std::vector<std::uint64_t> begins = words_of(BorrowedBytes{offsets}, "offsets");
  const std::vector<std::uint64_t> lengths = words_of(BorrowedBytes{sizes}, "sizes");
  if (begins.size() != lengths.size()) {
    throw py::value_error("crc32c_many: offsets and sizes must have the same length, got " +
                          std::to_string(begins.size()) + " and " + std::to_string(lengths.size()));
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    if (begins[i] > bytes.size() || lengths[i] > bytes.size() - begins[i]) {
      throw py::value_error("crc32c_many: range " + std::to_string(i) + " (offset " +
                            std::to_string(begins[i]) + ", size " + std::to_string(lengths[i]) +
                            ") is outside of the data of " + std::to_string(bytes.size()) + " bytes");
    }
    total += lengths[i];
  }
  std::vector<std::uint32_t> values(begins.size());
  const auto work = [&] {
    for (std::size_t i = 0; i < begins.size(); ++i) {
      values[i] = crc32c(bytes.data() + begins[i], lengths[i]);
    }
  };
  if (total < kReleaseGilBytes) {
    work();
  } else {
    const py::gil_scoped_release nogil;
    work();
  }
  return py::bytes{reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::uint32_t)};
}

py::list stats_dtype() {
  py::list fields;
  for (const char* name :
       {"count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count"}) {
    fields.append(py::make_tuple(name, "<u8"));
  }
  for (const char* name : {"min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max"}) {
    fields.append(py::make_tuple(name, "<f8"));
  }
  fields.append(py::make_tuple("log2_counts", "<u8", py::make_tuple(kLog2Bins)));
  return fields;
}
static_assert(offsetof(TensorStats, min) == 6 * 8 && offsetof(TensorStats, log2_counts) == 14 * 8,
              "stats_dtype() lists the fields in order");

constexpr const char* kCrcDoc =
    R"(Compute the CRC-32C (Castagnoli) of a contiguous buffer.

Releases the GIL for 256 KiB or more. Raises BufferError if the buffer is not contiguous.

Args:
    data: The buffer.
    seed: Result for the preceding data: crc32c(b, crc32c(a)) is the checksum of a followed by b.)";

constexpr const char* kCrcManyDoc =
    R"(Compute the CRC-32C of several ranges of one buffer. Returns packed uint32 values.

Releases the GIL for 256 KiB or more in total. Raises ValueError for a range outside of the data.

Args:
    data: The buffer.
    offsets: Buffer of uint64 values: first byte of each range.
    sizes: Buffer of uint64 values: size of each range in bytes.)";

constexpr const char* kLevelDoc =
    R"(Return the instruction set of the statistics: "avx512", "avx2", "neon" or "portable".

The environment variable TDCORE_SIMD (portable, avx2, avx512), which is read at the first use, sets a lower one.)";

}  // namespace

void bind_stats(py::module_& module) {
  module.attr("STATS_DTYPE") = stats_dtype();
  module.attr("LOG2_MIN") = kLog2Min;
  module.def("crc32c", &crc32c_of, py::arg("data"), py::arg("seed") = 0, kCrcDoc);
  module.def("crc32c_many", &crc32c_many, py::arg("data"), py::arg("offsets"), py::arg("sizes"), kCrcManyDoc);
  module.def("simd_level", &simd_level, kLevelDoc);
}

}  // namespace tdcore
