// bindings/types.hpp: properties of Python types and dtypes, without reading a tensor.
//
// The method to read objects of a type is determined once and stored, like the Dtype of a framework's dtype
// object. Threads: any, with the GIL, which also guards the stored values.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/dlpack.hpp"
#include "ring/record.hpp"

namespace tdcore {

/// Method to read the objects of a type.
enum class Route : std::uint8_t {
  kExchange,        // DLPack exchange table
  kAttributes,      // data_ptr(), shape, stride(), dtype, as PyTorch has them
  kBuffer,          // buffer protocol, then __array_interface__
  kArrayInterface,  // __array_interface__
  kAnywhere,        // by __dlpack_device__: buffer protocol, or one of the next two
  kCudaInterface,   // __cuda_array_interface__
  kDlpack,          // __dlpack__
  kScalar,          // NumPy scalar: buffer protocol, then number
  kNumber,          // int, float, complex, bool or similar
  kNoStorage,       // never has storage
  kUnreadable,
};

struct TypeInfo {
  Route route = Route::kUnreadable;
  bool has_bits = false;            // has is_neg() and is_conj(): PyTorch
  bool has_cuda_interface = false;  // __cuda_array_interface__
  bool has_dlpack = false;          // __dlpack__
  const dlpack::ExchangeApi* api = nullptr;
};

/// An owned reference.
class Owned {
 public:
  explicit Owned(PyObject* object) noexcept : object_(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object_); }
  PyObject* get() const noexcept { return object_; }
  PyObject* take() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_;
};

/// Attribute names, interned once, never freed (at interpreter exit there is no safe moment).
struct Names {
  PyObject* exchange_api = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* array_interface = PyUnicode_InternFromString("__array_interface__");
  PyObject* dlpack = PyUnicode_InternFromString("__dlpack__");
  PyObject* dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
  PyObject* max_version = PyUnicode_InternFromString("max_version");
  PyObject* stream = PyUnicode_InternFromString("stream");
  PyObject* cuda_interface = PyUnicode_InternFromString("__cuda_array_interface__");
  PyObject* index = PyUnicode_InternFromString("index");
  PyObject* id = PyUnicode_InternFromString("id");
  PyObject* gpu_data = PyUnicode_InternFromString("gpu_data");
  PyObject* context = PyUnicode_InternFromString("context");
  PyObject* torch = PyUnicode_InternFromString("torch");
  PyObject* cuda = PyUnicode_InternFromString("cuda");
  PyObject* current_stream = PyUnicode_InternFromString("current_stream");
  PyObject* cuda_stream = PyUnicode_InternFromString("cuda_stream");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* name = PyUnicode_InternFromString("name");
  PyObject* copy = PyUnicode_InternFromString("copy");
  PyObject* device = PyUnicode_InternFromString("device");
  PyObject* type = PyUnicode_InternFromString("type");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* is_nested = PyUnicode_InternFromString("is_nested");
  PyObject* is_quantized = PyUnicode_InternFromString("is_quantized");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* detach = PyUnicode_InternFromString("detach");
  PyObject* resolve_conj = PyUnicode_InternFromString("resolve_conj");
  PyObject* resolve_neg = PyUnicode_InternFromString("resolve_neg");
};

const Names& names();

/// object.name(), or null with a Python error set.
PyObject* call_method(PyObject* object, PyObject* name);

/// Truth of an attribute, or of a method's result; false if it does not exist. Clears errors.
bool is_true(PyObject* object, PyObject* name, bool call);

/// str(object.name), or "" if it does not exist. Clears errors.
std::string text_of(PyObject* object, PyObject* name);

/// Whether the type itself has the attribute. Clears errors.
bool has_attribute(PyTypeObject* type, PyObject* name);

/// Properties of a type, determined once.
TypeInfo info_of(PyTypeObject* type);

// All of these return kUnknown for a dtype that tdcore does not have.
Dtype dtype_from_name(std::string_view name) noexcept;  // "float32" or "torch.float32"
Dtype dtype_from_format(const char* format,
                        std::int64_t item_bytes) noexcept;  // format of the struct module; one element only
Dtype dtype_from_typestr(std::string_view code) noexcept;   // "<f4", as in array interfaces
Dtype dtype_from_dlpack(dlpack::DataType type) noexcept;
Dtype dtype_of_object(PyObject* object);  // by the str() of the dtype object

}  // namespace tdcore
