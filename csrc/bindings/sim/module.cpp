// The extension tests._sim: simulated devices for the rings of tdcore._core. Wheels do not contain it.
#include <pybind11/pybind11.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "bindings/device_capsule.hpp"
#include "sim/sim_device.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

/// Handle of a test to the simulated device of a ring. The ring owns the device.
struct SimulatedDevice {
  py::object ring;  // keeps the device alive
  SimDevice* device;
};

CommitMode commit_mode_from(const std::string& name) {
  for (std::size_t i = 0; i < kCommitModeNames.size(); ++i) {
    if (name == kCommitModeNames[i]) return static_cast<CommitMode>(i);
  }
  throw py::value_error("rung must be 'stream_write', 'commit_kernel' or 'poll', got '" + name + "'");
}

SimulatedDevice simulate_device(const py::object& ring, int id, std::uint64_t seed, std::uint32_t delay_us,
                                bool host_tensors, const std::string& commit_mode, std::uint64_t fails_after,
                                bool early_words, std::uint32_t queue_limit, std::uint64_t memory_bytes,
                                std::uint64_t pin_bytes) {
  SimDeviceOptions options;
  options.seed = seed;
  options.delay_us = delay_us;
  options.sync_compute = host_tensors;
  options.best_commit_mode = commit_mode_from(commit_mode);
  options.fails_after = fails_after;
  options.early_words = early_words;
  options.queue_limit = queue_limit;
  options.memory_bytes = memory_bytes;
  options.pin_bytes = pin_bytes;
  auto made = std::make_unique<SimDevice>(options);
  SimDevice* const device = made.get();
  ring.attr("_use_device")(id, device_capsule(std::move(made)), py::arg("host_tensors") = host_tensors);
  return {ring, device};
}

/// Copies bytes into an array, in the order of the stream's work, like work of a training.
void store(const SimulatedDevice& self, StreamHandle stream, const py::buffer& target,
           const py::bytes& values) {
  const py::buffer_info info = target.request(true);
  std::string bytes = values;
  if (info.itemsize * info.size != static_cast<py::ssize_t>(bytes.size()))
    throw py::value_error("the array has " + std::to_string(info.itemsize * info.size) + " bytes, got " +
                          std::to_string(bytes.size()));
  void* const to = info.ptr;
  const py::gil_scoped_release unlocked;  // the queue of the stream may be full
  self.device->enqueue(stream,
                       [to, bytes = std::move(bytes)] { std::memcpy(to, bytes.data(), bytes.size()); });
}

constexpr const char* kStoreDoc =
    R"(Enqueue a copy of bytes into a C-contiguous array of the same size, as work of the training.

During begin_capture() the copy becomes a part of the graph. The array must live until the work has run.)";

constexpr const char* kSimulateDoc =
    R"(Make device `id` of a ring a simulated device. Its memory is host memory, and its streams are threads.

Args:
    ring: A `tdcore._core.Ring` with a free device lane.
    id: Number of the device.
    seed: Seed of all delays.
    delay_us: Longest delay before a piece of work, in microseconds.
    host_tensors: Capture tensors in host memory as if they were on this device. Its kernels then run within
        the call that launches them, because the training may overwrite host memory at any time.
    rung: The best way to commit records: 'stream_write', 'commit_kernel' or 'poll'.
    fails_after: Number of pieces of work after which the device rejects all work.
    early_words: Commit some records before their values are written.
    queue_limit: Largest number of pending pieces of work of a stream. A call that enqueues more waits, as in
        CUDA. 0: no limit.
    memory_bytes: Memory of the device.
    pin_bytes: Maximum size of memory that can be pinned in one call.

Returns:
    A handle to the device.

Raises:
    ValueError: The ring has no device lanes, or the device is in use.)";

}  // namespace

void bind_simulated_device(py::module_& module) {
  py::class_<SimulatedDevice>(module, "SimulatedDevice", "Handle to a simulated device of a ring.")
      .def(
          "pause", [](const SimulatedDevice& self) { self.device->pause(); },
          "Stop all work until resume(). Enqueued work stays pending.")
      .def(
          "resume", [](const SimulatedDevice& self) { self.device->resume(); },
          "Continue the work after pause().")
      .def(
          "fail", [](const SimulatedDevice& self) { self.device->fail(); },
          "Make the device reject all further work.")
      .def(
          "set_capturing",
          [](const SimulatedDevice& self, StreamHandle stream, bool capturing) {
            self.device->set_capturing(stream, capturing);
          },
          py::arg("stream"), py::arg("capturing"),
          "Set whether the stream is being captured into a CUDA graph.")
      .def(
          "begin_capture",
          [](const SimulatedDevice& self, StreamHandle stream) { return self.device->begin_capture(stream); },
          py::arg("stream"),
          "Capture later work of the stream into a CUDA graph. Returns the number of the graph.")
      .def(
          "end_capture",
          [](const SimulatedDevice& self, StreamHandle stream) { self.device->end_capture(stream); },
          py::arg("stream"), "End the capture.")
      .def(
          "replay",
          [](const SimulatedDevice& self, std::uint64_t graph, StreamHandle stream) {
            const py::gil_scoped_release unlocked;
            return self.device->replay(graph, stream);
          },
          py::arg("graph"), py::arg("stream"),
          "Enqueue the work of a graph. Returns False if the device has failed, or without such a graph.")
      .def(
          "destroy_graph",
          [](const SimulatedDevice& self, std::uint64_t graph) { self.device->destroy_graph(graph); },
          py::arg("graph"), "Destroy a graph. Its enqueued work still runs.")
      .def("store", &store, py::arg("stream"), py::arg("target"), py::arg("values"), kStoreDoc)
      .def(
          "synchronize",
          [](const SimulatedDevice& self, StreamHandle stream) {
            const py::gil_scoped_release unlocked;
            return self.device->synchronize(stream);
          },
          py::arg("stream"),
          "Wait until all enqueued work of the stream has run. Returns False if the device has lost it.")
      .def_property_readonly(
          "operations", [](const SimulatedDevice& self) { return self.device->operations(); },
          "Number of pieces of work that the device has accepted.")
      .def_property_readonly(
          "violations", [](const SimulatedDevice& self) { return self.device->violations(); },
          "Number of writes outside of an allocation, plus number of launches whose counters were in use.");
  module.def("simulate_device", &simulate_device, py::arg("ring"), py::arg("id") = 0, py::kw_only(),
             py::arg("seed") = 1, py::arg("delay_us") = 20, py::arg("host_tensors") = false,
             py::arg("rung") = "stream_write", py::arg("fails_after") = ~std::uint64_t{0},
             py::arg("early_words") = false, py::arg("queue_limit") = 0,
             py::arg("memory_bytes") = SimDeviceOptions{}.memory_bytes,
             py::arg("pin_bytes") = SimDeviceOptions{}.pin_bytes, kSimulateDoc);
}

}  // namespace tdcore

PYBIND11_MODULE(_sim, module) {
  module.doc() = "Simulated devices for the rings of tdcore._core, which test the GPU part without a GPU.";
  tdcore::bind_simulated_device(module);
}
