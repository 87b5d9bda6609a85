"""Tensors that seem to be on a CUDA device: host memory with the protocols of the frameworks.

A simulated device (`tests._sim`) captures them; its memory is host memory, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tdcore import _core
from tdcore.session.ring_config import RingConfig
from tests.capturing import Array, Captured, Tap

CUDA, ROCM = 2, 10

# Small, with room for one device, whether this machine has one or not.
RING = RingConfig(
    ring_bytes=1 << 22,
    slots=1024,
    names_bytes=1 << 20,
    device_lanes=1,
    device_ring_bytes=1 << 23,
    device_arena_bytes=1 << 22,
)


class InterfaceArray:
    """__cuda_array_interface__, as in CuPy (a device with an id), or as in Numba (`numba=True`)."""

    def __init__(
        self,
        values: Array,
        *,
        stream: int | None = 7,
        device: int = 0,
        version: int = 3,
        numba: bool = False,
        mask: object = None,
        named_dtype: bool = True,
    ) -> None:
        self.values = values
        self._interface: dict[str, Any] = {
            "data": (values.__array_interface__["data"][0], False),
            "shape": values.shape,
            "strides": None if values.flags.c_contiguous else values.strides,
            "typestr": values.dtype.str,
            "version": version,
            "mask": mask,
        }
        if version >= 3:
            self._interface["stream"] = stream
        if named_dtype:
            self.dtype = values.dtype
        place = type("Device", (), {"id": device})()
        if numba:
            context = type("Context", (), {"device": place})()
            self.gpu_data = type("Memory", (), {"context": context})()
        else:
            self.device = place

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_EXCHANGE, _LEGACY = b"dlpack_exchange_api", b"dltensor"  # capsules point at their names
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def _fill(tensor: _Tensor, values: Array, device: tuple[int, int]) -> list[Any]:
    """Describe the values; return the objects that must live as long as the description."""
    shape = (ctypes.c_int64 * max(values.ndim, 1))(*values.shape)
    strides = (ctypes.c_int64 * max(values.ndim, 1))(*(s // values.itemsize for s in values.strides))
    tensor.data = values.__array_interface__["data"][0]
    tensor.device_type, tensor.device_id = device
    tensor.ndim = values.ndim
    tensor.code, tensor.bits, tensor.lanes = _CODES[values.dtype.kind], values.itemsize * 8, 1
    tensor.shape, tensor.strides = shape, strides
    tensor.byte_offset = 0
    return [shape, strides]


_LENT: list[Any] = []  # exports and their owners, kept forever: a deleter cannot free itself while it runs


class DlpackArray:
    """Only __dlpack__ and __dlpack_device__, as in JAX and TensorFlow on a GPU.

    Counts exports and their returns.
    """

    def __init__(self, values: Array, device: tuple[int, int] = (CUDA, 0)) -> None:
        self.values = values
        self.device = device
        self.streams: list[object] = []  # the streams of the exports
        self.returned = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: object = None) -> Any:
        self.streams.append(stream)
        managed = _Managed()

        def take_back(address: int) -> None:
            self.returned += 1

        deleter = _Deleter(take_back)
        managed.deleter = deleter
        kept = _fill(managed.tensor, self.values, self.device)
        _LENT.append((self, managed, deleter, kept))
        return _new_capsule(ctypes.addressof(managed), _LEGACY, None)


class Buffered(bytearray):
    """A buffer on a device: reading the buffer would copy from the device, and wait."""

    def __new__(cls, *arguments: Any) -> Buffered:
        return super().__new__(cls)

    def __init__(self, array: DlpackArray) -> None:
        super().__init__(b"host copy")
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: object = None) -> Any:
        return self.array.__dlpack__(stream=stream)


_TensorFrom = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
_CurrentStream = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class _ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from", ctypes.c_void_p),
        ("managed_to", ctypes.c_void_p),
        ("tensor_from", _TensorFrom),
        ("current_work_stream", _CurrentStream),
    )


def _tensor_from(tensor: Any, out: Any) -> int:
    tensor.kept = _fill(out.contents, tensor.values, tensor.place)
    return 0


def _current_work_stream(kind: int, device: int, out: Any) -> int:
    ExchangeTensor.asked.append((kind, device))
    out[0] = ExchangeTensor.current.get(device, 0)
    return 0


_API = _ExchangeApi(
    1, 3, None, None, None, None, _TensorFrom(_tensor_from), _CurrentStream(_current_work_stream)
)


class ExchangeTensor:
    """DLPack's exchange table, as in PyTorch from 2.10 on. current: device -> current stream."""

    __dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(_API), _EXCHANGE, None)
    current: ClassVar[dict[int, int]] = {}
    asked: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, values: Array, place: tuple[int, int] = (CUDA, 0)) -> None:
        self.values = values
        self.place = place
        self.kept: Sequence[Any] = ()


def numbers(count: int = 12, dtype: type[Any] = np.float32) -> Array:
    """Return an array of values."""
    return np.arange(count).astype(dtype) - 3


class DeviceTap(Tap):
    """A ring with device lanes, and its consumer."""

    def __init__(self, *, lanes: int = 2) -> None:
        self.ring = _core.Ring(
            data_bytes=1 << 22,
            slots=256,
            policy="drop",
            device_lanes=lanes,
            device_lane_bytes=1 << 22,
            device_lane_slots=256,
            device_arena_bytes=1 << 20,
        )
        self.consumer = _core.Consumer(self.ring.fds)

    def rows(self, count: int) -> Captured:
        """Return the next rows, after the devices have committed them."""
        rows: list[Any] = []
        payloads: list[bytes | None] = []
        for _ in range(100_000):
            captured = self.take()
            rows += list(captured.rows)
            payloads += captured.payloads
            if len(rows) >= count:
                break
        assert len(rows) == count
        return Captured(np.array(rows, captured.rows.dtype), payloads)

    def errors(self) -> list[str]:
        return [report["error"] for report in self.ring.device_reports()]
