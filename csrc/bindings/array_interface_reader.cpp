// The part of TensorReader that reads buffers, __array_interface__ and __cuda_array_interface__.
#include "bindings/tensor.hpp"
#include "bindings/tensor_device.hpp"
#include "bindings/types.hpp"
#include "capture/capture.hpp"

namespace tdcore {
namespace {

/// Entries of both array interfaces. Borrowed from the interface.
struct Entries {
  explicit Entries(PyObject* interface)
      : data(PyDict_GetItemString(interface, "data")),
        shape(PyDict_GetItemString(interface, "shape")),
        strides(PyDict_GetItemString(interface, "strides")),
        typestr(PyDict_GetItemString(interface, "typestr")) {
    if (strides == nullptr) strides = Py_None;
  }
  bool complete() const {
    return data != nullptr && PyTuple_Check(data) != 0 && PyTuple_GET_SIZE(data) >= 1 && shape != nullptr &&
           typestr != nullptr;
  }

  PyObject* data;
  PyObject* shape;
  PyObject* strides;
  PyObject* typestr;
};

/// Element type for the name of the object's dtype. Clears errors.
Dtype dtype_by_name(PyObject* object) {
  Dtype dtype = Dtype::kUnknown;
  if (const Owned descriptor(PyObject_GetAttr(object, names().dtype)); descriptor)
    dtype = dtype_from_name(text_of(descriptor.get(), names().name));
  PyErr_Clear();
  return dtype;
}

/// Sets element type and address. by_typestr: the typestr gives the element type if `named` is unknown.
DropReason read_memory(const Entries& entries, Dtype named, bool by_typestr, TensorView& view) {
  const char* code = PyUnicode_AsUTF8(entries.typestr);
  if (code == nullptr) return DropReason::kUnreadable;
  view.dtype = by_typestr && named == Dtype::kUnknown ? dtype_from_typestr(code) : named;
  if (view.dtype == Dtype::kUnknown || code[0] == '>') return DropReason::kUnsupportedDtype;
  view.data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(entries.data, 0));
  return PyErr_Occurred() != nullptr ? DropReason::kUnreadable : DropReason::kNone;
}

/// The reason why set_dims() has returned false.
DropReason failure_of_dims(PyObject* shape) {
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  return PySequence_Size(shape) > static_cast<Py_ssize_t>(kMaxDims) ? DropReason::kTooLarge
                                                                    : DropReason::kUnreadable;
}

std::int64_t item_bytes(const TensorView& view) { return static_cast<std::int64_t>(dtype_bytes(view.dtype)); }

}  // namespace

/// Makes a contiguous copy of a buffer whose strides are not multiples of the element size.
DropReason TensorReader::materialise(Py_buffer& buffer, Dtype dtype, TensorView& view) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, buffer.len);
  if (bytes == nullptr) return DropReason::kUnreadable;
  keep(bytes);
  if (PyBuffer_ToContiguous(PyBytes_AS_STRING(bytes), &buffer, buffer.len, 'C') != 0)
    return DropReason::kUnreadable;
  view.data = PyBytes_AS_STRING(bytes);
  view.dtype = dtype;
  view.strides = nullptr;
  return check_view(view);
}

DropReason TensorReader::read_buffer(PyObject* object, TensorView& view) {
  PyObject* memory = PyMemoryView_FromObject(object);
  if (memory == nullptr) {  // NumPy cannot describe extension dtypes (ml_dtypes) as a buffer
    if (!has_attribute(Py_TYPE(object), names().array_interface)) return DropReason::kUnreadable;
    PyErr_Clear();
    return read_array_interface(object, true, view);
  }
  keep(memory);
  Py_buffer& buffer = *PyMemoryView_GET_BUFFER(memory);
  const Dtype dtype = dtype_from_format(buffer.format, buffer.itemsize);
  if (dtype == Dtype::kUnknown) return DropReason::kUnsupportedDtype;
  if (buffer.ndim > static_cast<int>(kMaxDims)) return DropReason::kTooLarge;
  const auto ndim = static_cast<std::size_t>(buffer.ndim);
  std::int64_t* dims = take_words(2 * ndim);
  bool whole = true;  // strides are multiples of the element size, without indirection
  for (std::size_t i = 0; i < ndim; ++i) {
    dims[i] = buffer.shape[i];
    dims[ndim + i] = buffer.strides[i] / buffer.itemsize;
    whole = whole && buffer.strides[i] % buffer.itemsize == 0;
    whole = whole && (buffer.suboffsets == nullptr || buffer.suboffsets[i] < 0);
  }
  view.ndim = buffer.ndim;
  view.shape = dims;
  if (!whole) return materialise(buffer, dtype, view);
  view.data = buffer.buf;
  view.dtype = dtype;
  view.strides = dims + ndim;
  return check_view(view);
}

DropReason TensorReader::read_array_interface(PyObject* object, bool may_copy, TensorView& view) {
  const Names& n = names();
  const Dtype named = dtype_by_name(object);
  const Owned interface(PyObject_GetAttr(object, n.array_interface));
  if (!interface || PyDict_Check(interface.get()) == 0) return DropReason::kUnreadable;
  const Entries entries(interface.get());
  if (!entries.complete()) return DropReason::kUnreadable;
  DropReason reason = read_memory(entries, named, false, view);
  if (reason != DropReason::kNone) return reason;
  if (set_dims(entries.shape, entries.strides, item_bytes(view), view)) return check_view(view);
  reason = failure_of_dims(entries.shape);
  if (!may_copy || reason != DropReason::kUnreadable || PyErr_Occurred() != nullptr) return reason;
  PyObject* copy = call_method(object, n.copy);  // its strides are multiples of the element size
  if (copy == nullptr) return DropReason::kUnreadable;
  keep(copy);
  return read_array_interface(copy, false, view);
}

DropReason TensorReader::read_cuda_interface(PyObject* object, bool has_dlpack, TensorView& view) {
  const Names& n = names();
  const std::int64_t device = device_of_interface(object);
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  DropReason reason = place_on_device(device, view);
  if (reason != DropReason::kNone) return reason;
  const Owned interface(PyObject_GetAttr(object, n.cuda_interface));
  if (!interface && has_dlpack && PyErr_ExceptionMatches(PyExc_Exception) != 0) {
    PyErr_Clear();  // some objects reject dtypes here that DLPack has (bfloat16)
    return read_dlpack(object, view);
  }
  if (!interface || PyDict_Check(interface.get()) == 0) return DropReason::kUnreadable;
  PyObject* stream = PyDict_GetItem(interface.get(), n.stream);  // borrowed
  if (stream == nullptr && has_dlpack)
    return read_dlpack(object, view);  // version 2 has no stream to wait for
  const Entries entries(interface.get());
  PyObject* mask = PyDict_GetItemString(interface.get(), "mask");  // borrowed
  if (!entries.complete() || (mask != nullptr && mask != Py_None)) return DropReason::kUnreadable;
  reason = read_memory(entries, dtype_by_name(object), true, view);
  if (reason != DropReason::kNone) return reason;
  // None: the values are ready for every stream. 0 is not allowed, because it could mean two streams.
  const bool names_stream = stream != nullptr && stream != Py_None;
  if (names_stream) view.stream = PyLong_AsUnsignedLongLong(stream);
  if (PyErr_Occurred() != nullptr || (names_stream && view.stream == 0)) return DropReason::kUnreadable;
  view.stream = stream_handle(view.stream);
  if (!set_dims(entries.shape, entries.strides, item_bytes(view), view))
    return failure_of_dims(entries.shape);
  Py_INCREF(object);
  exports_.push_back({.device = view.device, .owner = object});
  return check_view(view);
}

}  // namespace tdcore
