"""Totals of the operators in a trace of torch.profiler, as an Arrow table.

An operator runs on a thread of the CPU; kernels and copies that it starts run on a device. The trace connects
both by the key "External id". The training process imports this file with the session, so NumPy and pyarrow
are imported in the functions. Threads: any; no state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tdcore.format.profiles import operators_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["operator_totals"]

_ON_CPU = ("cpu_op", "user_annotation")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_EXTERNAL = "External id"


def operator_totals(events: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Totals for each name and category, with the largest self time first.

    The total of an operator includes the operators that it calls; a recursive call counts once. An operator
    that only calls an operator of the same name is one call, as in key_averages() of PyTorch. The time of a
    kernel belongs to the operator that started it, and to the total of each operator around it.
    """
    import pyarrow as pa

    spans = _Spans()
    device: dict[int, int] = {}  # time on a device by the number of its operator
    for event in events:
        if event.get("ph") != "X":
            continue
        category, arguments = event.get("cat"), event.get("args")
        external = arguments.get(_EXTERNAL) if isinstance(arguments, dict) else None
        if category in _ON_CPU:
            spans.add(event, str(category), external)
        elif category in _ON_DEVICE:
            duration = spans.add_device(event, str(category))
            if isinstance(external, int):
                device[external] = device.get(external, 0) + duration
    totals = spans.totals(device)
    rows = sorted(totals.items(), key=lambda each: (-each[1][3], -each[1][4], each[0]))
    columns: list[list[Any]] = [[], [], [], [], [], [], []]
    for (name, category), (calls, cpu_total, device_total, device_self, cpu_self) in rows:
        values = (name, category, calls, cpu_total, cpu_self, device_total, device_self)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, operators_schema(), strict=True)],
        schema=operators_schema(),
    )


class _Spans:
    """Spans of operators on the threads of the CPU, and totals of devices."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        # For each span: number of its name, thread, begin and duration in ns, number of the operator.
        self._key, self._thread = array("q"), array("q")
        self._begin, self._duration, self._external = array("q"), array("q"), array("q")
        self._device: dict[tuple[str, str], list[int]] = {}

    def add(self, event: Mapping[str, Any], category: str, external: object) -> None:
        key = (str(event.get("name")), category)
        thread = (event.get("pid"), event.get("tid"))
        self._key.append(self._keys.setdefault(key, len(self._keys)))
        self._thread.append(self._threads.setdefault(thread, len(self._threads)))
        self._begin.append(round(event["ts"] * 1000))
        self._duration.append(round(event["dur"] * 1000))
        self._external.append(external if isinstance(external, int) else -1)

    def add_device(self, event: Mapping[str, Any], category: str) -> int:
        """Count work on a device. Return its duration in nanoseconds."""
        duration: int = round(event["dur"] * 1000)
        totals = self._device.setdefault((str(event.get("name")), category), [0, 0])
        totals[0] += 1
        totals[1] += duration
        return duration

    def totals(self, device: Mapping[int, int]) -> dict[tuple[str, str], list[int]]:
        """For each name and category: calls, and CPU total, device total, device self, CPU self in ns."""
        keys = list(self._keys)
        found = {key: [0, 0, 0, 0, 0] for key in keys}
        # Open spans of the current thread, innermost last: number of the name, end, time of a device, number
        # of spans directly inside, and of these with the same name.
        stack: list[list[int]] = []
        opened = [0] * len(keys)  # how often each name is open
        current = -1

        def close(count: int) -> None:
            while len(stack) > count:
                number, _, on_device, inside, same = stack.pop()
                if inside == same == 1:
                    found[keys[number]][0] -= 1  # as PyTorch, which counts this pair as one call
                opened[number] -= 1
                if not opened[number]:
                    found[keys[number]][2] += on_device
                if stack:
                    stack[-1][2] += on_device

        for thread, begin, duration, number, external in self._in_order():
            if thread != current:
                close(0)
                current = thread
            while stack and stack[-1][1] <= begin:
                close(len(stack) - 1)
            total = found[keys[number]]
            total[0] += 1
            total[4] += duration
            if stack:
                found[keys[stack[-1][0]]][4] -= duration
                stack[-1][3] += 1
                stack[-1][4] += stack[-1][0] == number
            if not opened[number]:
                total[1] += duration
            on_device = device.get(external, 0) if external >= 0 else 0
            total[3] += on_device
            opened[number] += 1
            stack.append([number, begin + duration, on_device, 0, 0])
        close(0)
        for key, (calls, duration) in self._device.items():
            found[key] = [calls, 0, duration, duration, 0]
        return found

    def _in_order(self) -> Iterable[tuple[int, ...]]:
        """The spans of each thread by their begin; an outer span before the spans inside."""
        import numpy as np

        columns = [
            np.asarray(each, dtype=np.int64)
            for each in (self._thread, self._begin, self._duration, self._key, self._external)
        ]
        order = np.lexsort((-columns[2], columns[1], columns[0]))
        return zip(*(column[order].tolist() for column in columns), strict=True)
