"""System metrics: samples of the machine and the trainer's processes, taken by the flusher.

recorder    when a sample is taken, and when samples are written and merged
machine     CPU, memory, disk and network of the machine
processes   CPU time and memory of the trainer and its children
cgroup      limits of the container
gpus        NVIDIA GPUs, through NVML
host_lock   which flusher of a host samples the machine
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tdcore.flusher.system.recorder import SystemRecorder
from tdcore.format.layout import FileRange

if TYPE_CHECKING:
    from tdcore.flusher.options import FlusherOptions
    from tdcore.sinks.base import Sink

__all__ = ["SystemRecorder", "recorder_of"]


def recorder_of(
    job: Mapping[str, Any], sink: Sink, options: FlusherOptions, trainer_pid: int, *, continues: bool
) -> SystemRecorder | None:
    """The recorder of a flusher's job; None if the options switch it off. continues: see SystemRecorder."""
    if not options.system_interval:
        return None
    return SystemRecorder(
        sink,
        FileRange(job["worker"], job["attempt"], 0, 0),
        trainer_pid=trainer_pid,
        run_id=job.get("run_id", ""),
        options=options,
        continues=continues,
    )
