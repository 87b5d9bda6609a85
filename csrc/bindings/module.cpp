// The extension module tdcore._core. Each file binds its own part; this file has the list of the parts. The
// GIL guards the look-up tables of the module, so the module does not declare mod_gil_not_used.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace tdcore {
void bind_stats(py::module_& module);
void bind_ring(py::module_& module);
void bind_consumer(py::module_& module);
void bind_capture(py::module_& module);  // adds methods to Ring, so called after bind_ring
void bind_device(py::module_& module);   // likewise
void bind_step_timer(py::module_& module);
void bind_cuda(py::module_& module);
}  // namespace tdcore

PYBIND11_MODULE(_core, module) {
  module.doc() =
      "tdcore's native core: statistics, the ring between trainer and flusher, capture and segment files.";
  tdcore::bind_stats(module);
  tdcore::bind_ring(module);
  tdcore::bind_consumer(module);
  tdcore::bind_capture(module);
  tdcore::bind_device(module);
  tdcore::bind_step_timer(module);
  tdcore::bind_cuda(module);
}
