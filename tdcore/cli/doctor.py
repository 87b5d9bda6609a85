"""tdcore doctor: check which functions of tdcore work on this machine, with advice."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tdcore.cli.doctor_check import Check
from tdcore.cli.output import console, human_bytes, print_json
from tdcore.cli.tables import plain_table

__all__ = ["checks", "command"]

FRAMEWORKS = (
    "torch", "lightning", "transformers", "keras", "tensorflow", "jax", "flax", "optax", "mxnet", "xgboost",
    "lightgbm",
)  # fmt: skip
S3_PACKAGES = ("aiobotocore", "obstore")


def command(
    place: Annotated[
        str,
        typer.Argument(help="Folder or s3://bucket/prefix for runs; the command writes a test file there."),
    ] = ".",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what works on this machine: native code, shared memory, disk, CUDA, frameworks, S3.

    Examples:

      [bold]tdcore doctor[/]

      [bold]tdcore doctor /mnt/runs --json[/]

      [bold]tdcore doctor s3://bucket/runs[/]
    """
    if place.lower().startswith("s3://"):
        from tdcore.cli.doctor_s3 import LONGEST_SECONDS
        from tdcore.sinks import shown_place

        where = f"{shown_place(place)} (at most {LONGEST_SECONDS} s without an answer)"
        print(f"tdcore doctor: checking {where}", file=sys.stderr, flush=True)
    found = checks(place)
    good = all(check.state == "ok" for check in found if check.needed)
    if json_output:
        print_json({"good": good, "checks": [asdict(check) for check in found]})
    else:
        _print(found, good)
    raise typer.Exit(0 if good else 3)


def checks(place: str) -> list[Check]:
    """Run all checks. None of them raises, imports a framework, or leaves files."""
    each: list[Callable[[], Check | list[Check]]] = [
        _versions, _native, _memfd, _pidfd, _ring, lambda: _place(place), _cuda,
        lambda: [_package(name, "framework") for name in FRAMEWORKS],
        lambda: [_package(name, "s3") for name in S3_PACKAGES],
    ]  # fmt: skip
    found: list[Check] = []
    for check in each:
        result = check()
        found += result if isinstance(result, list) else [result]
    return found


def _versions() -> Check:
    from tdcore._version import __version__

    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    detail = f"tdcore {__version__}, Python {platform.python_version()}, {system}, {os.cpu_count()} CPUs"
    good = sys.platform == "linux"
    return Check(
        name="versions",
        state="ok" if good else "failed",
        detail=detail,
        needed=True,
        advice="capture needs Linux",
    )


def _native() -> Check:
    try:
        import tdcore._core as _core

        return Check(
            name="native code", state="ok", detail=f"loaded, SIMD level {_core.simd_level()}", needed=True
        )
    except ImportError as error:
        return Check(
            name="native code", state="failed", detail=str(error), needed=True,
            advice="build it: pip install --force-reinstall tdcore-capture, or `make build` in a checkout",
        )  # fmt: skip


def _memfd() -> Check:
    """memfd_create and seals, which the ring needs."""
    try:
        import fcntl

        descriptor = os.memfd_create("tdcore-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        finally:
            os.close(descriptor)
        return Check(name="shared memory", state="ok", detail="memfd_create with seals", needed=True)
    except (OSError, AttributeError) as error:
        return Check(
            name="shared memory", state="failed", detail=f"memfd_create: {error}", needed=True,
            advice="allow memfd_create in this container's seccomp profile",
        )  # fmt: skip


def _pidfd() -> Check:
    """pidfd_open, with which the flusher detects the end of the trainer immediately."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        return Check(name="pidfd", state="ok", detail="pidfd_open works")
    except (OSError, AttributeError) as error:
        return Check(
            name="pidfd", state="missing", detail=f"pidfd_open: {error}",
            advice="nothing to do: the flusher polls the trainer instead (Linux 5.3 has pidfd)",
        )  # fmt: skip


def _ring() -> Check:
    """Write a tensor into a ring, and read its statistics."""
    try:
        import numpy as np

        import tdcore._core as _core

        ring = _core.Ring(data_bytes=1 << 20, slots=64, names_bytes=1 << 16)
        try:
            consumer = _core.Consumer(ring.fd)
            name = ring.intern("doctor", 10)
            values = np.arange(1000, dtype=np.float32)
            ring.capture([values], np.array([name], dtype=np.uint32), np.array([3], dtype=np.uint8), 0, 1, 0)
            drained = consumer.drain(1 << 20, 64)
            layout: Any = _core.ROW_DTYPE
            rows: Any = np.frombuffer(drained.rows, dtype=np.dtype(layout))
            mean = float(rows["stats"]["mean"][0])
            records = int(drained.records)
            del rows
            consumer.release(drained)
            if records != 1 or mean != 499.5:
                raise ValueError(f"{records} records with mean {mean}, expected 1 with 499.5")
        finally:
            ring.close()
        return Check(
            name="ring round trip",
            state="ok",
            detail="a tensor was written, and its statistics were read",
            needed=True,
        )
    except Exception as error:  # any exception is the result of the check
        return Check(
            name="ring round trip", state="failed", detail=f"{type(error).__name__}: {error}", needed=True,
            advice="report this with the output of `tdcore doctor --json`",
        )  # fmt: skip


def _place(place: str) -> list[Check]:
    """A folder, or a place in S3."""
    if not place.lower().startswith("s3://"):
        return [_folder(place), _direct_io(_nearest(place))]
    from tdcore.cli import doctor_s3

    return doctor_s3.checks(place)


def _nearest(folder: str) -> str:
    """The folder, or its nearest existing parent: a hook creates the missing folders."""
    folder = os.path.abspath(folder)
    while not os.path.lexists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _folder(folder: str) -> Check:
    there, wanted = _nearest(folder), os.path.abspath(folder)
    try:
        room = os.statvfs(there)
        free = f"{human_bytes(room.f_bavail * room.f_frsize)} free"
        with tempfile.NamedTemporaryFile(dir=there, prefix=".tdcore-doctor-"):
            pass
        detail = f"{wanted} is writable, {free}"
        if there != wanted:
            detail = f"{wanted} does not exist yet; a run creates it in {there}, which is writable, {free}"
        return Check(name="folder", state="ok", detail=detail, needed=True)
    except OSError as error:
        return Check(
            name="folder", state="failed", detail=f"{there}: {error.strerror or error}", needed=True,
            advice="give a folder that this user may write to: tdcore doctor FOLDER",
        )  # fmt: skip


def _direct_io(folder: str) -> Check:
    """O_DIRECT in the folder: one aligned page."""
    path = None
    try:
        handle, path = tempfile.mkstemp(dir=folder, prefix=".tdcore-doctor-")
        os.close(handle)
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, mmap.PAGESIZE) as page:
                os.write(descriptor, page)
        finally:
            os.close(descriptor)
        return Check(name="direct I/O", state="ok", detail="O_DIRECT works in that folder")
    except (OSError, AttributeError) as error:
        return Check(
            name="direct I/O", state="missing", detail=f"O_DIRECT: {error}",
            advice="nothing to do: files are written through the page cache there",
        )  # fmt: skip
    finally:
        if path is not None:
            os.unlink(path)


def _cuda() -> list[Check]:
    from tdcore.cli import doctor_gpu

    return doctor_gpu.checks()


def _package(name: str, group: str) -> Check:
    """Whether a package, or its build for CPUs, is installed, from its metadata; it is not imported."""
    label = f"{group}: {name}"
    for distribution in (name, f"{name}-cpu"):
        for found in importlib.metadata.distributions(name=distribution):
            return Check(name=label, state="ok", detail=found.version)
    advice = (
        'only needed for runs in S3: pip install "tdcore-capture[s3]"'
        if group == "s3"
        else "needed only if you use it"
    )
    return Check(name=label, state="missing", detail="not installed", advice=advice)


def _print(found: list[Check], good: bool) -> None:
    colours = {"ok": "green", "missing": "yellow", "failed": "red"}
    table = plain_table()
    for column in ("what", "state", "found", "to do"):
        table.add_column(column, overflow="fold")
    for check in found:
        advice = "" if check.state == "ok" else check.advice
        table.add_row(check.name, f"[{colours[check.state]}]{check.state}[/]", check.detail, advice)
    out = console()
    out.print(table)
    out.print(
        "[green]capture works here[/]" if good else "[red]capture does not work here; see the failed lines[/]"
    )
