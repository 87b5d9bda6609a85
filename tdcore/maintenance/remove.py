"""Remove a run or one attempt of a run: only files that tdcore wrote.

A file belongs to tdcore if format/layout.py defines its name within the run, or if it has the temporary name
of an unfinished write. Links in a folder are not followed and not removed: every folder is opened below the
folder of the run. Other files and their folders are not removed. Threads: any; one removal of a run at a
time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tdcore.errors import ConfigError, RunCorrupt, RunNotFound, SinkKeyError
from tdcore.format.layout import RUN_KEY, end_key
from tdcore.liveness import process_is_gone
from tdcore.sinks import Sink, is_remote, local_path, open_sink, place_text, shown_place
from tdcore.sinks.base import delete_all

__all__ = ["Removed", "remove_run", "writers"]

_WORKER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
# A group named "attempt" is the number of an attempt. run.json is removed last, because the run exists as
# long as run.json exists.
_OURS = re.compile(
    rf"(?:index/{_WORKER}/(?P<index>[0-9]{{4}})-[0-9]{{12}}-[0-9]{{12}}\.parquet"
    rf"|data/{_WORKER}/(?P<data>[0-9]{{4}})-[0-9]{{12}}-[0-9]{{12}}\.safetensors"
    rf"|system/{_WORKER}/{_WORKER}/(?P<system>[0-9]{{4}})-[0-9]{{12}}-[0-9]{{12}}\.parquet"
    rf"|time/{_WORKER}/(?P<time>[0-9]{{4}})-[0-9]{{12}}-[0-9]{{12}}\.parquet"
    rf"|profiles/{_WORKER}/(?P<profile>[0-9]{{4}})-[0-9]{{4}}"
    r"\.(?:json|trace\.json\.gz|operators\.parquet|functions\.parquet|pstats)"
    rf"|end/{_WORKER}/(?P<end>[0-9]{{4}})\.json"
    rf"|control/(?:stop|capture)-(?P<control>[0-9]{{4}})(?:-[0-9]{{4}})?\.json"
    rf"|attempts/(?P<claim>[0-9]{{4,}})-{_WORKER}\.json"
    r"|tensorboard/attempt_(?P<export>[0-9]+)/"  # tdcore/export/follow.py
    rf"(?:\.tdcore-follow\.(?:json|json\.new|lock)|{_WORKER}/(?:[A-Z]+/)?events\.[^/]+\.tdcore-follow)"
    rf"|findings/{_WORKER}\.jsonl|collections/{_WORKER}\.json|collections\.json|run\.json)",
    re.ASCII,
)
_TEMPORARY = re.compile(r"(?:[a-z]+/(?:[^/]+/){0,2})?\.tmp-[0-9a-f]{16}-[^/]*")
_FOLDERS = re.compile(
    rf"(?:index|data|time|end|profiles)(?:/{_WORKER})?|system(?:/{_WORKER}){{0,2}}"
    r"|control|attempts|findings|collections"
    rf"|tensorboard(?:/attempt_[0-9]+(?:/{_WORKER}(?:/[A-Z]+)?)?)?",
    re.ASCII,
)
_CLAIM = re.compile(r"attempts/([0-9]{4,})-(.+)\.json", re.ASCII)


@dataclass(slots=True, kw_only=True)
class Removed:
    """Totals of removed files. kept: paths of files that tdcore did not write, relative to the run."""

    files: int = 0
    bytes: int = 0
    kept: list[str] = field(default_factory=list)


def writers(place: str | os.PathLike[str], attempt: int | None = None) -> list[str]:
    """Processes that may write to the run, or to one attempt, as text. Raises RunNotFound, SinkError."""
    url = place_text(place)
    with closing(open_sink(url)) as sink:
        run = _run_of(sink, url)
        found = [f"a flusher of this machine (process {pid})" for pid in _flushers(run, attempt)]
        for number, worker, claim in _claims(sink):
            if attempt is not None and number != attempt:
                continue
            host, pid, started = (claim.get(name) for name in ("host", "pid", "started_ns"))
            try:
                sink.get(end_key(worker, number))
                continue  # this attempt has ended, even if the process still exists
            except (SinkKeyError, ValueError):
                pass
            if isinstance(host, str) and isinstance(pid, int) and isinstance(started, int):
                gone = process_is_gone(host, pid, started)
                if gone is None:
                    found.append(f"{worker} of attempt {number} on {host}, which has no end file")
                elif not gone:
                    found.append(f"{worker} of attempt {number} (process {pid})")
    return found


def remove_run(place: str | os.PathLike[str], attempt: int | None = None) -> Removed:
    """Remove the run at `place`, or one attempt, without a check for writers: see writers().

    After an error the removed files stay removed. Call the function again to remove the others.

    Raises:
        RunNotFound: There is no run.
        RunCorrupt: run.json is not the file of a run.
        ConfigError: The place is a link, or the run has no other attempt.
        SinkError: A file cannot be removed.
    """
    url = place_text(place)
    with closing(open_sink(url)) as sink:
        run = _run_of(sink, url)
        if attempt is not None:
            _check_attempt(run, attempt, url)

        def chosen(key: str) -> bool:
            match = _OURS.fullmatch(key)
            if attempt is None:
                return match is not None or _TEMPORARY.fullmatch(key) is not None
            return match is not None and attempt in {int(each) for each in match.groups() if each is not None}

        removed = Removed()
        if is_remote(url):
            _remove_keys(sink, chosen, removed)
        else:
            _remove_files(local_path(url), chosen, removed)
        if attempt is not None:
            removed.kept = []
            _forget_attempt(sink, run, attempt)
    return removed


def _run_of(sink: Sink, url: str) -> dict[str, Any]:
    where = shown_place(url)
    if not is_remote(url) and os.path.islink(local_path(url)):
        raise ConfigError(f"{where} is a link; give the folder that it points to")
    try:
        run = json.loads(sink.get(RUN_KEY))
    except SinkKeyError as error:
        raise RunNotFound(f"there is no run at {where}: it has no {RUN_KEY}") from error
    except ValueError:
        run = None
    if not isinstance(run, dict) or not isinstance(run.get("run_id"), str):
        raise RunCorrupt(
            f"{where}/{RUN_KEY} is not the file of a run; nothing was removed, delete the folder by hand"
        )
    return run


def _check_attempt(run: dict[str, Any], attempt: int, url: str) -> None:
    entries = run.get("attempts")
    numbers = (
        [one.get("attempt") for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
    )
    if attempt not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise ConfigError(f"{shown_place(url)} has no attempt {attempt}; it has {known}")
    if len(numbers) == 1:
        raise ConfigError(f"attempt {attempt} is the only one of {shown_place(url)}; remove the run")


def _claims(sink: Sink) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for key in sink.list("attempts/"):
        match = _CLAIM.fullmatch(key)
        if match is None:
            continue
        try:
            claim = json.loads(sink.get(key))
        except (SinkKeyError, ValueError):
            continue
        if isinstance(claim, dict):
            yield int(match[1]), match[2], claim


def _flushers(run: dict[str, Any], attempt: int | None) -> Iterator[int]:
    """Processes of this machine that write the run, found by the run's id in their command line."""
    import psutil

    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] == psutil.STATUS_ZOMBIE or len(words) < 2:
            continue
        with contextlib.suppress(ValueError, TypeError):
            job = json.loads(words[-1]) if run["run_id"] in words[-1] else {}
            if job.get("run_id") == run["run_id"] and attempt in (None, job.get("attempt")):
                yield process.pid


def _remove_keys(sink: Sink, chosen: Callable[[str], bool], removed: Removed) -> None:
    keys = sink.list("")
    mine = [key for key in keys if chosen(key)]
    last = [key for key in mine if key == RUN_KEY]
    delete_all(sink, [key for key in mine if key != RUN_KEY])
    delete_all(sink, last)
    removed.files = len(mine)
    removed.kept = sorted(set(keys) - set(mine))


def _remove_files(root: str, chosen: Callable[[str], bool], removed: Removed) -> None:
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _remove_below(top, "", chosen, removed)
        if chosen(RUN_KEY):
            _unlink(top, RUN_KEY, RUN_KEY, removed)
    finally:
        os.close(top)
    if chosen(RUN_KEY) and not removed.kept:
        with contextlib.suppress(OSError):  # a file was added in the meantime
            os.rmdir(root)
    removed.kept.sort()


def _remove_below(folder: int, prefix: str, chosen: Callable[[str], bool], removed: Removed) -> None:
    """Remove all files except run.json. folder: a descriptor. prefix: its key prefix."""
    with os.scandir(folder) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_folder in entries:
        key = prefix + name
        if is_folder and _FOLDERS.fullmatch(key):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inside = os.open(name, flags, dir_fd=folder)
            try:
                _remove_below(inside, f"{key}/", chosen, removed)
            finally:
                os.close(inside)
            with contextlib.suppress(OSError):  # the folder is not empty
                os.rmdir(name, dir_fd=folder)
        elif is_folder or not chosen(key):
            removed.kept += [key] * (key != RUN_KEY)
        elif key != RUN_KEY:
            _unlink(folder, name, key, removed)


def _unlink(folder: int, name: str, key: str, removed: Removed) -> None:
    """Remove a regular file; links and special files stay."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        removed.kept.append(key)
        return
    os.unlink(name, dir_fd=folder)
    removed.files += 1
    removed.bytes += found.st_size


def _forget_attempt(sink: Sink, run: dict[str, Any], attempt: int) -> None:
    """Remove the attempt from the documents that all attempts share: collections first, run.json last."""
    for key in sink.list("collections"):
        if _OURS.fullmatch(key) is None:
            continue
        try:
            document = json.loads(sink.get(key))
        except ValueError:
            continue
        attempts = document.get("attempts") if isinstance(document, dict) else None
        if isinstance(attempts, dict) and attempts.pop(str(attempt), None) is not None:
            sink.put(key, [json.dumps(document).encode()])
    left = [one for one in run["attempts"] if not isinstance(one, dict) or one.get("attempt") != attempt]
    sink.put(RUN_KEY, [json.dumps({**run, "attempts": left}, indent=1).encode()])
