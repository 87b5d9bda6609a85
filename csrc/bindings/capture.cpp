// Ring.capture() and stats(): conversion of lists of Python objects for the core.
//
// The GIL is held while the objects are read, and for small copies, because after a release of a microsecond
// the thread may wait a switch interval to get the GIL back. The GIL is released for kReleaseBytes or more,
// and while the call waits for room. References to all objects are held until the call ends.
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/tensor.hpp"
#include "bindings/thread_scratch.hpp"
#include "bindings/types.hpp"
#include "capture/capture.hpp"
#include "device/device_ring.hpp"
#include "stats/cpu.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

constexpr std::uint64_t kReleaseBytes = 256 * 1024;
constexpr int kMaxThreads = 64;

/// A list or tuple of the objects. Raises TypeError for an object that is not iterable.
py::object as_sequence(py::handle tensors) {
  PyObject* sequence = PySequence_Fast(
      tensors.ptr(), "tensors must be a sequence of tensors, arrays or numbers (such as a list)");
  if (sequence == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(sequence);
}

/// One number per tensor, with a fixed size, in any contiguous buffer.
class Numbers {
 public:
  Numbers(py::handle source, const char* name, const char* what, Py_ssize_t item_bytes, std::size_t count) {
    if (PyObject_GetBuffer(source.ptr(), &buffer_, PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      throw py::type_error(std::string(name) + " must be a contiguous buffer of " + what + ", got " +
                           Py_TYPE(source.ptr())->tp_name);
    }
    const auto wanted = static_cast<Py_ssize_t>(count) * item_bytes;
    if (buffer_.itemsize == item_bytes && buffer_.len == wanted) return;
    const std::string got = std::to_string(buffer_.len / (buffer_.itemsize > 0 ? buffer_.itemsize : 1)) +
                            " of " + std::to_string(buffer_.itemsize) + " bytes";
    PyBuffer_Release(&buffer_);
    throw py::value_error(std::string(name) + " must hold one number per tensor: " + std::to_string(count) +
                          " of " + std::to_string(item_bytes) + " bytes (" + what + "), got " + got);
  }
  ~Numbers() {
    if (PyGILState_Check() != 0) PyBuffer_Release(&buffer_);
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  const char* at(std::size_t offset) const noexcept { return static_cast<const char*>(buffer_.buf) + offset; }

 private:
  Py_buffer buffer_{};
};

/// Fills `requests` from the objects that the reader holds. Returns the number of bytes to read.
std::uint64_t plan(ThreadScratch& scratch, std::size_t count, const Numbers& names, const Numbers& flags) {
  std::uint64_t bytes = 0;
  scratch->requests.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    TensorRequest& request = scratch->requests[i];
    std::memcpy(&request.name, names.at(i * sizeof(request.name)), sizeof(request.name));
    const auto flag_byte = static_cast<std::uint8_t>(*flags.at(i));
    request.flags = flag_byte & (kWantPayload | kWantStats);
    PyObject* object = scratch->reader.held(i);
    if (object == Py_None) {
      request.status = EntryStatus::kAbsent;
      request.absent = absent_reason(flag_byte);
      continue;
    }
    request.reason = scratch->reader.read(object, request.tensor);
    if (request.reason != DropReason::kNone) {
      request.status = EntryStatus::kSkipped;
    } else if (request.flags != 0) {
      bytes += view_bytes(request.tensor);
    }
  }
  return bytes;
}

std::uint64_t capture_objects(DeviceRing& self, py::handle tensors, py::handle names, py::handle flags,
                              std::int64_t step, std::uint32_t mode, std::int64_t mode_step,
                              std::uint32_t call) {
  Ring& ring = self.ring();
  if (!ring.usable()) return 0;
  const auto start = std::chrono::steady_clock::now();
  if (mode < 1 || mode > 4) {
    throw py::value_error("mode must be 1 (train), 2 (eval), 3 (predict) or 4 (global), got " +
                          std::to_string(mode));
  }
  const py::object sequence = as_sequence(tensors);
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
  const Numbers name_ids(names, "names", "unsigned 32-bit ids from intern()", sizeof(std::uint32_t), count);
  const Numbers flag_bits(flags, "flags", "unsigned 8-bit flags: 1 payload, 2 statistics", 1, count);
  CaptureResult result;
  PyObject* interrupt = nullptr;
  {
    ThreadScratch scratch;
    DeviceSet* const devices = self.devices();
    scratch->reader.hold(PySequence_Fast_ITEMS(sequence.ptr()), count, devices != nullptr);
    const std::uint64_t bytes = plan(scratch, count, name_ids, flag_bits);
    const StepContext step_context{.step = step, .mode_step = mode_step, .mode = mode, .call = call};
    if (devices != nullptr && (scratch->reader.met_device() || devices->redirects_host())) {
      result = capture_with_devices(ring, *devices, scratch, step_context);
    } else {
      result = capture_in_host_memory(ring, scratch, scratch->requests, step_context, bytes);
    }
    interrupt = scratch->reader.take_interrupt();
  }
  const auto spent = std::chrono::steady_clock::now() - start;
  ring.count_capture(
      result.kept, result.payload_bytes,
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()));
  if (interrupt != nullptr) raise_interrupt(interrupt);
  return result.not_kept;
}

[[noreturn]] void refuse(std::size_t position, PyObject* object, DropReason reason, const std::string& why) {
  std::string message = "tensors[" + std::to_string(position) + "] (" + Py_TYPE(object)->tp_name +
                        ") cannot be read: " + advice(reason);
  if (!why.empty()) message += " (" + why + ")";
  throw py::type_error(message);
}

py::bytes stats_objects(py::handle tensors, int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw py::value_error("threads must be 1 to " + std::to_string(kMaxThreads) + ", got " +
                          std::to_string(threads));
  }
  const py::object sequence = as_sequence(tensors);
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
  ThreadScratch scratch;
  scratch->reader.hold(PySequence_Fast_ITEMS(sequence.ptr()), count, false);
  scratch->requests.resize(count);
  std::uint64_t bytes = 0;
  std::string why;
  for (std::size_t i = 0; i < count; ++i) {
    why.clear();
    PyObject* object = scratch->reader.held(i);
    TensorView& view = scratch->requests[i].tensor;
    DropReason reason = scratch->reader.read(object, view, &why);
    if (PyObject* interrupt = scratch->reader.take_interrupt(); interrupt != nullptr)
      raise_interrupt(interrupt);
    if (reason == DropReason::kNone && !has_stats(view.dtype)) reason = DropReason::kUnsupportedDtype;
    if (reason != DropReason::kNone) refuse(i, object, reason, why);
    bytes += view_bytes(view);
  }
  py::bytes packed(nullptr, count * sizeof(TensorStats));
  char* out = PyBytes_AS_STRING(packed.ptr());
  const auto work = [&] {
    for (std::size_t i = 0; i < count; ++i) {
      const TensorStats stats = reduce(scratch->requests[i].tensor, threads);
      std::memcpy(out + i * sizeof(stats), &stats, sizeof(stats));
    }
  };
  if (bytes >= kReleaseBytes) {
    scratch.without_gil(work);
  } else {
    work();
  }
  return packed;
}

constexpr const char* kCaptureDoc = R"(Capture the current values of a list of tensors into the ring.

Never raises for a tensor that cannot be read. In a forked child, and after close(), it returns 0 and does nothing.
Threads: any. Releases the GIL for 256 KiB or more, and while it waits for room. Values on a device are read after
the work that is enqueued in the device's stream.

Args:
    tensors: Torch tensors (parameters, with or without gradient history), NumPy arrays, CuPy arrays, objects with
        __dlpack__, numbers; with any strides; in host memory, or on a CUDA device for which the ring has a device
        lane. None means that there is no value (a parameter without gradient): a row "absent".
    names: One uint32 per tensor, from intern() (0xFFFFFFFF: the table was full).
    flags: One uint8 per tensor: 1 saves the values, 2 computes statistics, 3 does both. The upper four bits have a
        key of ABSENT_REASONS, or 0; they are used for a tensor that is None.
    step: Global step.
    mode: 1 train, 2 eval, 3 predict, 4 global.
    mode_step: Step within the mode.
    call: Number of earlier captures of these names in the step.

Returns:
    The number of tensors that were not stored as requested. counters() has each of them with a reason.

Raises:
    TypeError, ValueError: The lists do not match.)";

constexpr const char* kStatsDoc =
    R"(Compute the statistics of each tensor in one pass over its values.

Releases the GIL for 256 KiB or more. The result is bit for bit the same for any number of threads.

Args:
    tensors: The same objects as for Ring.capture(), except None.
    threads: Number of threads for tensors of more than a million elements.

Returns:
    Packed STATS_DTYPE records, one per tensor: numpy.frombuffer(stats(tensors), STATS_DTYPE).

Raises:
    TypeError: An object cannot be read. The message has its index and the reason.)";

}  // namespace

CaptureResult capture_in_host_memory(Ring& ring, ThreadScratch& scratch,
                                     std::span<const TensorRequest> requests, const StepContext& step_context,
                                     std::uint64_t bytes) {
  CaptureResult result;
  if (bytes >= kReleaseBytes) {
    scratch.without_gil([&] { result = capture(ring, requests, step_context); });
  } else {
    result = capture(ring, requests, step_context, {wait_without_gil, &scratch});
  }
  return result;
}

void bind_capture(py::module_& module) {
  const py::object ring = module.attr("Ring");
  ring.attr("capture") =
      py::cpp_function(&capture_objects, py::name("capture"), py::is_method(ring), py::arg("tensors"),
                       py::arg("names"), py::arg("flags"), py::arg("step"), py::arg("mode"),
                       py::arg("mode_step"), py::arg("call") = 0, kCaptureDoc);
  module.def("stats", &stats_objects, py::arg("tensors"), py::pos_only(), py::kw_only(),
             py::arg("threads") = 1, kStatsDoc);
}

}  // namespace tdcore
