// Captures that meet devices, and what Python may ask of a ring's devices. Adds to class Ring.
//
// Captures enqueue with the GIL held (microseconds); it is given away while a device is set up and while a
// capture waits for room.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "bindings/thread_scratch.hpp"
#include "device/device_ring.hpp"
#include "sim/sim_device.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

CommitMode commit_mode_from(const std::string& name) {
  for (std::size_t i = 0; i < kCommitModeNames.size(); ++i) {
    if (name == kCommitModeNames[i]) return static_cast<CommitMode>(i);
  }
  throw py::value_error("rung must be 'stream_write', 'commit_kernel' or 'poll', got '" + name + "'");
}

py::dict report_dict(const NumberedReport& numbered) {
  const DeviceReport& report = numbered.report;
  py::dict result;
  result["device"] = numbered.device;
  result["name"] = report.info.name;
  result["kernels"] = report.info.kernels;
  result["rung"] = commit_mode_name(report.commit_mode);
  result["rung_reason"] = report.info.commit_mode_reason;
  result["arena_bytes"] = report.arena_bytes;
  result["early_commits"] = report.early_commits;
  result["in_flight"] = report.in_flight;
  result["error"] = report.error;
  return result;
}

py::list device_reports(const DeviceRing& self) {
  py::list found;
  if (self.devices() == nullptr) return found;
  for (const NumberedReport& report : self.devices()->reports()) found.append(report_dict(report));
  return found;
}

bool mark_step_end(DeviceRing& self, std::int64_t step) {
  DeviceSet* const devices = self.devices();
  return devices != nullptr ? devices->mark_step_end(step) : self.ring().mark_step_end(step);
}

void close_ring(DeviceRing& self) {
  {
    const py::gil_scoped_release unlocked;
    self.close();
  }
  if (self.devices() != nullptr) (void)self.devices()->take_read();
}

/// The test's hand on a simulated device. The ring keeps the device, and this keeps the ring.
struct SimulatedDevice {
  std::shared_ptr<DeviceRing> ring;
  SimDevice* device;
};

SimulatedDevice simulate_device(const std::shared_ptr<DeviceRing>& ring, int id, std::uint64_t seed,
                                std::uint32_t delay_us, bool host_tensors, const std::string& commit_mode,
                                std::uint64_t fails_after, bool early_words) {
  if (ring->devices() == nullptr)
    throw py::value_error("the ring has no device lanes; give it device_lanes=1");
  SimDeviceOptions options;
  options.seed = seed;
  options.delay_us = delay_us;
  options.sync_compute = host_tensors;
  options.best_commit_mode = commit_mode_from(commit_mode);
  options.fails_after = fails_after;
  options.early_words = early_words;
  auto held = std::make_shared<std::unique_ptr<SimDevice>>(std::make_unique<SimDevice>(options));
  SimDevice* const device = held->get();
  if (!ring->devices()->set_factory(id, [held](int, std::string&) { return std::move(*held); }))
    throw py::value_error("device " + std::to_string(id) + " is in use already; simulate it before captures");
  if (host_tensors) ring->devices()->redirect_host(id);
  return {ring, device};
}

constexpr const char* kSimulateDoc =
    R"(Makes device `id` of the ring a simulated one: host memory, streams that are threads. For tests without a GPU.

delay_us: longest delay of a piece of work. host_tensors: tensors in host memory are captured as if they lay on it; its
kernels then run within the call, since nothing keeps the training from overwriting host memory behind them. rung:
how records are committed at best. fails_after: pieces of work until it refuses all. early_words: commits come
before their values now and then. The ring needs a device lane. Raises ValueError once the device was used.)";

}  // namespace

CaptureResult capture_with_devices(Ring& ring, DeviceSet& devices, ThreadScratch& scratch,
                                   const StepContext& step_context) {
  (void)devices.take_read();  // given back here, with the GIL
  for (const CaptureRequest& request : scratch->requests) {
    const TensorView& view = request.tensor;
    if (request.status != EntryStatus::kOk) continue;
    const int device = devices.device_of(view);
    if (device != kHostMemory && devices.is_new(device))
      scratch.without_gil([&] { (void)devices.prepare(device, view.stream); });
  }
  Groups& groups = scratch->groups;
  devices.sort(scratch->requests, groups);
  CaptureResult total;
  const auto add = [&total](const CaptureResult& one) {
    total.kept += one.kept;
    total.not_kept += one.not_kept;
    total.payload_bytes += one.payload_bytes;
  };
  if (!groups.host.empty()) {
    std::uint64_t bytes = 0;
    for (const CaptureRequest& request : groups.host) {
      if (request.status == EntryStatus::kOk && request.flags != 0) bytes += view_bytes(request.tensor);
    }
    add(capture_in_host_memory(ring, scratch, groups.host, step_context, bytes));
  }
  for (const DeviceGroup& group : groups.on_devices())
    add(devices.capture(group, step_context, {wait_without_gil, &scratch}));
  for (const DeviceGroup& group : groups.on_devices()) {
    if (auto loans = scratch->reader.take_loans(group.device)) devices.borrow(group.device, std::move(loans));
  }
  return total;
}

void bind_device(py::module_& module) {
  const py::object ring = module.attr("Ring");
  const auto add = [&ring](const char* name, auto function, const auto&... extra) {
    ring.attr(name) = py::cpp_function(function, py::name(name), py::is_method(ring), extra...);
  };
  add("mark_step_end", &mark_step_end, py::arg("step"),
      "Says that this step and all before it are over, behind all that was captured; -1: that steps will be "
      "marked. False when there is no room.");
  add(
      "prepare_device",
      [](DeviceRing& self, int device) {
        const py::gil_scoped_release unlocked;
        return self.devices() != nullptr && self.devices()->prepare(device);
      },
      py::arg("device"),
      "Sets a CUDA device up, which its first capture would do else. Whether its tensors can be captured; "
      "device_refusals() says why not. Not while one of its streams is being captured into a graph.");
  add(
      "device_refusals",
      [](const DeviceRing& self) {
        return self.devices() != nullptr ? self.devices()->refusals() : std::string();
      },
      "Why devices that were met are not used, a line each; empty when all are.");
  add("device_reports", &device_reports,
      "What is known of each device that was met: device, name, kernels, rung, rung_reason, arena_bytes, "
      "early_commits, in_flight, error.");
  add("close", &close_ring, "Waits for calls in flight and unmaps. Later calls do nothing.");

  py::class_<SimulatedDevice>(module, "SimulatedDevice", "A simulated device of a ring. For tests.")
      .def(
          "pause", [](const SimulatedDevice& self) { self.device->pause(); },
          "Nothing runs until resume(): what is enqueued stays in flight.")
      .def(
          "resume", [](const SimulatedDevice& self) { self.device->resume(); }, "Goes on after pause().")
      .def(
          "fail", [](const SimulatedDevice& self) { self.device->fail(); }, "From now on the device refuses.")
      .def(
          "set_capturing",
          [](const SimulatedDevice& self, StreamHandle stream, bool capturing) {
            self.device->set_capturing(stream, capturing);
          },
          py::arg("stream"), py::arg("capturing"), "Whether the stream is being captured into a graph.")
      .def(
          "synchronize",
          [](const SimulatedDevice& self, StreamHandle stream) {
            const py::gil_scoped_release unlocked;
            return self.device->synchronize(stream);
          },
          py::arg("stream"), "Waits until all that was enqueued has run; false when the device has lost it.")
      .def_property_readonly(
          "operations", [](const SimulatedDevice& self) { return self.device->operations(); },
          "Pieces of work taken so far.")
      .def_property_readonly(
          "violations", [](const SimulatedDevice& self) { return self.device->violations(); },
          "Writes beyond an allocation, and launches that found their counters in use.");
  module.def("simulate_device", &simulate_device, py::arg("ring"), py::arg("id") = 0, py::kw_only(),
             py::arg("seed") = 1, py::arg("delay_us") = 20, py::arg("host_tensors") = false,
             py::arg("rung") = "stream_write", py::arg("fails_after") = ~std::uint64_t{0},
             py::arg("early_words") = false, kSimulateDoc);
}

}  // namespace tdcore
