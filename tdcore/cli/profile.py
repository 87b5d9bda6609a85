"""tdcore profile: request a profile of a running training, wait for it, and show it; or list all profiles."""

from __future__ import annotations

import getpass
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcore.cli.output import console, human_bytes, print_json, shown
from tdcore.cli.profile_tables import print_functions, print_operators
from tdcore.cli.tables import plain_table
from tdcore.errors import ConfigError
from tdcore.format.profile_request import ProfileRequest
from tdcore.sinks import shown_place

if TYPE_CHECKING:
    from tdcore.trial import Trial
    from tdcore.trial.profiles import Profile

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 the profile is in the run. 1 a worker could not record it, or it did not arrive in time. "
    "2 wrong usage. 3 the run cannot be read."
)
_POLL_SECONDS = 0.5
_AFTER_END_SECONDS = 15.0  # a profile can arrive so long after the end of the training
_MAX_LINE = 2000
_PERFETTO = "https://ui.perfetto.dev"


def command(
    run: Annotated[str, typer.Argument(help="Folder of the run, or s3://bucket/prefix.")],
    steps: Annotated[int, typer.Option("--steps", "-n", help="Number of training steps, 1 to 1000.")] = 5,
    python: Annotated[bool, typer.Option("--python", help="Record Python functions too (cProfile).")] = False,
    operators: Annotated[
        bool, typer.Option("--operators/--no-operators", help="Record operators (torch.profiler).")
    ] = True,
    workers: Annotated[
        list[str] | None, typer.Option("--workers", "-w", help="Only these workers; default: all.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the profile is stored.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Maximum time to wait, in seconds.")] = 120.0,
    top: Annotated[int, typer.Option(min=1, help="Number of operators and functions to print.")] = 10,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the profiles of the run.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Profile the next steps of a running training, and show the operators that take most time.

    Examples:

      [bold]tdcore profile runs/demo --steps 5[/]             operators of the next 5 training steps

      [bold]tdcore profile runs/demo --python[/]              and the Python functions

      [bold]tdcore profile runs/demo --list[/]                the profiles that the run has
    """
    from tdcore.trial import create_trial

    with closing(create_trial(run)) as trial:
        if list_only:
            _list(trial, json_output)
            return
        names = tuple(name for each in workers or () for name in each.split(",") if name)
        request = ProfileRequest(
            steps=steps, operators=operators, python=python, workers=names, by=f"tdcore profile ({_user()})"
        )
        attempt, expected = _target(trial, request)
        number = _send(trial.path, attempt, request)
        if not json_output:
            _print_request(number, attempt, request, expected, timeout if wait else None)
        found = _arrived(trial, attempt, number, expected, timeout) if wait else []
        absent = [worker for worker in expected if worker not in {each.worker for each in found}]
        if json_output:
            print_json({"run": run, "attempt": attempt, "request": number, "profiles": _documents(found)})
        else:
            for each in found:
                _print_profile(trial, each, top)
            _print_next(trial, found)
            if wait and absent:
                _print_absent(trial, absent, attempt, number, timeout)
        if wait and (absent or any(each.state == "failed" for each in found)):
            raise typer.Exit(1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without an entry for the user
        return "unknown user"


def _target(trial: Trial, request: ProfileRequest) -> tuple[int, list[str]]:
    """The running attempt, and the workers that will record. Raises ConfigError."""
    info = trial.attempt_info()
    if trial.status != "running" or info is None:
        raise ConfigError(
            f"the training of {shown_place(trial.path)} has {trial.status}, so it records no more profiles; "
            "start it again, or list its profiles with --list"
        )
    known = list(info.workers) or ["worker_0"]
    unknown = [worker for worker in request.workers if worker not in known]
    if unknown:
        raise ConfigError(f"--workers: {unknown[0]!r} is not a worker of the run; it has {', '.join(known)}")
    return info.number, list(request.workers) or known


def _send(place: str, attempt: int, request: ProfileRequest) -> int:
    from tdcore.sinks import open_sink
    from tdcore.sinks.requests import put_request

    with closing(open_sink(place)) as sink:
        number = put_request(sink, attempt, request.document(attempt=attempt))
    if number is None:
        raise ConfigError(f"attempt {attempt} already has as many requests as a training accepts")
    return number


def _arrived(
    trial: Trial, attempt: int, number: int, expected: Sequence[str], timeout: float
) -> list[Profile]:
    """The profiles of the request, once all workers have stored one, or after the timeout."""
    end = time.monotonic() + timeout
    ended = False
    while True:
        profiles = trial.profiles(workers=expected, attempt=attempt)
        found = [each for each in profiles if each.request == number]
        if not ended and trial.status != "running":
            ended = True
            end = min(end, time.monotonic() + _AFTER_END_SECONDS)
        if len(found) >= len(expected) or time.monotonic() >= end:
            return found
        time.sleep(_POLL_SECONDS)


# Output ---------------------------------------------------------------------------------------------------


def _print_request(
    number: int, attempt: int, request: ProfileRequest, workers: Sequence[str], timeout: float | None
) -> None:
    what = " and ".join(
        name
        for name, recorded in (("operators", request.operators), ("Python functions", request.python))
        if recorded
    )
    count = f"the next {request.steps} training steps" if request.steps > 1 else "the next training step"
    line = f"Request {number}: {what} of {count} of {', '.join(workers)}, attempt {attempt}."
    if timeout is not None:
        line += f" Waiting for the profile, at most {timeout:.0f} s."
    console().print(shown(line, _MAX_LINE))


def _print_profile(trial: Trial, profile: Profile, top: int) -> None:
    out = console()
    title = f"Profile {profile.number} of {profile.worker}"
    if profile.state == "failed":
        out.print(f"\n[bold]{shown(title)}[/]: [red]failed[/]: {shown(profile.reason, _MAX_LINE)}")
        return
    seconds = max(profile.end_ns - profile.begin_ns, 0) / 1e9
    steps = f"{profile.mode} steps {profile.first_step} to {profile.last_step}"
    out.print(f"\n[bold]{shown(title)}[/]: {shown(steps)}, {profile.state}, {seconds:.2f} s")
    for line in filter(None, [profile.reason, *profile.messages]):
        out.print(f"  [yellow]{shown(line, _MAX_LINE)}[/]")
    for file, key in profile.keys.items():
        size = human_bytes(profile.document["files"][file])
        out.print(f"  {file}: {shown(_place(trial, key))} ({size})", soft_wrap=True)
    if "operators" in profile.keys:
        print_operators(out, profile.operators(), top)
    if "functions" in profile.keys:
        print_functions(out, profile.functions(), top)


def _print_next(trial: Trial, profiles: Sequence[Profile]) -> None:
    if any("trace" in each.keys for each in profiles):
        console().print(
            f"\nOpen a trace at {_PERFETTO}, which reads the file in the browser, without an upload. All "
            "workers, saved steps and metrics of the machine on one time axis:\n"
            f"  tdcore trace {shown(shlex.quote(trial.path))} -o trace.json.gz"
        )


def _print_absent(trial: Trial, absent: Sequence[str], attempt: int, number: int, timeout: float) -> None:
    out = console()
    for worker in absent:
        why = _why_absent(trial, worker, attempt, number)
        line = f"{worker} has stored no profile within {timeout:.0f} s{why}."
        out.print(f"\n[yellow]{shown(line, _MAX_LINE)}[/]")
    if trial.status == "running":
        out.print(
            "The request stays in the run. The training records the profile when it begins its next steps; "
            "see it with --list."
        )


def _why_absent(trial: Trial, worker: str, attempt: int, number: int) -> str:
    """The reason in the notes of the worker; "" if there is none."""
    from tdcore.sinks import open_sink
    from tdcore.trial.documents import read_notes_of_workers

    info = trial.attempt_info(attempt)
    first = info.workers[0] if info is not None and info.workers else "worker_0"
    with closing(open_sink(trial.path)) as sink:
        noted = list(read_notes_of_workers(sink))
    for name, of_attempt, notes in noted:
        requests = notes.get("capture_requests") if (name or first, of_attempt) == (worker, attempt) else None
        for each in requests if isinstance(requests, list) else ():
            if isinstance(each, dict) and each.get("number") == number and each.get("ignored"):
                return f": the request was ignored, because {each['ignored']}"
    return ""


def _list(trial: Trial, json_output: bool) -> None:
    profiles = trial.profiles()
    if json_output:
        print_json({"run": trial.path, "profiles": _documents(profiles)})
        return
    out = console()
    if not profiles:
        out.print(
            f"{shown(shown_place(trial.path))} has no profiles. Request one while the training runs: "
            f"tdcore profile {shown(shlex.quote(trial.path))} --steps 5"
        )
        return
    table = plain_table()
    for column in ("attempt", "number", "worker", "steps", "state", "size"):
        table.add_column(column, justify="right" if column in ("attempt", "number", "size") else "left")
    table.add_column("parts", overflow="fold")
    for each in profiles:
        steps = "-" if each.first_step is None else f"{each.mode} {each.first_step} to {each.last_step}"
        about = each.reason if each.state == "failed" else ", ".join(each.keys)
        cells = (str(each.attempt), str(each.number), each.worker, steps, each.state)
        table.add_row(*map(shown, cells), human_bytes(each.nbytes), shown(about))
    out.print(table)
    _print_next(trial, profiles)


def _place(trial: Trial, key: str) -> str:
    return f"{shown_place(trial.path).rstrip('/')}/{key}"


def _documents(profiles: Sequence[Profile]) -> list[dict[str, Any]]:
    return [{**each.document, "keys": each.keys} for each in profiles]
