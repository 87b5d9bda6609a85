"""Sweep: checks many runs with the same rules, in parallel, each run independently.

    report = sweep("runs", ["vanishing_gradient", "exploding_tensor"])        processes of this machine
    report = sweep(["s3://bucket/a", "s3://bucket/b"], rules, engine="ray")   a cluster, by its own scheduler

Each run is one task. One large run that has ended is divided into tasks (rules/spread/). If a run cannot be
read, or its task dies, its entry has an error and the other runs continue. Processes are spawned, so a script
that calls `sweep` needs the usual `if __name__ == "__main__":`.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tdcore.errors import ConfigError, SinkError
from tdcore.format.layout import RUN_KEY
from tdcore.rules.base import Rule
from tdcore.rules.engine import MAX_FINDINGS
from tdcore.rules.runner import EXIT_CODES, Report
from tdcore.rules.sendable import check_sendable
from tdcore.rules.spread import is_worth_dividing
from tdcore.rules.sweep_engines import ENGINES, check_engine
from tdcore.rules.sweep_task import SweepEntry, SweepTask
from tdcore.sinks import is_remote, place_text
from tdcore.trial.run_search import runs_below

__all__ = ["Place", "SweepEntry", "SweepReport", "find_runs", "sweep"]

Place: TypeAlias = "str | os.PathLike[str]"


def __getattr__(name: str) -> Any:
    """The earlier name of SweepEntry, with a DeprecationWarning."""
    if name != "Entry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "tdcore.rules.sweep.Entry is now SweepEntry; the old name will be removed"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return SweepEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The verdicts of a set of rules on many runs, in the order in which the runs were given."""

    entries: tuple[SweepEntry, ...]

    def __repr__(self) -> str:
        return f"<SweepReport: {self.summary}>"

    @property
    def reports(self) -> list[Report]:
        """Reports of the runs that could be judged."""
        return [entry.report for entry in self.entries if entry.report is not None]

    @property
    def exit_code(self) -> int:
        """Exit code of the worst run, see Report.exit_code. A run that could not be judged counts as 3."""
        codes = {entry.exit_code for entry in self.entries}
        return next((code for _, code in EXIT_CODES if code in codes), 0)

    @property
    def summary(self) -> str:
        """One line with the number of runs and of each status."""
        counts = [
            (sum(entry.exit_code == 1 for entry in self.entries), "with issues"),
            (sum(entry.error != "" for entry in self.entries), "could not be judged"),
            (
                sum(entry.exit_code == 3 and not entry.error for entry in self.entries),
                "not all evaluable",
            ),
            (sum(entry.exit_code == 4 for entry in self.entries), "in progress"),
            (sum(entry.exit_code == 0 for entry in self.entries), "without issue"),
        ]
        plural = "" if len(self.entries) == 1 else "s"
        parts = [f"{count} {what}" for count, what in counts if count]
        return f"{len(self.entries)} run{plural}: {', '.join(parts)}"

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "summary": self.summary,
            "exit_code": self.exit_code,
            "runs": [entry.to_json() for entry in self.entries],
        }


def sweep(
    places: Place | Iterable[Place],
    rules: Iterable[str | Rule | type[Rule]],
    *,
    engine: Literal["processes", "ray", "dask", "serial"] = "processes",
    workers: int | None = None,
    cluster: Any = None,
    attempt: int | str | None = None,
    ended: bool = False,
    write_findings: bool = True,
    max_findings: int = MAX_FINDINGS,
    on_run: Callable[[SweepEntry], None] | None = None,
) -> SweepReport:
    """Check the saved steps of many runs with rules, and return all reports.

    One run that has ended and has very many rows is divided into tasks, as `run` does with `workers`.

    Args:
        places: A run, a folder with runs, a pattern such as "runs/lr-*", or several of these; see find_runs.
        rules: Text as on the command line, instances that pickle can store, or classes.
        engine: "processes": processes of this machine. "ray" or "dask": one task per run on a cluster whose
            workers have tdcore (extras tdcore-capture[ray], tdcore-capture[dask]). "serial": this process.
        workers: Maximum number of tasks at a time. None: one per CPU, or the size of the cluster.
        cluster: Address of a cluster, or a dask Client. None: the cluster that this process is connected to,
            or else a cluster on this machine for the duration of the call.
        attempt: See `run`.
        ended: See `run`.
        write_findings: See `run`.
        max_findings: See `run`.
        on_run: Called with each entry when it arrives, in order of arrival, in this thread.

    Raises:
        ConfigError: An argument is invalid, the engine is not installed, or there are no runs.
    """
    check_engine(engine, workers)
    chosen = list(rules)
    if not chosen:
        raise ConfigError("no rule was given; name at least one, such as vanishing_gradient")
    check_sendable(chosen, sent=engine != "serial")
    found = find_runs(places)
    task = SweepTask(
        rules=chosen,
        attempt=attempt,
        ended=ended,
        write_findings=write_findings,
        max_findings=max_findings,
    )
    if len(found) == 1 and engine != "serial" and is_worth_dividing(found[0], attempt=attempt, ended=ended):
        entry = task.judged(found[0], workers=workers, engine=engine, cluster=cluster)
        if on_run is not None:
            on_run(entry)
        return SweepReport(entries=(entry,))
    entries: dict[int, SweepEntry] = {}
    with closing(ENGINES[engine](task, found, workers, cluster)) as arrivals:
        for at, entry in arrivals:
            entries[at] = entry
            if on_run is not None:
                on_run(entry)
    return SweepReport(entries=tuple(entries[at] for at in range(len(found))))


def find_runs(places: Place | Iterable[Place]) -> list[str]:
    """The runs at these places, each once, in order.

    A place that is not a pattern and has no run, or cannot be read, is returned unchanged, so that it is
    reported.

    Args:
        places: Each place is a run; or a folder or a prefix of a bucket with runs up to three levels below
            it; or a pattern of folders or prefixes such as "runs/lr-*" or "s3://bucket/runs/lr-*" (in a URL,
            "?" begins the options).

    Raises:
        ConfigError: There are no runs.
        SinkError: The bucket of a pattern refuses access.
    """
    given = [places] if isinstance(places, (str, os.PathLike)) else list(places)
    found: dict[str, None] = {}
    for place in map(place_text, given):
        if not is_remote(place) and glob.has_magic(place) and not Path(place).exists():
            for match in sorted(glob.glob(place)):
                found.update(dict.fromkeys([match] if Path(match, RUN_KEY).exists() else runs_below(match)))
        elif is_remote(place) and glob.has_magic(place.partition("?")[0]):
            found.update(dict.fromkeys(_matching_prefixes(place)))
        else:
            found.update(dict.fromkeys(_below(place) or [place]))
    if not found:
        raise ConfigError(f"there are no runs at {', '.join(map(str, given)) or 'no place'}")
    return list(found)


def _matching_prefixes(url: str) -> list[str]:
    """Runs in a bucket at or below the prefixes that match the pattern, part by part."""
    base, mark, options = url.partition("?")
    bucket, _, pattern = base[len("s3://") :].partition("/")
    if glob.has_magic(bucket):
        raise ConfigError(f"{base!r}: the name of a bucket cannot be a pattern; name each bucket")
    parts = pattern.rstrip("/").split("/")
    fixed = next(at for at, part in enumerate(parts) if glob.has_magic(part))
    above = "/".join([f"{base[: len('s3://')]}{bucket}", *parts[:fixed]])
    found = []
    for run in runs_below(f"{above}/{mark}{options}"):
        inside = run.partition("?")[0][len(above) :].strip("/").split("/")
        wanted = parts[fixed:]
        if len(inside) >= len(wanted) and all(map(fnmatch.fnmatchcase, inside, wanted)):
            found.append(run)
    return found


def _below(place: str) -> list[str]:
    try:
        return runs_below(place)
    except SinkError:
        return []
