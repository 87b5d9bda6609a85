#include "bindings/tensor.hpp"

#include <bit>
#include <string_view>
#include <utility>

#include "bindings/types.hpp"
#include "capture/capture.hpp"

namespace tdcore {
namespace {

static_assert(std::endian::native == std::endian::little,
              "records are little-endian, and are written without conversion");

/// Whether the tensor may be lazily conjugated or negated. A complex tensor always may. A real tensor with
/// the negative bit is a view of imaginary parts, so its strides select every second element. With at most
/// one element the strides have no meaning.
bool may_carry_bits(const TensorView& view) noexcept {
  if (view.dtype == Dtype::kC64 || view.dtype == Dtype::kC128) return true;
  if (view.dtype != Dtype::kF32 && view.dtype != Dtype::kF64 && view.dtype != Dtype::kF16) return false;
  bool single = true;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 1) continue;
    single = false;
    if (view.strides == nullptr || view.strides[i] == 1) return false;
  }
  return single || view.ndim > 0;
}

}  // namespace

const char* advice(DropReason reason) noexcept {
  switch (reason) {
    case DropReason::kUnsupportedDtype:
      return "its dtype has no statistics; convert it to a bool, integer or floating-point dtype";
    case DropReason::kSparse:
      return "its layout has no strides (sparse, nested or blocked); pass its values, or to_dense()";
    case DropReason::kNoStorage:
      return "it has no local storage (meta, fake, uninitialized or sharded tensor); pass "
             "to_local() or a real tensor";
    case DropReason::kUnsupportedDevice:
      return "it is not in host memory; pass cpu()";
    case DropReason::kTooLarge:
      return "it has more than 16 dimensions or a size of more than 64 bits; flatten or slice it";
    default:
      return "it is not a tensor; pass a tensor in host memory, an array, an object with __dlpack__ or a "
             "number";
  }
}

void raise_interrupt(PyObject* interrupt) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(interrupt)), interrupt);
  Py_DECREF(interrupt);
  throw pybind11::error_already_set();
}

void TensorReader::hold(PyObject* const* objects, std::size_t count, bool devices) {
  devices_ = devices;
  references_.reserve(references_.size() + count);
  for (std::size_t i = 0; i < count; ++i) {
    Py_INCREF(objects[i]);
    references_.push_back(objects[i]);
  }
}

std::int64_t* TensorReader::take_words(std::size_t count) {
  if (chunks_.empty() || used_ + count > kChunkWords) {
    if (!chunks_.empty()) ++chunk_;
    if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique<std::int64_t[]>(kChunkWords));
    used_ = 0;
  }
  std::int64_t* words = chunks_[chunk_].get() + used_;
  used_ += count;
  return words;
}

void TensorReader::release() noexcept {
  // Code of other libraries runs below and may call tdcore again, with another reader.
  for (const Export& one : exports_) one.give_back();
  for (PyObject* reference : references_) Py_DECREF(reference);
  exports_.clear();
  references_.clear();
  streams_.clear();
  met_device_ = false;
  chunk_ = 0;
  used_ = 0;
  why_ = nullptr;
}

void TensorReader::swallow_error() {
  if (PyErr_Occurred() == nullptr) return;
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (why_ != nullptr && value != nullptr) {
    if (const Owned text(PyObject_Str(value)); text) {
      if (const char* bytes = PyUnicode_AsUTF8(text.get()); bytes != nullptr) {
        *why_ = std::string_view(bytes).substr(0, std::string_view(bytes).find('\n'));
      }
    }
    PyErr_Clear();
  }
  if (interrupt_ == nullptr && value != nullptr && PyErr_GivenExceptionMatches(type, PyExc_Exception) == 0) {
    interrupt_ = std::exchange(value, nullptr);
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
}

DropReason TensorReader::read(PyObject* object, TensorView& view, std::string* why) {
  why_ = why;
  view = TensorView{};
  const TypeInfo info = info_of(Py_TYPE(object));
  DropReason reason = DropReason::kUnreadable;
  switch (info.route) {
    case Route::kExchange:
      reason = read_exchange(object, info.api, info.has_bits, view);
      break;
    case Route::kAttributes:
      reason = read_attributes(object, info.has_bits, view);
      break;
    case Route::kBuffer:
      reason = read_buffer(object, view);
      break;
    case Route::kArrayInterface:
      reason = read_array_interface(object, true, view);
      break;
    case Route::kAnywhere:
      reason = read_anywhere(object, info, view);
      break;
    case Route::kCudaInterface:
      reason = read_cuda_interface(object, info.has_dlpack, view);
      break;
    case Route::kDlpack:
      reason = read_dlpack(object, view);
      break;
    case Route::kScalar:
      reason = read_scalar(object, view);
      break;
    case Route::kNumber:
      reason = read_number(object, view);
      break;
    case Route::kNoStorage:
      reason = DropReason::kNoStorage;
      break;
    case Route::kUnreadable:
      break;
  }
  swallow_error();
  why_ = nullptr;
  if (reason != DropReason::kNone) view = TensorView{};
  return reason;
}

/// The reason for an export that raised an error. Clears the error.
DropReason TensorReader::failure_of(PyObject* object) {
  std::string message;
  std::string* outer = std::exchange(why_, &message);
  swallow_error();
  why_ = outer;
  if (why_ != nullptr) *why_ = message;
  const Names& n = names();
  const std::string layout = text_of(object, n.layout);
  if (!layout.empty() && layout != "torch.strided") return DropReason::kSparse;
  if (is_true(object, n.is_nested, false)) return DropReason::kSparse;
  if (is_true(object, n.is_quantized, false)) return DropReason::kUnsupportedDtype;
  const std::string device = text_of(object, n.device);
  if (device.starts_with("meta")) return DropReason::kNoStorage;
  if (!device.empty() && !device.starts_with("cpu") && !device.starts_with("cuda"))
    return DropReason::kUnsupportedDevice;
  if (message.find("not supported by dlpack") != std::string::npos) return DropReason::kUnsupportedDtype;
  if (message.find("data pointer") != std::string::npos) return DropReason::kNoStorage;
  return DropReason::kUnreadable;
}

/// A tensor like `object` after lazy conjugation and negation, or null if there is neither. Kept alive until
/// release(). After an error, null with the Python error set.
PyObject* TensorReader::resolve_bits(PyObject* object, const TensorView& view) {
  if (!may_carry_bits(view)) return nullptr;
  const Names& n = names();
  const bool complex = view.dtype == Dtype::kC64 || view.dtype == Dtype::kC128;
  if (!is_true(object, n.is_neg, true) && !(complex && is_true(object, n.is_conj, true))) return nullptr;
  const Owned detached(call_method(object, n.detach));  // so that the copy is not part of an autograd graph
  const Owned plain(detached ? call_method(detached.get(), n.resolve_conj) : nullptr);
  PyObject* resolved = plain ? call_method(plain.get(), n.resolve_neg) : nullptr;
  if (resolved != nullptr) keep(resolved);
  return resolved;
}

/// Sets shape and strides from Python sequences. `strides` is in units of stride_unit bytes (1 element if 0),
/// or None. False if there are too many, if they are not integers, or (with a Python error) not sequences.
bool TensorReader::set_dims(PyObject* shape, PyObject* strides, std::int64_t stride_unit, TensorView& view) {
  const Owned extents(PySequence_Tuple(shape));
  if (!extents) return false;
  const Py_ssize_t ndim = PyTuple_GET_SIZE(extents.get());
  if (ndim > static_cast<Py_ssize_t>(kMaxDims)) return false;
  std::int64_t* dims = take_words(2 * static_cast<std::size_t>(ndim));
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(extents.get(), i));
    if (dims[i] == -1 && PyErr_Occurred() != nullptr) return false;
  }
  view.ndim = static_cast<int>(ndim);
  view.shape = dims;
  view.strides = nullptr;
  if (strides == Py_None) return true;
  const Owned steps(PySequence_Tuple(strides));
  if (!steps || PyTuple_GET_SIZE(steps.get()) != ndim) return false;
  for (Py_ssize_t i = 0; i < ndim; ++i) {
    std::int64_t step = PyLong_AsLongLong(PyTuple_GET_ITEM(steps.get(), i));
    if (step == -1 && PyErr_Occurred() != nullptr) return false;
    if (stride_unit > 0) {
      if (step % stride_unit != 0) return false;
      step /= stride_unit;
    }
    dims[ndim + i] = step;
  }
  view.strides = dims + ndim;
  return true;
}

DropReason TensorReader::read_attributes(PyObject* object, bool has_bits, TensorView& view) {
  const Names& n = names();
  const Owned device(PyObject_GetAttr(object, n.device));
  if (!device) return failure_of(object);
  if (const std::string type = text_of(device.get(), n.type); type != "cpu") {
    if (type == "meta") return DropReason::kNoStorage;
    if (type != "cuda") return DropReason::kUnsupportedDevice;
    const Owned index(PyObject_GetAttr(device.get(), n.index));
    const std::int64_t number = index ? PyLong_AsLongLong(index.get()) : -1;
    PyErr_Clear();
    const DropReason reason = place_on_device(number, view);
    if (reason != DropReason::kNone) return reason;
    if (!current_stream(nullptr, view)) return DropReason::kDeviceError;
  }
  const Owned dtype(PyObject_GetAttr(object, n.dtype));
  const Owned pointer(dtype ? call_method(object, n.data_ptr) : nullptr);
  const Owned shape(pointer ? PyObject_GetAttr(object, n.shape) : nullptr);
  const Owned strides(shape ? call_method(object, n.stride) : nullptr);
  if (!strides) return failure_of(object);
  view.dtype = dtype_of_object(dtype.get());
  if (view.dtype == Dtype::kUnknown) return DropReason::kUnsupportedDtype;
  view.data = PyLong_AsVoidPtr(pointer.get());
  if (PyErr_Occurred() != nullptr) return failure_of(object);
  if (!set_dims(shape.get(), strides.get(), 0, view)) {
    return PyErr_Occurred() != nullptr ? failure_of(object) : DropReason::kTooLarge;
  }
  const DropReason reason = check_view(view);
  if (reason != DropReason::kNone || !has_bits) return reason;
  PyObject* resolved = resolve_bits(object, view);
  if (resolved == nullptr) return PyErr_Occurred() != nullptr ? DropReason::kUnreadable : DropReason::kNone;
  return read_attributes(resolved, false, view);
}

}  // namespace tdcore
