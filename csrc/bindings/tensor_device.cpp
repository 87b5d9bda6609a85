// The part of TensorReader for tensors on devices: their device, their stream, and the lifetime of their
// exports.
#include "bindings/tensor_device.hpp"

#include <initializer_list>
#include <limits>

#include "bindings/tensor.hpp"
#include "bindings/types.hpp"

namespace tdcore {
namespace {

/// The number at a path of attributes; -1 if it does not exist. Clears errors.
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

/// Exports that a device reads after the call. Released with the GIL; leaked if the interpreter has ended.
class Loans final : public Borrowed {
 public:
  ~Loans() override {
    if (PyGILState_Check() == 0) return;  // the interpreter has ended
    for (const Export& one : exports) one.give_back();
  }
  std::vector<Export> exports;
};

}  // namespace

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

std::int64_t device_of_interface(PyObject* object) {
  const Names& n = names();
  if (const dlpack::Device device = device_by_dlpack(object); device.type >= 0)
    return device.type == dlpack::kCuda ? device.id : -1;
  if (const std::int64_t id = number_at(object, {n.device, n.id}); id >= 0) return id;  // CuPy
  return number_at(object, {n.gpu_data, n.context, n.device, n.id});                    // Numba
}

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

/// Sets the device of the view. Rejects invalid numbers.
DropReason TensorReader::place_on_device(std::int64_t device, TensorView& view) {
  if (!devices_ || device < 0 || device > std::numeric_limits<std::int16_t>::max())
    return DropReason::kUnsupportedDevice;
  view.device = static_cast<std::int16_t>(device);
  met_device_ = true;
  return DropReason::kNone;
}

/// Sets the framework's current stream of this thread on the view's device. False if it is not available.
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
    view.stream = stream_handle(reinterpret_cast<std::uintptr_t>(stream));
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
    view.stream = stream_handle(static_cast<std::uintptr_t>(handle));
  }
  streams_.push_back({api, view.device, view.stream});
  return true;
}

/// Reads an object of a type with the buffer protocol whose memory may be on a device.
DropReason TensorReader::read_anywhere(PyObject* object, const TypeInfo& info, TensorView& view) {
  const dlpack::Device device = device_by_dlpack(object);
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  if (device.type < 0 || dlpack::is_host(device.type)) return read_buffer(object, view);
  if (info.has_cuda_interface) return read_cuda_interface(object, info.has_dlpack, view);
  return info.has_dlpack ? read_dlpack(object, view) : DropReason::kUnsupportedDevice;
}

}  // namespace tdcore
