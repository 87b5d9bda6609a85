// The stopwatch of a training: class StepTimer.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device/device_ring.hpp"
#include "ring/step_timer.hpp"

namespace py = pybind11;

namespace tdcore {
namespace {

Phase phase_from(std::uint32_t number) {
  if (number >= kPhases)
    throw py::value_error("phase must be 0 to " + std::to_string(kPhases - 1) + ", got " +
                          std::to_string(number));
  return static_cast<Phase>(number);
}

std::shared_ptr<StepTimer> make_timer(const std::shared_ptr<DeviceRing>& ring) {
  return std::make_shared<StepTimer>(std::shared_ptr<Ring>(ring, &ring->ring()));
}

void begin(StepTimer& self, std::int64_t step, std::int32_t mode, std::int64_t mode_step, std::uint32_t phase,
           std::int64_t capture_ns) {
  self.begin({step, mode_step, mode}, phase_from(phase), capture_ns);
}

constexpr const char* kTimerDoc =
    R"(Stopwatch of a training: the time of each step, divided into phases.

Each method ends the current phase. A phase is an index of PHASES in tdcore/format/step_times.py. The rows go to the
queue of the ring, which needs step_times=True.

Threads: calls of other threads than that of the last begin() have no effect, except begin(). In a forked child
nothing is recorded.

Args:
    ring: The ring.)";

constexpr const char* kBeginDoc =
    R"(Begin a step, or continue it after another step.

Args:
    step: Number of the step over all modes.
    mode: A ModeKeys value.
    mode_step: Number of the step within the mode.
    phase: The phase that begins.
    capture_ns: Time that the training's threads have spent in tdcore so far.)";

constexpr const char* kExpectGpuDoc =
    R"(Hold the row of the current step, and all later rows, back until set_gpu() is called for this row.

At most 16 rows are held back. If a further row ends, the oldest one is published without the time of the GPU.

Returns:
    The number of the row, for set_gpu().)";

constexpr const char* kSetGpuDoc =
    R"(Store the time of the GPU of a row. The call has no effect if the row was already published.

Args:
    row: The result of expect_gpu().
    nanoseconds: The time; negative if it is unknown.)";

}  // namespace

void bind_step_timer(py::module_& module) {
  py::class_<StepTimer, std::shared_ptr<StepTimer>>(module, "StepTimer", kTimerDoc)
      .def(py::init(&make_timer), py::arg("ring"))
      .def("begin", &begin, py::arg("step"), py::arg("mode"), py::arg("mode_step"), py::arg("phase"),
           py::arg("capture_ns"), kBeginDoc)
      .def(
          "enter",
          [](StepTimer& self, std::uint32_t phase) {
            return static_cast<std::uint32_t>(self.enter(phase_from(phase)));
          },
          py::arg("phase"), "Begin a phase. Returns the phase that it interrupts, for leave().")
      .def(
          "leave", [](StepTimer& self, std::uint32_t interrupted) { self.leave(phase_from(interrupted)); },
          py::arg("interrupted"), "End a phase, and continue the phase that it has interrupted.")
      .def("begin_optimizer", &StepTimer::begin_optimizer, "The optimizer begins its step.")
      .def("end_optimizer", &StepTimer::end_optimizer, "The optimizer ends its step.")
      .def("end_forward", &StepTimer::end_forward, "The forward of the model has ended.")
      .def(
          "end_backward",
          [](StepTimer& self, std::uint32_t interrupted) { self.end_backward(phase_from(interrupted)); },
          py::arg("interrupted"), "A backward has ended. interrupted: the result of enter().")
      .def(
          "gc_callback",
          [](StepTimer& self, const py::str& phase, const py::object&) {
            if (phase.equal(py::str("start"))) {
              self.begin_gc();
            } else {
              self.end_gc();
            }
          },
          py::arg("phase"), py::arg("info"), "Callback for gc.callbacks.")
      .def("expect_gpu", &StepTimer::expect_gpu, kExpectGpuDoc)
      .def("set_gpu", &StepTimer::set_gpu, py::arg("row"), py::arg("nanoseconds"), kSetGpuDoc)
      .def(
          "finish", &StepTimer::finish, py::arg("capture_ns"),
          "End the last step, and publish all rows. Later calls have no effect. capture_ns: as for begin().");
}

}  // namespace tdcore
