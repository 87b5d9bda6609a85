"""SegmentFile: one safetensors file with the values of some tensors of a recording. Threads: one."""

from __future__ import annotations

import json

from tdcore.compat.recording import Record
from tdcore.format.layout import PAD_PREFIX
from tdcore.sinks.base import Buffer

__all__ = ["SegmentFile"]

_DATA_START = 4096
_ALIGN = 64


class SegmentFile:
    """Values of tensors, which are kept in memory until the file is written. run_id: id of the run."""

    def __init__(self, run_id: str) -> None:
        self._header: dict[str, object] = {"__metadata__": {"run_id": run_id}}
        self._parts: list[Buffer] = []
        self.size = 0  # bytes of data, without the header

    def add(self, record: Record) -> int:
        """Add a tensor. Returns the place of its values, relative to the beginning of the data."""
        gap = -self.size % _ALIGN
        if gap:
            self._add(f"{PAD_PREFIX}{len(self._parts)}", "U8", [gap], bytes(gap))
        tensor = record.tensor
        dtype, shape = tensor.dtype, list(tensor.shape)
        if dtype == "C128":  # safetensors lacks this type
            dtype, shape = "F64", [*shape, 2]
        name = key = f"{tensor.name}@{tensor.step}"
        number = 1
        while key in self._header:
            number += 1
            key = f"{name}~{number}"
        return self._add(key, dtype, shape, record.content)

    def _add(self, key: str, dtype: str, shape: list[int], content: Buffer) -> int:
        begin, self.size = self.size, self.size + len(content)
        self._header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, self.size]}
        self._parts.append(content)
        return begin

    @property
    def has_tensors(self) -> bool:
        """Whether a tensor was added. A tensor without elements has no bytes."""
        return bool(self._parts)

    def finish(self) -> tuple[list[Buffer], int]:
        """The parts of the file, and the place of its data."""
        text = json.dumps(self._header, separators=(",", ":")).encode()
        start = -(-(8 + len(text)) // _DATA_START) * _DATA_START
        text = text.ljust(start - 8)
        return [len(text).to_bytes(8, "little") + text, *self._parts], start
