// The extension module tdcore._core. Each part binds itself; this file has the list of the parts.
// The module relies on the GIL (its look-up tables are guarded by it), so it does not declare
// mod_gil_not_used.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace tdcore {
void bind_stats(py::module_& module);
void bind_ring(py::module_& module);
void bind_consumer(py::module_& module);
void bind_capture(py::module_& module);  // adds to Ring, so after bind_ring
void bind_device(py::module_& module);   // likewise
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
  tdcore::bind_cuda(module);
}
