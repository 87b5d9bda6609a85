// The part of TensorReader that reads DLPack: exchange tables and the capsules of __dlpack__().
#include "bindings/tensor.hpp"
#include "bindings/tensor_device.hpp"
#include "bindings/types.hpp"
#include "capture/capture.hpp"

namespace tdcore {
namespace {

/// object.__dlpack__(...). version: whether to pass the newest version that tdcore reads. stream: passed if
/// not 0.
PyObject* call_dlpack(PyObject* object, bool version, long stream) {
  const Names& n = names();
  const Owned method(PyObject_GetAttr(object, n.dlpack));
  const Owned newest(Py_BuildValue("(II)", dlpack::kMajorVersion, dlpack::kMinorVersion));
  const Owned named(PyLong_FromLong(stream));
  if (!method || !newest || !named) return nullptr;
  PyObject* arguments[2];
  PyObject* words[2];
  Py_ssize_t count = 0;
  if (version) {
    arguments[count] = newest.get();
    words[count++] = n.max_version;
  }
  if (stream != 0) {
    arguments[count] = named.get();
    words[count++] = n.stream;
  }
  const Owned keywords(count == 0 ? nullptr : PyTuple_New(count));
  if (count > 0 && !keywords) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(words[i]);
    PyTuple_SET_ITEM(keywords.get(), i, words[i]);
  }
  return PyObject_Vectorcall(method.get(), arguments, 0, keywords.get());
}

}  // namespace

/// Checks the description of a DLPack tensor and copies it into a view.
/// api: table of the framework whose current stream is used for a tensor in device memory.
DropReason TensorReader::adopt(const dlpack::Tensor& tensor, const dlpack::ExchangeApi* api,
                               TensorView& view) {
  if (!dlpack::is_host(tensor.device.type)) {
    if (tensor.device.type != dlpack::kCuda) return DropReason::kUnsupportedDevice;
    const DropReason reason = place_on_device(tensor.device.id, view);
    if (reason != DropReason::kNone) return reason;
    if (api != nullptr && !current_stream(api, view)) return DropReason::kDeviceError;
  }
  view.dtype = dtype_from_dlpack(tensor.dtype);
  if (view.dtype == Dtype::kUnknown) return DropReason::kUnsupportedDtype;
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) return DropReason::kUnreadable;
  if (tensor.ndim > static_cast<int>(kMaxDims)) return DropReason::kTooLarge;
  const auto ndim = static_cast<std::size_t>(tensor.ndim);
  std::int64_t* dims = take_words(2 * ndim);
  for (std::size_t i = 0; i < ndim; ++i) dims[i] = tensor.shape[i];
  if (tensor.strides != nullptr) {
    for (std::size_t i = 0; i < ndim; ++i) dims[ndim + i] = tensor.strides[i];
  }
  view.ndim = tensor.ndim;
  view.shape = dims;
  view.strides = tensor.strides != nullptr ? dims + ndim : nullptr;
  view.data = tensor.data == nullptr ? nullptr : static_cast<const char*>(tensor.data) + tensor.byte_offset;
  return check_view(view);
}

DropReason TensorReader::read_exchange(PyObject* object, const dlpack::ExchangeApi* api, bool has_bits,
                                       TensorView& view) {
  dlpack::Tensor tensor{};
  if (api->tensor_from(object, &tensor) != 0) return failure_of(object);
  const DropReason reason = adopt(tensor, api, view);
  if (reason != DropReason::kNone || !has_bits) return reason;
  PyObject* resolved = resolve_bits(object, view);
  if (resolved == nullptr) return PyErr_Occurred() != nullptr ? DropReason::kUnreadable : DropReason::kNone;
  return read_exchange(resolved, api, false, view);
}

DropReason TensorReader::read_dlpack(PyObject* object, TensorView& view) {
  const dlpack::Device device =
      device_by_dlpack(object);  // first, because exporting may synchronize a device
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  long stream = 0;
  if (device.type >= 0 && !dlpack::is_host(device.type)) {
    if (device.type != dlpack::kCuda) return DropReason::kUnsupportedDevice;
    const DropReason refused = place_on_device(device.id, view);
    if (refused != DropReason::kNone) return refused;
    stream = kDefaultStream;
  }
  PyObject* capsule = call_dlpack(object, true, stream);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {  // a producer without versions
    PyErr_Clear();
    capsule = call_dlpack(object, false, stream);
  }
  if (capsule == nullptr) return failure_of(object);
  keep(capsule);
  return take_capsule(capsule, view);
}

/// Takes the tensor in a capsule. It is released later.
DropReason TensorReader::take_capsule(PyObject* capsule, TensorView& view) {
  Export taken;
  dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule, dlpack::kVersionedCapsule) != 0) {
    auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule, dlpack::kVersionedCapsule));
    if (PyCapsule_SetName(capsule, dlpack::kVersionedUsed) != 0) return DropReason::kUnreadable;
    taken.managed = managed;
    if (managed->version.major == dlpack::kMajorVersion) tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule, dlpack::kLegacyCapsule) != 0) {
    auto* managed =
        static_cast<dlpack::ManagedLegacy*>(PyCapsule_GetPointer(capsule, dlpack::kLegacyCapsule));
    if (PyCapsule_SetName(capsule, dlpack::kLegacyUsed) != 0) return DropReason::kUnreadable;
    taken.legacy = managed;
    tensor = &managed->tensor;
  } else {
    return DropReason::kUnreadable;
  }
  const DropReason reason = tensor == nullptr ? DropReason::kUnreadable : adopt(*tensor, nullptr, view);
  taken.device = view.device;
  exports_.push_back(taken);
  return reason;
}

}  // namespace tdcore
