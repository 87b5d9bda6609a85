// Tables of names and columns (DROP_REASONS, ABSENT_REASONS, DTYPES, ROW_DTYPE, STEP_TIME_DTYPE), and
// write_file().
#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "bindings/errors.hpp"
#include "ring/consumer/drained_batches.hpp"
#include "ring/record_names.hpp"
#include "ring/step_times.hpp"
#include "segment/file_writer.hpp"
#include "segment/segment.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

// ---- write_file

/// Contiguous views of Python buffers, held until destruction.
class Views {
 public:
  explicit Views(const py::sequence& parts) {
    buffers_.reserve(py::len(parts));
    for (const py::handle part : parts) {
      Py_buffer buffer;
      if (PyObject_GetBuffer(part.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
        release();
        throw py::error_already_set();
      }
      buffers_.push_back(buffer);
      pieces_.push_back({static_cast<const std::byte*>(buffer.buf), static_cast<std::uint64_t>(buffer.len)});
    }
  }
  ~Views() { release(); }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  std::span<const SegmentPiece> pieces() const noexcept { return pieces_; }

 private:
  void release() noexcept {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
    buffers_.clear();
  }
  std::vector<Py_buffer> buffers_;
  std::vector<SegmentPiece> pieces_;
};

int write_parts(const py::object& path, const py::sequence& parts, bool direct, bool sync) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw py::error_already_set();
  const auto name = py::reinterpret_steal<py::bytes>(encoded);
  const std::string file = name;
  const Views views(parts);
  try {
    const py::gil_scoped_release unlocked;
    return write_file(file, views.pieces(), direct, sync) ? 1 : 0;
  } catch (const std::system_error& error) {
    throw_os_error(error, path);
  }
}

// ---- Tables

/// NumPy's dict form of a dtype: a list of columns with their offsets.
class Columns {
 public:
  void add(const char* name, const py::object& format, std::size_t offset) {
    names_.append(name);
    formats_.append(format);
    offsets_.append(offset);
  }
  void add(const char* name, const char* format, std::size_t offset) { add(name, py::str(format), offset); }
  py::dict dtype(std::size_t item_bytes) const {
    py::dict result;
    result["names"] = names_;
    result["formats"] = formats_;
    result["offsets"] = offsets_;
    result["itemsize"] = item_bytes;
    return result;
  }

 private:
  py::list names_;
  py::list formats_;
  py::list offsets_;
};

py::dict row_dtype(const py::object& stats_dtype) {
  constexpr std::size_t kEntry = offsetof(IndexRow, entry);
  Columns columns;
  columns.add("stats", stats_dtype, kEntry + offsetof(Entry, stats));
  columns.add("payload_offset", "<u8", kEntry + offsetof(Entry, payload_offset));
  columns.add("payload_bytes", "<u8", kEntry + offsetof(Entry, payload_bytes));
  columns.add("element_offset", "<u8", kEntry + offsetof(Entry, element_offset));
  columns.add("elements", "<u8", kEntry + offsetof(Entry, elements));
  columns.add("shape", py::make_tuple("<i8", py::make_tuple(kMaxDims)), kEntry + offsetof(Entry, shape));
  columns.add("name", "<u4", kEntry + offsetof(Entry, name));
  columns.add("call", "<u4", kEntry + offsetof(Entry, call));
  columns.add("seq", "<u4", kEntry + offsetof(Entry, seq));
  columns.add("part", "<u4", kEntry + offsetof(Entry, part));
  columns.add("parts", "<u4", kEntry + offsetof(Entry, parts));
  columns.add("dtype", "u1", kEntry + offsetof(Entry, dtype));
  columns.add("ndim", "u1", kEntry + offsetof(Entry, ndim));
  columns.add("status", "u1", kEntry + offsetof(Entry, status));
  columns.add("reason", "u1", kEntry + offsetof(Entry, reason));
  columns.add("has_stats", "u1", kEntry + offsetof(Entry, has_stats));
  columns.add("step", "<i8", offsetof(IndexRow, step));
  columns.add("mode_step", "<i8", offsetof(IndexRow, mode_step));
  columns.add("time_ns", "<i8", offsetof(IndexRow, time_ns));
  columns.add("ticket", "<u8", offsetof(IndexRow, ticket));
  columns.add("segment_offset", "<u8", offsetof(IndexRow, segment_offset));
  columns.add("mode", "<u4", offsetof(IndexRow, mode));
  columns.add("crc32c", "<u4", offsetof(IndexRow, crc32c));
  return columns.dtype(sizeof(IndexRow));
}

py::dict step_time_dtype() {
  Columns columns;
  columns.add("row", "<u8", offsetof(StepTimeRow, number));
  columns.add("step", "<i8", offsetof(StepTimeRow, step));
  columns.add("mode_step", "<i8", offsetof(StepTimeRow, mode_step));
  columns.add("time_ns", "<i8", offsetof(StepTimeRow, time_ns));
  columns.add("phases", py::make_tuple("<i8", py::make_tuple(kPhases)), offsetof(StepTimeRow, phases));
  columns.add("capture_ns", "<i8", offsetof(StepTimeRow, capture_ns));
  columns.add("gpu_ns", "<i8", offsetof(StepTimeRow, gpu_ns));
  columns.add("mode", "<i4", offsetof(StepTimeRow, mode));
  columns.add("data_waits", "<i4", offsetof(StepTimeRow, data_waits));
  columns.add("checkpoints", "<i4", offsetof(StepTimeRow, checkpoints));
  columns.add("compiles", "<i4", offsetof(StepTimeRow, compiles));
  return columns.dtype(sizeof(StepTimeRow));
}

py::dict drop_reasons() {
  py::dict result;
  for (unsigned code = 1; code < static_cast<unsigned>(DropReason::kCount); ++code) {
    result[py::int_(code)] = drop_reason_name(static_cast<DropReason>(code));
  }
  return result;
}

py::dict absent_reasons() {
  py::dict result;
  for (unsigned code = 1; code < static_cast<unsigned>(AbsentReason::kCount); ++code) {
    result[py::int_(code)] = absent_reason_name(static_cast<AbsentReason>(code));
  }
  return result;
}

py::dict dtypes() {
  py::dict result;
  for (unsigned code = 1; code < static_cast<unsigned>(Dtype::kCount); ++code) {
    result[py::int_(code)] = dtype_name(static_cast<Dtype>(code));
  }
  return result;
}

constexpr const char* kWriteDoc =
    R"(Write a new file from buffers. The caller renames the file and syncs its folder. Releases the GIL.

Args:
    path: Path of the file, which must not exist.
    parts: The buffers, in file order.
    direct: Try O_DIRECT. Buffers on page boundaries (4096 bytes) are not copied.
    sync: Call fdatasync() before returning.

Returns:
    1 if O_DIRECT was used to the end, else 0.

Raises:
    OSError: The file cannot be written (FileExistsError, ...). No file is left.)";

}  // namespace

void bind_tables(py::module_& module);

void bind_tables(py::module_& module) {
  module.attr("DROP_REASONS") = drop_reasons();
  module.attr("ABSENT_REASONS") = absent_reasons();
  module.attr("DTYPES") = dtypes();
  module.attr("ROW_DTYPE") = row_dtype(module.attr("STATS_DTYPE"));
  module.attr("STEP_TIME_DTYPE") = step_time_dtype();
  module.attr("NO_PAYLOAD") = kNoPayload;
  module.def("write_file", &write_parts, py::arg("path"), py::arg("parts"), py::kw_only(),
             py::arg("direct") = true, py::arg("sync") = true, kWriteDoc);
}

}  // namespace tdcore
