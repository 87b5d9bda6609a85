// Numbers as tensors of one element: the part of TensorReader for Python's and NumPy's scalars.
#include <cstring>

#include "bindings/tensor.hpp"
#include "bindings/types.hpp"

namespace tdcore {

DropReason TensorReader::one_element(const void* value, Dtype dtype, TensorView& view) {
  std::int64_t* words = take_words(2);
  std::memcpy(words, value, dtype_bytes(dtype));
  view = TensorView{.data = words, .shape = words, .strides = nullptr, .ndim = 0, .dtype = dtype};
  return DropReason::kNone;
}

DropReason TensorReader::read_integer(PyObject* object, TensorView& view) {
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow == 0) {
    return value == -1 && PyErr_Occurred() != nullptr ? DropReason::kUnreadable
                                                      : one_element(&value, Dtype::kI64, view);
  }
  const double rounded = PyLong_AsDouble(object);  // more than 64 bits: the nearest double
  if (PyErr_Occurred() != nullptr) return DropReason::kUnsupportedDtype;
  return one_element(&rounded, Dtype::kF64, view);
}

DropReason TensorReader::read_scalar(PyObject* object, TensorView& view) {
  PyObject* memory = PyMemoryView_FromObject(object);
  if (memory == nullptr) return read_number(object, view);
  keep(memory);
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(memory);
  const Dtype dtype = dtype_from_format(buffer.format, buffer.itemsize);
  return dtype == Dtype::kUnknown ? read_number(object, view) : one_element(buffer.buf, dtype, view);
}

DropReason TensorReader::read_number(PyObject* object, TensorView& view) {
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (PyBool_Check(object)) {
    const std::uint8_t value = object == Py_True ? 1 : 0;
    return one_element(&value, Dtype::kBool, view);
  }
  if (PyLong_Check(object)) return read_integer(object, view);
  if (PyComplex_Check(object)) {
    const Py_complex value = PyComplex_AsCComplex(object);
    return one_element(&value, Dtype::kC128, view);
  }
  const PyNumberMethods* number = Py_TYPE(object)->tp_as_number;
  if (number == nullptr) return DropReason::kUnreadable;
  if (number->nb_index != nullptr) {
    if (const Owned index(PyNumber_Index(object)); index) return read_integer(index.get(), view);
    PyErr_Clear();
  }
  if (number->nb_float == nullptr) return DropReason::kUnreadable;
  const double value = PyFloat_AsDouble(object);
  if (PyErr_Occurred() != nullptr) return DropReason::kUnreadable;
  return one_element(&value, Dtype::kF64, view);
}

}  // namespace tdcore
