"""tdcore, with a run in a bucket of an S3 server on this machine.

The server represents another machine: its CPU time is not counted, its objects are in memory, and it runs on
the last core while that core is idle. Large objects are removed between blocks, so that memory contains at
most those of one block.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from benchmarks.s3.servers import running, sweep_large
from benchmarks.slowdown import machine
from benchmarks.slowdown.tools.base import Job
from benchmarks.slowdown.tools.with_tdcore import Tdcore
from tests.s3.servers import RcloneServer


class TdcoreS3(Tdcore):
    """The hook of `with_tdcore` with another out_dir."""

    def __init__(self, job: Job) -> None:
        self._closing = contextlib.ExitStack()
        server = self._closing.enter_context(running("rclone http", idle=True))
        assert isinstance(server, RcloneServer)
        machine.leave_out(server.process.pid)
        self._server = server
        self._files = self._bytes = 0
        os.environ.update(server.environment, TDCORE_SPOOL=str(job.folder / "spool"))
        super().__init__(job, server.url("run"))

    def block_begins(self, saving: bool) -> None:
        """Remove large objects from the server."""
        self._sweep()
        super().block_begins(saving)

    def close(self) -> dict[str, Any]:
        """Close the hook, and also count the objects in the bucket."""
        said = super().close()
        self._sweep()
        files, size = machine.files_under(Path(self._server.folder, "files"))
        self._closing.close()
        return {**said, "stored": [self._files + files, self._bytes + size]}

    def _sweep(self) -> None:
        files, size = sweep_large(self._server)
        self._files += files
        self._bytes += size


def make(job: Job) -> TdcoreS3:
    """The tool for this job."""
    return TdcoreS3(job)
