// Captures of tensors on devices, and methods of class Ring for devices.
//
// Captures enqueue work with the GIL held, which takes microseconds: another thread could keep the GIL for 5
// ms at each of the hundreds of captures of a step. If the queue of the driver is full, a call waits until a
// launch has run. The following calls are made without the GIL (DeviceSet::may_wait). The GIL is also
// released while a device is set up and while a capture waits for room.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/device_capsule.hpp"
#include "bindings/thread_scratch.hpp"
#include "device/device_ring.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

py::dict report_dict(const NumberedReport& numbered) {
  const DeviceReport& report = numbered.report;
  py::dict result;
  result["device"] = numbered.device;
  result["name"] = report.info.name;
  result["kernels"] = report.info.kernels;
  result["rung"] = commit_mode_name(report.commit_mode);
  result["rung_reason"] = report.info.commit_mode_reason;
  result["arena_bytes"] = report.arena_bytes;
  result["ring_bytes"] = report.ring_bytes;
  result["arena_waits"] = report.arena_waits;
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
  if (devices == nullptr) return self.ring().mark_step_end(step);
  if (!devices->may_wait()) return devices->mark_step_end(step);
  const py::gil_scoped_release unlocked;
  return devices->mark_step_end(step);
}

void close_ring(DeviceRing& self) {
  {
    const py::gil_scoped_release unlocked;
    self.close();
  }
  if (self.devices() != nullptr) (void)self.devices()->take_read();
}

void use_device(const DeviceRing& self, int device, py::handle capsule, bool host_tensors) {
  DeviceSet* const devices = self.devices();
  if (devices == nullptr)
    throw py::value_error("the ring has no device lanes; create the Ring with device_lanes=1");
  // A factory must be copyable, and a device is not, so the device is in a shared pointer.
  const auto given = std::make_shared<std::unique_ptr<Device>>(take_device(capsule));
  if (!devices->set_factory(device, [given](int, std::string&) { return std::move(*given); }))
    throw py::value_error("device " + std::to_string(device) +
                          " is already in use; replace it before the first capture");
  if (host_tensors) devices->redirect_host(device);
}

CaptureResult capture_group(DeviceSet& devices, ThreadScratch& scratch, const DeviceGroup& group,
                            const StepContext& step_context) {
  if (!devices.may_wait(group.device))
    return devices.capture(group, step_context, {wait_without_gil, &scratch});
  CaptureResult result;
  scratch.without_gil([&] { result = devices.capture(group, step_context, {wait_plainly, nullptr}); });
  return result;
}

std::vector<int> graph_devices(const DeviceRing& self) {
  return self.devices() != nullptr ? self.devices()->devices_with_graphs() : std::vector<int>();
}

bool arm_graphs(DeviceRing& self, int device, StreamHandle stream) {
  DeviceSet* const devices = self.devices();
  if (devices == nullptr) return false;
  if (!devices->may_wait(device)) return devices->arm_graphs(device, stream);
  const py::gil_scoped_release unlocked;
  return devices->arm_graphs(device, stream);
}

std::uint64_t collect_graphs(DeviceRing& self, int device, StreamHandle stream, std::int64_t step,
                             std::uint32_t mode, std::int64_t mode_step) {
  DeviceSet* const devices = self.devices();
  if (devices == nullptr) return 0;
  const StepContext step_context{.step = step, .mode_step = mode_step, .mode = mode, .call = 0};
  // One record per capture call in the graphs: it may wait for room, and enqueues as much as a saved step.
  const py::gil_scoped_release unlocked;
  return devices->collect_graphs(device, stream, step_context, {wait_plainly, nullptr}).not_kept;
}

constexpr const char* kCollectGraphsDoc =
    R"(Capture the statistics that replays of CUDA graphs have computed since arm_graphs(), and end the computation.

Each tensor of a capture call on a stream that was being captured into a graph has one row, if its graph was replayed.
Of several replays the last one counts. A tensor that was captured outside of a graph since arm_graphs() has no further
row. A tensor whose values were requested is counted as `graph_capture`, and its row has the reason. Releases the GIL.

Args:
    device: Number of the device.
    stream: The stream on which the graphs were replayed, or a stream that waits for the replays.
    step: Global step.
    mode: 1 train, 2 eval, 3 predict, 4 global.
    mode_step: Step within the mode.

Returns:
    The number of tensors without room for a record. counters() also has the tensors that are dropped later.)";

}  // namespace

CaptureResult capture_with_devices(Ring& ring, DeviceSet& devices, ThreadScratch& scratch,
                                   const StepContext& step_context) {
  (void)devices.take_read();  // exports are released here, with the GIL
  for (const TensorRequest& request : scratch->requests) {
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
    for (const TensorRequest& request : groups.host) {
      if (request.status == EntryStatus::kOk && request.flags != 0) bytes += view_bytes(request.tensor);
    }
    add(capture_in_host_memory(ring, scratch, groups.host, step_context, bytes));
  }
  for (const DeviceGroup& group : groups.on_devices())
    add(capture_group(devices, scratch, group, step_context));
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
      "Mark this step and all earlier steps as complete, after all captured tensors. -1 announces that steps "
      "will be marked. Returns False if there is no room.");
  add(
      "prepare_device",
      [](DeviceRing& self, int device) {
        const py::gil_scoped_release unlocked;
        return self.devices() != nullptr && self.devices()->prepare(device);
      },
      py::arg("device"),
      "Set up a CUDA device, which its first capture would do otherwise. Returns whether the device's "
      "tensors can be captured; device_refusals() has the reason if they cannot. Must not be called while a "
      "stream of the device is being captured into a CUDA graph.");
  add(
      "device_refusals",
      [](const DeviceRing& self) {
        return self.devices() != nullptr ? self.devices()->refusals() : std::string();
      },
      "Reasons why devices of captured tensors are not used, one per line; empty if all are used.");
  add("device_reports", &device_reports,
      "A report for each device of captured tensors: device, name, kernels, rung (the way to commit "
      "records), rung_reason, arena_bytes, ring_bytes, arena_waits, early_commits, in_flight, error.");
  add(
      "wish_device_sizes",
      [](DeviceRing& self, int device, std::uint64_t ring_bytes, std::uint64_t arena_bytes) {
        const py::gil_scoped_release unlocked;  // waits while another thread sets a device up
        return self.devices() != nullptr && self.devices()->wish(device, ring_bytes, arena_bytes);
      },
      py::arg("device"), py::arg("ring_bytes"), py::arg("arena_bytes"),
      "Sizes of the lane and of the arena of a device that is not set up yet. The lane gets at most "
      "device_lane_bytes. An arena above device_arena_bytes takes at most 1/50 of the free memory of the "
      "device. If the system refuses a size, the configured size is used. Returns False if the device is set "
      "up already, or has no lane.");
  add("graph_devices", &graph_devices,
      "Numbers of the devices with CUDA graphs that contain capture calls. A graph that has ended is "
      "included until the next capture into a graph, or arm_graphs().");
  add("arm_graphs", &arm_graphs, py::arg("device"), py::arg("stream"),
      "Make replays of CUDA graphs compute the statistics of their tensors, from this place of the stream "
      "on, until collect_graphs(). Replays on other streams must wait for this stream. Returns False if no "
      "graph contains a capture call, if the stream is being captured, or if the device has failed.");
  add("collect_graphs", &collect_graphs, py::arg("device"), py::arg("stream"), py::arg("step"),
      py::arg("mode"), py::arg("mode_step"), kCollectGraphsDoc);
  add("close", &close_ring, "Wait for calls in progress and unmap the memory. A further call has no effect.");
  add("_use_device", &use_device, py::arg("id"), py::arg("device"), py::kw_only(), py::arg("host_tensors"),
      "For tests: capture tensors of device `id` with the device in a capsule of tests._sim.\nWith "
      "host_tensors, tensors in host memory are captured as if they were on this device.\nRaises ValueError "
      "if the ring has no device lanes or the device is in use.");
}

}  // namespace tdcore
