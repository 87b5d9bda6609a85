// CUDA functions for `tdcore doctor` and CI: a report on the machine, and kernels compiled without a device.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "cuda/kernel_image.hpp"
#include "cuda/nvrtc.hpp"
#include "cuda/report.hpp"

namespace py = pybind11;

namespace tdcore {

namespace {

using Folders = std::optional<std::vector<std::string>>;

cuda::KernelOptions options_of(const Folders& folders) {
  cuda::KernelOptions options = cuda::kernel_options_from_environment();
  if (folders.has_value()) options.folders = *folders;
  return options;
}

py::dict device_dict(const cuda::DeviceFinding& finding) {
  py::dict device;
  device["name"] = finding.name;
  device["memory_bytes"] = finding.memory_bytes;
  device["architecture"] = finding.architecture;
  device["mig"] = finding.mig;
  device["mps"] = finding.mps;
  device["reason"] = finding.reason;
  device["kernels"] = finding.kernels;
  device["commit"] = finding.reason.empty() ? commit_mode_name(finding.commit_mode) : "";
  device["commit_reason"] = finding.commit_mode_reason;
  return device;
}

py::dict cuda_report(const Folders& folders) {
  cuda::SystemReport found;
  {
    const py::gil_scoped_release released;  // drivers take seconds to start
    found = cuda::report(options_of(folders));
  }
  py::list devices;
  for (const cuda::DeviceFinding& finding : found.devices) devices.append(device_dict(finding));
  py::dict result;
  result["driver_path"] = found.driver_path;
  result["driver_version"] = found.driver_version == 0 ? "" : cuda::version_text(found.driver_version);
  result["driver_reason"] = found.driver_reason;
  result["devices"] = devices;
  result["nvrtc_path"] = found.nvrtc_path;
  result["nvrtc_version"] = found.nvrtc_version;
  result["fatbin"] = found.fatbin;
  return result;
}

py::bytes compile_kernels(int architecture, const Folders& folders) {
  std::string reason;
  std::string image;
  bool compiled = false;
  {
    const py::gil_scoped_release released;
    for (const std::string& path : cuda::nvrtc_paths(options_of(folders).folders)) {
      const auto nvrtc = cuda::Nvrtc::open(path);
      compiled = nvrtc != nullptr && nvrtc->compile(cuda::kernel_source(), architecture, image, reason);
      if (compiled) break;
    }
  }
  if (!compiled) {
    throw std::runtime_error(reason.empty() ? "no NVRTC was found; pip install \"tdcore-capture[cuda]\""
                                            : reason);
  }
  return py::bytes(image);
}

/// Stores sys.path at the time when the extension is imported: folders of packages that may contain NVRTC.
/// The folders are searched only when a device needs NVRTC.
void note_package_folders() {
  std::vector<std::string> folders;
  PyObject* const path = PySys_GetObject("path");  // borrowed
  if (path == nullptr || PyList_Check(path) == 0) return;
  for (const py::handle folder : py::reinterpret_borrow<py::list>(path)) {
    if (!py::isinstance<py::str>(folder)) continue;
    const char* const text = PyUnicode_AsUTF8(folder.ptr());
    if (text == nullptr) {
      PyErr_Clear();  // a path that is not valid text contains no package of NVIDIA
    } else if (text[0] != '\0') {
      folders.emplace_back(text);
    }
  }
  cuda::set_package_folders(std::move(folders));
}

}  // namespace

void bind_cuda(py::module_& module) {
  note_package_folders();
  module.def(
      "cuda_report", &cuda_report, py::kw_only(), py::arg("folders") = py::none(),
      "Report the state of CUDA on this machine: driver, devices with kernels and way of committing, "
      "NVRTC.\nA reason is empty if the part works. Starts CUDA, so call it only in a process that ends soon "
      "and does\nnot fork afterwards. folders: folders of packages that may contain NVRTC; None: sys.path.");
  module.def("compile_kernels", &compile_kernels, py::arg("architecture"), py::kw_only(),
             py::arg("folders") = py::none(),
             "Compile the kernels with NVRTC for an architecture (90 is compute capability 9.0). Needs no "
             "device.\nReturns a cubin, or PTX if NVRTC cannot generate machine code for the architecture. "
             "Raises RuntimeError\nwith the message of the compiler.");
}

}  // namespace tdcore
