// device_ring.hpp: a trainer's ring together with the devices that write to its lanes.
//
// Ring does not depend on devices; DeviceSet needs the ring. This class owns both, and closes the devices
// first, because they write to the lanes. Threads: as for Ring and DeviceSet.
#pragma once

#include <memory>
#include <utility>

#include "device/device_set.hpp"
#include "ring/ring.hpp"

namespace tdcore {

class DeviceRing {
 public:
  /// `open` opens a device at its first use. Throws the exceptions of Ring's constructor.
  DeviceRing(const RingConfig& config, DeviceFactory open)
      : ring_(config),
        devices_(config.device_lanes > 0 ? std::make_unique<DeviceSet>(ring_, std::move(open)) : nullptr) {}
  ~DeviceRing() { close(); }
  DeviceRing(const DeviceRing&) = delete;
  DeviceRing& operator=(const DeviceRing&) = delete;

  Ring& ring() noexcept { return ring_; }
  const Ring& ring() const noexcept { return ring_; }
  DeviceSet* devices() const noexcept { return devices_.get(); }  // null without lanes

  /// DeviceSet::close(), then Ring::close().
  void close() noexcept {
    if (devices_) devices_->close();
    ring_.close();
  }

 private:
  Ring ring_;
  const std::unique_ptr<DeviceSet> devices_;  // destroyed before the ring
};

}  // namespace tdcore
