// bindings/device_capsule.hpp: a Python capsule that hands a Device from one extension to another.
//
// The extensions share no symbols. They are compiled from the same headers by the same compiler, so a Device
// has the same virtual table in both. Python never unloads an extension, so the code of a device outlives the
// device. Threads: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "device/device.hpp"

namespace tdcore {

inline constexpr const char* kDeviceCapsule = "tdcore.Device";

/// A capsule that owns the device until take_device() takes it.
inline pybind11::capsule device_capsule(std::unique_ptr<Device> device) {
  auto owner = std::make_unique<std::unique_ptr<Device>>(std::move(device));
  const auto destroy = [](void* pointer) { delete static_cast<std::unique_ptr<Device>*>(pointer); };
  pybind11::capsule capsule(owner.get(), kDeviceCapsule, destroy);
  (void)owner.release();
  return capsule;
}

/// Takes the device out of a capsule. Raises TypeError for any other object.
inline std::unique_ptr<Device> take_device(pybind11::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kDeviceCapsule) == 0)
    throw pybind11::type_error("device must be a capsule named '" + std::string(kDeviceCapsule) +
                               "' of tests._sim");
  return std::move(
      *static_cast<std::unique_ptr<Device>*>(PyCapsule_GetPointer(capsule.ptr(), kDeviceCapsule)));
}

}  // namespace tdcore
