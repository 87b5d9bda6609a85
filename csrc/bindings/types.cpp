#include "bindings/types.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>

namespace tdcore {
namespace {

constexpr std::size_t kMaxCachedTypes = 1024;

Dtype integer_dtype(bool is_signed, std::int64_t bytes) noexcept {
  switch (bytes) {
    case 1:
      return is_signed ? Dtype::kI8 : Dtype::kU8;
    case 2:
      return is_signed ? Dtype::kI16 : Dtype::kU16;
    case 4:
      return is_signed ? Dtype::kI32 : Dtype::kU32;
    case 8:
      return is_signed ? Dtype::kI64 : Dtype::kU64;
    default:
      return Dtype::kUnknown;
  }
}

Dtype float_dtype(std::int64_t bytes) noexcept {
  return bytes == 2 ? Dtype::kF16 : bytes == 4 ? Dtype::kF32 : bytes == 8 ? Dtype::kF64 : Dtype::kUnknown;
}

/// The exchange table of a type, if its major version is supported and it can export tensors.
const dlpack::ExchangeApi* exchange_api_of(PyTypeObject* type) {
  const Owned capsule(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), names().exchange_api));
  if (!capsule || PyCapsule_IsValid(capsule.get(), dlpack::kExchangeCapsule) == 0) {
    PyErr_Clear();
    return nullptr;
  }
  auto* header =
      static_cast<dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.get(), dlpack::kExchangeCapsule));
  while (header != nullptr && header->version.major != dlpack::kMajorVersion) header = header->previous;
  const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  return api != nullptr && api->tensor_from != nullptr ? api : nullptr;
}

/// Whether the type or one of its bases has one of these names.
bool descends_from(PyTypeObject* type, std::initializer_list<std::string_view> wanted) noexcept {
  if (type->tp_mro == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    const std::string_view name = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i))->tp_name;
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) return true;
  }
  return false;
}

/// Whether a type is known to have no values. The address of a fake tensor is not read, because this prints a
/// warning.
bool never_has_storage(PyTypeObject* type) noexcept {
  return descends_from(type, {"FakeTensor", "FunctionalTensor", "UninitializedTensorMixin"});
}

TypeInfo inspect(PyTypeObject* type) {
  const Names& n = names();
  TypeInfo info;
  info.has_bits = has_attribute(type, n.is_neg) && has_attribute(type, n.is_conj);
  info.has_cuda_interface = has_attribute(type, n.cuda_interface);
  info.has_dlpack = has_attribute(type, n.dlpack);
  info.api = exchange_api_of(type);
  if (PyType_IsSubtype(type, &PyLong_Type) != 0 || PyType_IsSubtype(type, &PyFloat_Type) != 0 ||
      PyType_IsSubtype(type, &PyComplex_Type) != 0) {
    info.route = Route::kNumber;
  } else if (descends_from(type, {"numpy.generic"})) {  // its __array_interface__ refers to freed memory
    info.route = Route::kScalar;
  } else if (never_has_storage(type)) {
    info.route = Route::kNoStorage;
  } else if (info.api != nullptr) {
    info.route = Route::kExchange;
  } else if (has_attribute(type, n.data_ptr) && has_attribute(type, n.stride)) {
    info.route = Route::kAttributes;
  } else if (type->tp_as_buffer != nullptr && type->tp_as_buffer->bf_getbuffer != nullptr) {
    // Some frameworks copy from the device, and wait for it, for the buffer protocol, so __dlpack_device__ is
    // called first.
    const bool anywhere = has_attribute(type, n.dlpack_device) && !descends_from(type, {"numpy.ndarray"});
    info.route = anywhere ? Route::kAnywhere : Route::kBuffer;
  } else if (has_attribute(type, n.array_interface)) {
    info.route = Route::kArrayInterface;
  } else if (info.has_cuda_interface) {
    info.route = Route::kCudaInterface;
  } else if (info.has_dlpack) {
    info.route = Route::kDlpack;
  } else if (type->tp_as_number != nullptr &&
             (type->tp_as_number->nb_float != nullptr || type->tp_as_number->nb_index != nullptr)) {
    info.route = Route::kNumber;
  }
  return info;
}

}  // namespace

const Names& names() {
  static const Names instance;
  return instance;
}

PyObject* call_method(PyObject* object, PyObject* name) {
  return PyObject_VectorcallMethod(name, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

bool is_true(PyObject* object, PyObject* name, bool call) {
  const Owned value(call ? call_method(object, name) : PyObject_GetAttr(object, name));
  const int truth = value ? PyObject_IsTrue(value.get()) : 0;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return truth > 0;
}

std::string text_of(PyObject* object, PyObject* name) {
  std::string text;
  if (const Owned value(PyObject_GetAttr(object, name)); value) {
    if (const Owned string(PyObject_Str(value.get())); string) {
      if (const char* bytes = PyUnicode_AsUTF8(string.get()); bytes != nullptr) text = bytes;
    }
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return text;
}

bool has_attribute(PyTypeObject* type, PyObject* name) {
  const Owned value(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  if (!value) PyErr_Clear();
  return static_cast<bool>(value);
}

// The table keeps its types alive, so that no other type reuses an address.
TypeInfo info_of(PyTypeObject* type) {
  static auto& cache = *new std::unordered_map<PyTypeObject*, TypeInfo>();
  static PyTypeObject* last_type = nullptr;
  static TypeInfo last_info;
  if (type == last_type) return last_info;
  auto found = cache.find(type);
  if (found == cache.end()) {
    const TypeInfo info = inspect(type);  // may run Python code that calls this function again
    if (cache.size() >= kMaxCachedTypes) return info;
    const auto [place, added] = cache.try_emplace(type, info);
    if (added) Py_INCREF(type);
    found = place;
  }
  last_type = type;
  last_info = found->second;
  return last_info;
}

Dtype dtype_from_name(std::string_view name) noexcept {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  constexpr std::array<std::pair<std::string_view, Dtype>, 18> kTable{{
      {"bool", Dtype::kBool},
      {"bool_", Dtype::kBool},
      {"uint8", Dtype::kU8},
      {"int8", Dtype::kI8},
      {"uint16", Dtype::kU16},
      {"int16", Dtype::kI16},
      {"uint32", Dtype::kU32},
      {"int32", Dtype::kI32},
      {"uint64", Dtype::kU64},
      {"int64", Dtype::kI64},
      {"float16", Dtype::kF16},
      {"bfloat16", Dtype::kBF16},
      {"float32", Dtype::kF32},
      {"float64", Dtype::kF64},
      {"float8_e4m3fn", Dtype::kF8E4M3},
      {"float8_e5m2", Dtype::kF8E5M2},
      {"complex64", Dtype::kC64},
      {"complex128", Dtype::kC128},
  }};
  for (const auto& [key, dtype] : kTable) {
    if (key == name) return dtype;
  }
  return Dtype::kUnknown;
}

Dtype dtype_from_format(const char* format, std::int64_t item_bytes) noexcept {
  std::string_view code = format == nullptr ? "B" : format;
  if (!code.empty() && (code[0] == '@' || code[0] == '=' || code[0] == '<' || code[0] == '|'))
    code.remove_prefix(1);
  if (code == "?" && item_bytes == 1) return Dtype::kBool;
  if (code == "Zf" && item_bytes == 8) return Dtype::kC64;
  if (code == "Zd" && item_bytes == 16) return Dtype::kC128;
  if (code.size() != 1) return Dtype::kUnknown;
  if (std::string_view("bhilqn").find(code[0]) != std::string_view::npos)
    return integer_dtype(true, item_bytes);
  if (std::string_view("BHILQN").find(code[0]) != std::string_view::npos)
    return integer_dtype(false, item_bytes);
  if (std::string_view("efd").find(code[0]) != std::string_view::npos) return float_dtype(item_bytes);
  return Dtype::kUnknown;
}

Dtype dtype_from_typestr(std::string_view code) noexcept {
  if (code.size() < 3 || (code[0] != '<' && code[0] != '|')) return Dtype::kUnknown;
  std::int64_t bytes = 0;
  for (const char digit : code.substr(2)) {
    if (digit < '0' || digit > '9' || bytes > 16) return Dtype::kUnknown;
    bytes = bytes * 10 + (digit - '0');
  }
  switch (code[1]) {
    case 'b':
      return bytes == 1 ? Dtype::kBool : Dtype::kUnknown;
    case 'i':
      return integer_dtype(true, bytes);
    case 'u':
      return integer_dtype(false, bytes);
    case 'f':
      return float_dtype(bytes);
    case 'c':
      return bytes == 8 ? Dtype::kC64 : bytes == 16 ? Dtype::kC128 : Dtype::kUnknown;
    default:
      return Dtype::kUnknown;
  }
}

Dtype dtype_from_dlpack(dlpack::DataType type) noexcept {
  if (type.lanes != 1 || type.bits % 8 != 0) return Dtype::kUnknown;
  switch (type.code) {
    case dlpack::kInt:
      return integer_dtype(true, type.bits / 8);
    case dlpack::kUInt:
      return integer_dtype(false, type.bits / 8);
    case dlpack::kFloat:
      return float_dtype(type.bits / 8);
    case dlpack::kBfloat:
      return type.bits == 16 ? Dtype::kBF16 : Dtype::kUnknown;
    case dlpack::kBool:
      return type.bits == 8 ? Dtype::kBool : Dtype::kUnknown;
    case dlpack::kFloat8E4M3FN:
      return type.bits == 8 ? Dtype::kF8E4M3 : Dtype::kUnknown;
    case dlpack::kFloat8E5M2:
      return type.bits == 8 ? Dtype::kF8E5M2 : Dtype::kUnknown;
    case dlpack::kComplex:
      return type.bits == 64 ? Dtype::kC64 : type.bits == 128 ? Dtype::kC128 : Dtype::kUnknown;
    default:
      return Dtype::kUnknown;
  }
}

Dtype dtype_of_object(PyObject* object) {
  static auto& cache = *new std::unordered_map<PyObject*, Dtype>();
  if (const auto found = cache.find(object); found != cache.end()) return found->second;
  const Owned text(PyObject_Str(object));
  const char* bytes = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (bytes == nullptr) return Dtype::kUnknown;
  const Dtype dtype = dtype_from_name(bytes);
  if (cache.size() < kMaxCachedTypes && cache.try_emplace(object, dtype).second) Py_INCREF(object);
  return dtype;
}

}  // namespace tdcore
