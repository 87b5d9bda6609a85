"""NVIDIA GPUs of the machine, through NVML. Needs the package nvidia-ml-py and a driver.

A value that a GPU does not support is missing. Threads: the flusher's only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tdcore.flusher.messages import print_message

__all__ = ["Gpus"]

_ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink counter
_DEVICES = "/dev"


class Gpus:
    """Samples of all GPUs; without a driver there are none. devices: folder of the device files."""

    def __init__(self, devices: str = _DEVICES) -> None:
        self._nvml: Any = None
        self._handles: list[tuple[int, str | None, Any]] = []
        self._counters: dict[int, dict[str, int]] = {}
        try:
            import pynvml
        except ImportError:
            if os.path.exists(os.path.join(devices, "nvidiactl")):
                print_message(
                    "GPU metrics are not recorded, because the package nvidia-ml-py is not installed: "
                    'pip install "tdcore-capture[gpu]"'
                )
            return
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._value(pynvml.nvmlDeviceGetUUID, handle)
                self._handles.append((index, uuid, handle))
        except pynvml.NVMLError as error:
            if not isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)):
                print_message(f"GPU metrics are not recorded: NVML failed: {error}")

    def sample(self) -> dict[str, Any]:
        """Column gpus, one entry per GPU; empty without GPUs."""
        if not self._handles:
            return {}
        return {"gpus": [self._gpu(*each) for each in self._handles]}

    def close(self) -> None:
        """Release NVML."""
        if self._nvml is not None:
            self._value(self._nvml.nvmlShutdown)
            self._nvml, self._handles = None, []

    def _gpu(self, index: int, uuid: str | None, handle: Any) -> dict[str, Any]:
        nvml, value = self._nvml, self._value
        utilization = value(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = value(nvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = value(nvml.nvmlDeviceGetPowerUsage, handle)
        return {
            "index": index,
            "uuid": uuid,
            "utilization_percent": utilization.gpu if utilization is not None else None,
            "memory_total": memory.total if memory is not None else None,
            "memory_used": memory.used if memory is not None else None,
            "power_watts": milliwatts / 1000 if milliwatts is not None else None,
            "temperature_celsius": value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "sm_clock_mhz": value(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": value(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "throttle_reasons": value(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            **self._traffic(index, handle),
        }

    def _traffic(self, index: int, handle: Any) -> dict[str, int]:
        """Bytes over PCIe and NVLink since the previous sample. One call reads all counters."""
        nvml = self._nvml
        fields = {
            "pcie_sent_bytes": (nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
            "pcie_received_bytes": (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
            "nvlink_sent_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS, 1024),
            "nvlink_received_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS, 1024),
        }
        found = self._value(
            nvml.nvmlDeviceGetFieldValues, handle, [(field, scope) for field, scope, _ in fields.values()]
        )
        before, now = self._counters.get(index, {}), {}
        for (name, (_, _, unit)), each in zip(fields.items(), found or (), strict=False):
            if each.nvmlReturn == nvml.NVML_SUCCESS and each.valueType in (
                nvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
                nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            ):
                now[name] = int(each.value.ullVal) * unit
        self._counters[index] = now
        return {name: max(0, now[name] - before[name]) for name in now if name in before}

    def _value(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Result of an NVML function; None if this GPU or driver does not support it."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None
