"""System metrics: samples of the machine and the trainer's processes, taken by the flusher.

recorder    when a sample is taken, and when samples are written and merged
machine     CPU, memory, disk and network of the machine
processes   CPU time and memory of the trainer and its children
cgroup      limits of the container
gpus        NVIDIA GPUs, through NVML
host_lock   which flusher of a host samples the machine
"""

from tdcore.flusher.system.recorder import SystemRecorder

__all__ = ["SystemRecorder"]
