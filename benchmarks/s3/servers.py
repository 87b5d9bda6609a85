"""S3 servers for measurements: they represent another machine, so they must use little of this machine.

A server runs on the last core, and stores its objects in memory if there is room. With `idle` it runs only
while that core is idle. Needs the servers of tests/s3.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.slowdown.machine import tree_cpu_seconds
from tests.s3.servers import RcloneServer, Server, moto_server, rclone_server, stub_server

_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 8 << 30
_LARGE_BYTES = 8 << 20  # larger than all objects that are merged later

SERVERS = ("rclone http", "rclone https", "moto http", "stub http")


@contextlib.contextmanager
def running(name: str, *, idle: bool = False) -> Iterator[Server]:
    """Run the server of this name within the block. Raises tests.s3.servers.NoServerError."""
    kind, scheme = name.split()
    tls = scheme == "https"
    makers = {"rclone": rclone_server, "moto": moto_server, "stub": stub_server}
    with _folders_in_memory():
        made: AbstractContextManager[Server] = makers[kind](tls=tls)
        server = made.__enter__()
    try:
        hold(server.process.pid, idle=idle)
        yield server
    finally:
        made.__exit__(None, None, None)


def hold(group: int, *, idle: bool) -> None:
    """Pin all threads of a process group to the last core; idle: only while no other process needs it."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in _threads_of_group(group):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores[-1:])
            if idle:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def server_cpu_seconds(server: Server) -> float:
    """CPU seconds of the server so far."""
    return tree_cpu_seconds(server.process.pid)


def sweep(server: Server, prefix: str) -> None:
    """Remove every object below `prefix`; directly on the disk if objects are files."""
    if isinstance(server, RcloneServer):
        shutil.rmtree(server.folder / "files" / server.bucket / prefix, ignore_errors=True)
    else:
        client = server.client()
        for key in client.keys_below(prefix):
            client.request("DELETE", key)


def sweep_large(server: RcloneServer) -> tuple[int, int]:
    """Remove the large objects, which are not read again. Returns their number and bytes."""
    count = size = 0
    for path in (server.folder / "files" / server.bucket).rglob("*"):
        if path.is_file() and path.stat().st_size >= _LARGE_BYTES:
            count, size = count + 1, size + path.stat().st_size
            path.unlink()
    return count, size


@contextlib.contextmanager
def _folders_in_memory() -> Iterator[None]:
    """Create temporary folders in memory within the block, if there is room."""
    before = tempfile.tempdir
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED:
        tempfile.tempdir = str(_MEMORY)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _threads_of_group(group: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(entry)) == group:
                found += [int(thread) for thread in os.listdir(f"/proc/{entry}/task")]
    return found
