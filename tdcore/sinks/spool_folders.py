"""Paths of the spools on this machine: one folder per run, worker and attempt. Imports no S3 client."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from tdcore.errors import SinkError
from tdcore.sinks.s3.options import parse_s3_url

__all__ = ["attempt_spool", "journal_path", "spool_root", "worker_spools"]


def worker_spools(url: str, worker: str) -> Path:
    """Folder of all spools of `worker` of the run at `url` on this machine, which need not exist.

    Raises SinkError if no folder for spools can be written.
    """
    place = parse_s3_url(url)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{place.bucket}-{place.prefix}").strip("-")[:80]
    full = f"{place.options.endpoint_url or ''} {place.where}"
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]  # so that two places have different folders
    return (
        _writable(spool_root(place.options.spool), requested=place.options.spool)
        / f"{name}-{digest}"
        / worker
    )


def attempt_spool(spools: Path, attempt: int, run_id: str) -> Path:
    """The spool of one attempt within worker_spools(). A new run at the same place has another spool."""
    return spools / f"{attempt:04d}-{run_id[:8]}"


def journal_path(spool: Path) -> Path:
    """The journal of an attempt's flushers, in its spool, which exists until a flusher ends normally."""
    return spool / "journal"


def spool_root(requested: str | None = None) -> Path:
    """Folder of all spools: `requested`, else $TDCORE_SPOOL, else in the user's state folder."""
    if requested or (requested := os.environ.get("TDCORE_SPOOL")):
        return Path(requested).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state).absolute() / "tdcore" / "spool"


def _writable(root: Path, requested: str | None) -> Path:
    """`root`, or a folder for temporary files if the user's home cannot be written."""
    error = _write_error(root)
    if error is None:
        return root
    if not requested and "TDCORE_SPOOL" not in os.environ:
        other = Path(tempfile.gettempdir()).absolute() / f"tdcore-spool-{os.getuid()}"
        if _write_error(other) is None:
            return other
    raise SinkError(
        f"cannot write to {root}, the folder of spools: {error.strerror}; set "
        "another with TDCORE_SPOOL, or with ?spool=FOLDER in the s3:// URL",
        kind="denied",
        errno=error.errno,
    )


def _write_error(folder: Path) -> OSError | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error
