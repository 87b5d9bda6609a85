// bindings/errors.hpp: C++ errors of the operating system as Python's OSError.
// Threads: any, with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <system_error>

namespace tdcore {

/// Raises OSError(errno, text[, filename]); Python selects the subclass (FileExistsError, ...) by errno.
[[noreturn]] inline void throw_os_error(const std::system_error& error,
                                        const pybind11::object& filename = pybind11::none()) {
  namespace py = pybind11;
  const int number = error.code().value();
  const py::object os_error = py::reinterpret_borrow<py::object>(PyExc_OSError);
  const py::object raised = filename.is_none() ? os_error(number, error.what())
                                               : os_error(number, error.code().message(), filename);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  throw py::error_already_set();
}

}  // namespace tdcore
