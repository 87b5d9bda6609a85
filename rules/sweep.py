"""Sweep: many runs judged by the same rules, each on its own, in parallel.

    report = sweep("runs", ["vanishing_gradient", "exploding_tensor"])        processes of this machine
    report = sweep(["s3://bucket/a", "s3://bucket/b"], rules, engine="ray")   a cluster, by its own scheduler

A run is one task. One that cannot be read, or whose task dies, is an entry with an error; the others go on.
Processes are spawned, so a script that calls this needs the usual `if __name__ == "__main__":`.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tdcore.errors import ConfigError, SinkError
from tdcore.format.layout import RUN_KEY
from tdcore.rules.base import Rule
from tdcore.rules.engine import MAX_FINDINGS
from tdcore.rules.loading import load_rules
from tdcore.rules.runner import EXIT_CODES, Report
from tdcore.rules.sweep_engines import ENGINES
from tdcore.rules.sweep_task import Entry, Task
from tdcore.sinks import is_remote, place_text
from tdcore.trial.run_search import runs_below

__all__ = ["Entry", "Place", "SweepReport", "find_runs", "sweep"]

Place: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What the rules say about each run, in the order in which the runs were given."""

    entries: tuple[Entry, ...]

    def __repr__(self) -> str:
        return f"<SweepReport: {self.summary}>"

    @property
    def reports(self) -> list[Report]:
        """Of the runs that could be judged."""
        return [entry.report for entry in self.entries if entry.report is not None]

    @property
    def exit_code(self) -> int:
        """As of a run: that of the worst. A run that could not be judged counts as 3."""
        codes = {entry.exit_code for entry in self.entries}
        return next((code for _, code in EXIT_CODES if code in codes), 0)

    @property
    def summary(self) -> str:
        """One line: how many runs there are, and how they stand."""
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
    on_run: Callable[[Entry], None] | None = None,
) -> SweepReport:
    """Judges what there is of each run now, and returns all reports.

    places: see find_runs. rules: text as the command line takes it, instances that pickle can store, or
    classes. engine: "processes" of this machine; "ray" or "dask", which run one task per run where they
    please and need tdcore there (extras tdcore-capture[ray], [dask]); "serial", in this process. workers: at
    most so many runs at a time; None: one for each CPU, or what the cluster has. cluster: the address of a
    cluster, or a dask Client; None: the one this process is connected to, or else one of this machine for
    the time of the call. attempt, ended, write_findings, max_findings: as for `run`. on_run: called with
    each entry as it comes, in the order of arrival.

    Raises ConfigError for arguments, an engine that is not installed, and where there are no runs.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(sorted(ENGINES))}, got {engine!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    found = find_runs(places)
    task = Task(
        rules=_checked(rules, sent=engine != "serial"),
        attempt=attempt,
        ended=ended,
        write_findings=write_findings,
        max_findings=max_findings,
    )
    entries: dict[int, Entry] = {}
    with closing(ENGINES[engine](task, found, workers, cluster)) as arrivals:
        for at, entry in arrivals:
            entries[at] = entry
            if on_run is not None:
                on_run(entry)
    return SweepReport(entries=tuple(entries[at] for at in range(len(found))))


def find_runs(places: Place | Iterable[Place]) -> list[str]:
    """The runs that places name, each once, in order.

    A place is a run; a folder or a prefix of a bucket with runs up to three levels below it; or a pattern of
    folders or prefixes such as "runs/lr-*" or "s3://bucket/runs/lr-*" ("?" begins the options of a URL). One
    that is given as it is and holds no run, or cannot be looked into, is kept, so that it is reported.
    Raises ConfigError when there is nothing at all, SinkError for a pattern in a bucket that refuses.
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
    """Runs in a bucket at or below the prefixes that the pattern matches, each part of it on its own."""
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


def _checked(rules: Iterable[str | Rule | type[Rule]], *, sent: bool) -> Sequence[str | Rule | type[Rule]]:
    """The rules as they go to the tasks; what cannot work is refused here rather than in each.

    sent: to other processes.
    """
    chosen = list(rules)
    if not chosen:
        raise ConfigError("no rule was given; name at least one, such as vanishing_gradient")
    for rule in chosen:
        if isinstance(rule, str):
            load_rules(rule)
        elif sent:
            try:
                pickle.dumps(rule)
            except Exception as error:
                raise ConfigError(
                    f"{rule!r} cannot be sent to other processes ({error}); define its class in a module, "
                    'give it as text such as "my_rules.py::MyRule", or use engine="serial"'
                ) from error
    return chosen
