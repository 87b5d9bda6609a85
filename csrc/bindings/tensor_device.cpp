// The part of TensorReader that meets devices: which device, which stream, and what is kept for how long.
#include <limits>

#include "bindings/tensor.hpp"
#include "bindings/types.hpp"
#include "capture/capture.hpp"

namespace tdcore {
namespace {

// As CUDA, DLPack and __cuda_array_interface__ number them: 1 is the default stream, which everyone has and
// which waits for what the process's other (blocking) streams did. What reads and what we name to producers.
constexpr long kDefaultStream = 1;

std::uintptr_t handle_of(std::uintptr_t stream) noexcept { return stream == kDefaultStream ? 0 : stream; }

/// The attribute's attribute's ... as a number; -1 when there is none. Clears errors.
std::int64_t number_at(PyObject* object, std::initializer_list<PyObject*> path) {
  Py_INCREF(object);
  PyObject* at = object;
  for (PyObject* name : path) {
    PyObject* next = PyObject_GetAttr(at, name);
    Py_DECREF(at);
    at = next;
    if (at == nullptr) break;
  }
  const Owned value(at);
  const std::int64_t number = value && PyLong_Check(value.get()) != 0 ? PyLong_AsLongLong(value.get()) : -1;
  PyErr_Clear();
  return number;
}

/// What __dlpack_device__() says; type -1 when it says nothing. Clears errors, but for interrupts.
dlpack::Device device_by_dlpack(PyObject* object) {
  dlpack::Device device{-1, -1};
  const Owned pair(call_method(object, names().dlpack_device));
  if (pair && PyTuple_Check(pair.get()) != 0 && PyTuple_GET_SIZE(pair.get()) == 2) {
    const Owned type(PyNumber_Index(PyTuple_GET_ITEM(pair.get(), 0)));
    const Owned id(PyNumber_Index(PyTuple_GET_ITEM(pair.get(), 1)));
    device.type = type ? static_cast<std::int32_t>(PyLong_AsLong(type.get())) : -1;
    device.id = id ? static_cast<std::int32_t>(PyLong_AsLong(id.get())) : -1;
  }
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
  return device;
}

/// The device of an object with __cuda_array_interface__, which does not tell. A wrong one would break the
/// training's context, so without an answer there is none.
std::int64_t device_of_interface(PyObject* object) {
  const Names& n = names();
  if (const dlpack::Device device = device_by_dlpack(object); device.type >= 0)
    return device.type == dlpack::kCuda ? device.id : -1;
  if (const std::int64_t id = number_at(object, {n.device, n.id}); id >= 0) return id;  // CuPy
  return number_at(object, {n.gpu_data, n.context, n.device, n.id});                    // Numba
}

/// object.__dlpack__(...). version: names the newest one that we read, else not. stream: named when not 0.
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

/// Exports that a device reads after the call. Destroyed with the GIL, or left alone where there is none.
class Loans final : public Borrowed {
 public:
  ~Loans() override {
    if (PyGILState_Check() == 0) return;  // the interpreter has ended
    for (const Export& one : exports) one.give_back();
  }
  std::vector<Export> exports;
};

}  // namespace

void Export::give_back() const noexcept {
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  if (legacy != nullptr && legacy->deleter != nullptr) legacy->deleter(legacy);
  Py_XDECREF(owner);
}

std::unique_ptr<Borrowed> TensorReader::take_loans(int device) {
  auto loans = std::make_unique<Loans>();
  std::erase_if(exports_, [&](const Export& one) {
    if (one.device != device) return false;
    loans->exports.push_back(one);
    return true;
  });
  return loans->exports.empty() ? nullptr : std::move(loans);
}

/// Says where the view lies; refuses devices that cannot be.
DropReason TensorReader::place_on_device(std::int64_t device, TensorView& view) {
  if (!devices_ || device < 0 || device > std::numeric_limits<std::int16_t>::max())
    return DropReason::kUnsupportedDevice;
  view.device = static_cast<std::int16_t>(device);
  met_device_ = true;
  return DropReason::kNone;
}

/// Fills in the framework's current stream of this thread on the view's device. False when it does not say.
bool TensorReader::current_stream(const dlpack::ExchangeApi* api, TensorView& view) {
  for (const CurrentStream& known : streams_) {
    if (known.api == api && known.device == view.device) {
      view.stream = known.stream;
      return true;
    }
  }
  if (api != nullptr) {
    void* stream = nullptr;
    if (api->current_work_stream == nullptr ||
        api->current_work_stream(dlpack::kCuda, view.device, &stream) != 0)
      return false;
    view.stream = handle_of(reinterpret_cast<std::uintptr_t>(stream));
  } else {
    const Names& n = names();
    PyObject* module = PyDict_GetItem(PyImport_GetModuleDict(), n.torch);  // borrowed
    const Owned cuda(module == nullptr ? nullptr : PyObject_GetAttr(module, n.cuda));
    const Owned device(PyLong_FromLong(view.device));
    PyObject* arguments[] = {cuda.get(), device.get()};
    const Owned stream(cuda && device ? PyObject_VectorcallMethod(n.current_stream, arguments, 2, nullptr)
                                      : nullptr);
    const std::int64_t handle = stream ? number_at(stream.get(), {n.cuda_stream}) : -1;
    if (handle == -1) return false;
    view.stream = handle_of(static_cast<std::uintptr_t>(handle));
  }
  streams_.push_back({api, view.device, view.stream});
  return true;
}

/// A type with the buffer protocol whose objects may lie on a device.
DropReason TensorReader::read_anywhere(PyObject* object, const TypeInfo& info, TensorView& view) {
  const dlpack::Device device = device_by_dlpack(object);
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  if (device.type < 0 || dlpack::is_host(device.type)) return read_buffer(object, view);
  if (info.has_cuda_interface) return read_cuda_interface(object, info.has_dlpack, view);
  return info.has_dlpack ? read_dlpack(object, view) : DropReason::kUnsupportedDevice;
}

DropReason TensorReader::read_cuda_interface(PyObject* object, bool has_dlpack, TensorView& view) {
  const Names& n = names();
  const std::int64_t device = device_of_interface(object);
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  const DropReason refused = place_on_device(device, view);
  if (refused != DropReason::kNone) return refused;
  const Owned interface(PyObject_GetAttr(object, n.cuda_interface));
  if (!interface && has_dlpack && PyErr_ExceptionMatches(PyExc_Exception) != 0) {
    PyErr_Clear();  // some refuse dtypes there that DLPack has (bfloat16)
    return read_dlpack(object, view);
  }
  if (!interface || PyDict_Check(interface.get()) == 0) return DropReason::kUnreadable;
  PyObject* data = PyDict_GetItemString(interface.get(), "data");  // borrowed, as those below
  PyObject* shape = PyDict_GetItemString(interface.get(), "shape");
  PyObject* strides = PyDict_GetItemString(interface.get(), "strides");
  PyObject* typestr = PyDict_GetItemString(interface.get(), "typestr");
  PyObject* mask = PyDict_GetItemString(interface.get(), "mask");
  PyObject* stream = PyDict_GetItem(interface.get(), n.stream);
  if (stream == nullptr && has_dlpack) return read_dlpack(object, view);  // version 2: nobody says when
  if (data == nullptr || PyTuple_Check(data) == 0 || PyTuple_GET_SIZE(data) < 1 || shape == nullptr ||
      typestr == nullptr || (mask != nullptr && mask != Py_None)) {
    return DropReason::kUnreadable;
  }
  if (const Owned descriptor(PyObject_GetAttr(object, n.dtype)); descriptor)
    view.dtype = dtype_from_name(text_of(descriptor.get(), n.name));
  PyErr_Clear();
  const char* code = PyUnicode_AsUTF8(typestr);
  if (code == nullptr) return DropReason::kUnreadable;
  if (view.dtype == Dtype::kUnknown) view.dtype = dtype_from_typestr(code);
  if (view.dtype == Dtype::kUnknown || code[0] == '>') return DropReason::kUnsupportedDtype;
  view.data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
  // None: the values are there, on whichever stream they are read. 0 could mean two streams, so it may not
  // be.
  const bool names_stream = stream != nullptr && stream != Py_None;
  if (names_stream) view.stream = PyLong_AsUnsignedLongLong(stream);
  if (PyErr_Occurred() != nullptr || (names_stream && view.stream == 0)) return DropReason::kUnreadable;
  view.stream = handle_of(view.stream);
  const auto item_bytes = static_cast<std::int64_t>(dtype_bytes(view.dtype));
  if (!set_dims(shape, strides == nullptr ? Py_None : strides, item_bytes, view)) {
    if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
    return PySequence_Size(shape) > static_cast<Py_ssize_t>(kMaxDims) ? DropReason::kTooLarge
                                                                      : DropReason::kUnreadable;
  }
  Py_INCREF(object);
  exports_.push_back({.device = view.device, .owner = object});
  return check_view(view);
}

DropReason TensorReader::read_dlpack(PyObject* object, TensorView& view) {
  const dlpack::Device device = device_by_dlpack(object);  // first: exporting may synchronise a device
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  long stream = 0;
  if (device.type >= 0 && !dlpack::is_host(device.type)) {
    if (device.type != dlpack::kCuda) return DropReason::kUnsupportedDevice;
    const DropReason refused = place_on_device(device.id, view);
    if (refused != DropReason::kNone) return refused;
    stream = kDefaultStream;
  }
  PyObject* capsule = call_dlpack(object, true, stream);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {  // from before versions
    PyErr_Clear();
    capsule = call_dlpack(object, false, stream);
  }
  if (capsule == nullptr) return failure_of(object);
  keep(capsule);
  return take_capsule(capsule, view);
}

/// Takes the tensor in a capsule, to be given back.
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
