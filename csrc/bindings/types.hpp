// bindings/types.hpp: what can be said about Python types and dtypes before any tensor is read.
//
// The way to read objects of a type is found once and remembered; so is the Dtype of a framework's dtype
// object. Threads: everything here needs the GIL, which also guards the memories.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/dlpack.hpp"
#include "ring/record.hpp"

namespace tdcore {

/// How objects of a type are read.
enum class Route : std::uint8_t {
  kExchange,        // DLPack exchange table
  kAttributes,      // data_ptr(), shape, stride(), dtype, as PyTorch has them
  kBuffer,          // buffer protocol, then __array_interface__
  kArrayInterface,  // __array_interface__
  kAnywhere,        // as __dlpack_device__ says: buffer protocol, or as one of the next two
  kCudaInterface,   // __cuda_array_interface__
  kDlpack,          // __dlpack__
  kScalar,          // NumPy scalar: buffer protocol, then as a number
  kNumber,          // int, float, complex, bool or something like them
  kNoStorage,       // there is never anything behind it
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

/// Attribute names, interned once, never freed (there is no safe moment at interpreter exit).
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

/// Truth of an attribute (or of a method's answer); false when there is none. Clears errors.
bool is_true(PyObject* object, PyObject* name, bool call);

/// str(object.name), or "" when there is none. Clears errors.
std::string text_of(PyObject* object, PyObject* name);

/// Whether the type, not the object, has the attribute. Clears errors.
bool has_attribute(PyTypeObject* type, PyObject* name);

/// What is known about a type; looked up once.
TypeInfo info_of(PyTypeObject* type);

// All answer kUnknown for what tdcore has no type for.
Dtype dtype_from_name(std::string_view name) noexcept;  // "float32" or "torch.float32"
Dtype dtype_from_format(const char* format,
                        std::int64_t item_bytes) noexcept;  // struct module's language; one element only
Dtype dtype_from_typestr(std::string_view code) noexcept;   // "<f4", as array interfaces have it
Dtype dtype_from_dlpack(dlpack::DataType type) noexcept;
Dtype dtype_of_object(PyObject* object);  // by the text that the dtype object prints as

}  // namespace tdcore
