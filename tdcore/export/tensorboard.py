"""TensorBoard: event files, one run of TensorBoard for each mode of a worker in an attempt.

    OUT/attempt_0/worker_0/            hyper-parameters, findings and notes
    OUT/attempt_0/worker_0/TRAIN/      numbers and histograms
    OUT/attempt_0/worker_0/EVAL/

The step is the global step of the run, so curves of several modes have one axis. TensorBoard's numbers are
float32. Records are written by TensorBoard's own writer.

Threads: one thread per object.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboard.plugins.histogram import metadata as histogram_plugin
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.scalar import metadata as scalar_plugin
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.record_writer import RecordWriter

from tdcore.export.points import Naming, points

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.export.source import Parameter, Part, Selection, Text

__all__ = ["EventFile", "TensorBoardTarget", "open_target"]

_NAMING = Naming(allowed=r"[^\x00-\x1f\x7f\ud800-\udfff]", max_chars=1000)
_SCALAR = TensorShapeProto()
_SCALAR_METADATA = scalar_plugin.create_summary_metadata(display_name="", description="")
_HISTOGRAM_METADATA = histogram_plugin.create_summary_metadata(
    display_name="", description="Number of elements by magnitude; zeros are in the first bucket."
)
_LARGEST = float(np.finfo(np.float32).max)


class EventFile:
    """One event file, which begins to exist with the first event.

    Attributes:
        path: The file.
        size: Number of bytes that were passed to the operating system.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        writer = f"{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / f"events.out.tfevents.{writer}.{suffix}"
        self.size = 0
        self._file: Any = None
        self._tags: set[str] = set()

    def add(self, step: int, wall_time: float, values: Sequence[Summary.Value]) -> None:
        """Add an event. Only the first value of a tag has metadata. Raises OSError."""
        for value in values:
            if value.tag in self._tags:
                value.ClearField("metadata")
            self._tags.add(value.tag)
        self._write(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))

    def flush(self) -> None:
        """Pass all events to the operating system. Raises OSError."""
        if self._file is not None:
            self._file.flush()
            self.size = self._file.tell()

    def close(self) -> None:
        """Close the file. Raises OSError."""
        if self._file is not None:
            self._file.close()

    def _write(self, event: Event) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
            self._write(Event(wall_time=event.wall_time, file_version="brain.Event:2"))
        RecordWriter(self._file).write(event.SerializeToString())


class TensorBoardTarget:
    """Event files below a folder.

    Args:
        folder: The folder.
        selection: Statistics and histograms that are exported.
        suffix: End of the names of the files.
    """

    def __init__(self, folder: Path, selection: Selection, suffix: str = "tdcore") -> None:
        self._folder = folder
        self._selection = selection
        self._suffix = suffix
        self._files: dict[str, EventFile] = {}
        self._part = ""

    def begin(self, part: Part, parameters: Mapping[str, Parameter]) -> None:
        """See Target.begin."""
        self._part = part.label
        summary = hparams.hparams_pb(dict(parameters), trial_id=f"{part.run_id}/{part.label}")
        self.file(part.label).add(0, time.time(), summary.value)

    def write(self, batch: pa.Table) -> int:
        """See Target.write. The rows may be of several workers and attempts."""
        count = 0
        for point in points(batch, self._selection, _NAMING, mode_in_name=False):
            values = [scalar(tag, number) for tag, number in point.values]
            if point.histogram is not None:
                values.append(_histogram(*point.histogram))
            if values:
                self.file(point.label).add(point.step, point.time, values)
            count += len(values)
        return count

    def end(self, texts: Sequence[Text]) -> None:
        """See Target.end."""
        self.add_texts(self._part, texts)
        self.close()

    def add_texts(self, label: str, texts: Sequence[Text]) -> None:
        """Add findings and notes to a run of TensorBoard."""
        now = time.time()
        for text in texts:
            shown = text.text.replace("\n", "\n\n").encode()
            tag = _NAMING.tag(f"{text.kind}s/{text.name}" if text.kind != "missing" else "missing")
            value = Summary.Value(
                tag=tag,
                metadata=text_plugin.create_summary_metadata(display_name=None, description=None),
                tensor=TensorProto(dtype=DT_STRING, tensor_shape=_SCALAR, string_val=[shown]),
            )
            self.file(label).add(text.step or 0, now, [value])

    def file(self, label: str) -> EventFile:
        """The event file of a run of TensorBoard."""
        if label not in self._files:
            self._files[label] = EventFile(self._folder / label, self._suffix)
        return self._files[label]

    def flush(self) -> dict[str, int]:
        """Pass all events to the operating system; return the size of each file below the folder."""
        for file in self._files.values():
            file.flush()
        return {str(each.path.relative_to(self._folder)): each.size for each in self._files.values()}

    def close(self) -> None:
        """Close all files; the next event begins new ones."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def scalar(tag: str, number: float) -> Summary.Value:
    """A number in float32, because TensorBoard's data server skips numbers in float64.

    A finite number that float32 cannot represent becomes the largest one, so that it is not shown as
    infinite.
    """
    near = min(max(number, -_LARGEST), _LARGEST) if math.isfinite(number) else number
    return Summary.Value(tag=tag, metadata=_SCALAR_METADATA, simple_value=near)


def _histogram(tag: str, buckets: npt.NDArray[np.float64]) -> Summary.Value:
    """A histogram of magnitudes, with its buckets unchanged."""
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in buckets.shape])
    content = np.ascontiguousarray(buckets).tobytes()
    tensor = TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, tensor_content=content)
    return Summary.Value(tag=tag, metadata=_HISTOGRAM_METADATA, tensor=tensor)


@contextmanager
def open_target(place: Path, selection: Selection, name: str) -> Iterator[TensorBoardTarget]:
    """See tdcore.export.target.open_target."""
    target = TensorBoardTarget(place, selection)
    try:
        yield target
    finally:
        target.close()
