"""Hostile folders: mutated runs that are listed, shown, read and judged.

    python -m tests.faults.hostile --runs 600 --seed 0
    python -m tests.faults.hostile --runs 100000 --one-command       more runs in the same time
    python -m tests.faults.hostile --seed 0 --first 41 --runs 1 --keep /tmp/here     one run of the sequence

For each run the commands must end by themselves, with one of their exit codes and without a traceback, print
no control characters of terminals, leave everything outside of the run's folder unchanged, and use a bounded
amount of memory. The commands run in a child process. A child without output for too long is killed, and a
new child continues with the next run. The exit status is 1 when any check fails.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import random
import re
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.mutations import healthy, written

__all__ = ["Outcome", "campaign"]

_HUNG_SECONDS = 120.0  # for the commands of one run, on a busy machine
_CPU_SECONDS = 20.0  # for all commands of one run: four times the time limit for the patterns of a run
_GROWTH_BYTES = 400 << 20  # growth of peak memory by one run
_LEAK_BYTES = 300 << 20  # growth of memory by all runs of one child
_RUNS_PER_CHILD = 2000
_CODES = range(5)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(kw_only=True)
class Outcome:
    """Result of a campaign. wrong: number of the run -> failed checks. codes: exit codes of all commands."""

    runs: int = 0
    wrong: dict[int, list[str]] = field(default_factory=dict)
    codes: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Return the result as a few lines."""
        codes = ", ".join(f"{code}: {count:,}" for code, count in sorted(self.codes.items()))
        lines = [
            f"{self.runs:,} mutated runs in {self.seconds:.0f} s, {len(self.wrong)} wrong; exit codes {codes}"
        ]
        lines += [f"run {number}: {'; '.join(what)}" for number, what in list(self.wrong.items())[:20]]
        return "\n".join(lines)


def campaign(
    *, runs: int, seed: int, first: int = 0, one_command: bool = False, hung: float = _HUNG_SECONDS
) -> Outcome:
    """Check the runs `first` to `first + runs` of the sequence of a seed, in child processes.

    one_command: each run is randomly listed, shown or judged, instead of all three.
    """
    outcome, start = Outcome(), time.monotonic()
    number, end = first, first + runs
    while number < end:
        number = _child(seed, number, min(end, number + _RUNS_PER_CHILD), one_command, outcome, hung)
    outcome.seconds = time.monotonic() - start
    return outcome


def _child(seed: int, first: int, end: int, one_command: bool, outcome: Outcome, hung: float) -> int:
    """Run one child process; return the number at which the next child begins."""
    command = [sys.executable, "-m", "tests.faults.hostile", "--child", f"--seed={seed}"]
    command += ["--one-command"] if one_command else []
    number = first
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, f"--first={first}", f"--runs={end - first}"], stdout=subprocess.PIPE, stderr=errors
        )
        try:
            for line in _lines(process, hung):
                report = json.loads(line)
                number = report["number"] + 1
                outcome.runs += 1
                outcome.codes.update(report["codes"])
                if report["wrong"]:
                    outcome.wrong[report["number"]] = [*report["wrong"], *report["mutations"]]
            code: int | None = process.wait(hung)
        except TimeoutError:
            code = None
        finally:
            process.kill()
            process.communicate()
        if number == end and code == 0:
            return end
        errors.seek(0)
        why = "it hung" if code is None else f"the process ended with {code}: {errors.read()[-500:]!r}"
    outcome.runs += 1
    outcome.wrong.setdefault(number, []).append(why)
    return number + 1


def _lines(process: subprocess.Popen[bytes], hung: float) -> Iterator[bytes]:
    """Yield the lines of the child, one per run. Raises TimeoutError after `hung` seconds without output."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        rest = b""
        while True:
            if not selector.select(hung):
                raise TimeoutError
            data = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]  # a BufferedReader
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


# In the child. ------------------------------------------------------------------------------------------


def _run_all(seed: int, first: int, runs: int, one_command: bool, keep: Path | None) -> None:
    reports = sys.stdout
    _build_commands_once()
    gc.freeze()  # saves a fifth of the time: imported modules are not searched again
    with tempfile.TemporaryDirectory(prefix="tdcore-hostile-") as folder:
        files = healthy(Path(folder))
        baseline = 0
        for number in range(first, first + runs):
            place = Path(folder) / str(number) if keep is None else keep
            report = _run_one(files, place, seed, number, one_command)
            memory = _memory()
            if number == first + 50:
                baseline = memory
            if baseline and memory > baseline + _LEAK_BYTES:
                report["wrong"].append(f"memory grew to {memory >> 20} MiB, from {baseline >> 20} MiB")  # type: ignore[attr-defined]
                baseline = memory
            print(json.dumps(report), file=reports, flush=True)
            if keep is None:
                shutil.rmtree(place, ignore_errors=True)


def _run_one(
    files: dict[str, bytes], place: Path, seed: int, number: int, one_command: bool
) -> dict[str, object]:
    rng = random.Random(f"{seed}/{number}")
    outside, root = place / "outside", place / "runs" / "run"
    start = time.thread_time()
    outside.mkdir(parents=True)
    for name in ("secret", "AllZero.jsonl", "LossNotDecreasing.jsonl"):
        (outside / name).write_text(f"{name} is mine\n")
    mutations = written(files, root, outside, rng)
    state = place / "state"
    before, highest = _contents(outside), _highest()
    codes: list[int] = []
    wrong: list[str] = []
    for arguments in _commands(root, state, rng, one_command):
        code, printed, failure = _command(arguments)
        name = " ".join(arguments[:2]).replace(str(place), "")
        if failure:
            wrong.append(f"{name}: {failure}")
        elif code not in _CODES:
            wrong.append(f"{name}: exit code {code}")
        elif _CONTROL.search(printed):
            wrong.append(f"{name}: it printed a control character")
        codes.append(code)
        if arguments[:2] == ["rules", "run"] and state.is_file() and rng.random() < 0.5:
            _damage(state, rng)
    if _contents(outside) != before:
        wrong.append("something outside of the run was changed")
    if _highest() - highest > _GROWTH_BYTES:
        wrong.append(f"it took {_highest() - highest >> 20} MiB")
    if time.thread_time() - start > _CPU_SECONDS:
        wrong.append(f"it took {time.thread_time() - start:.0f} s of CPU time")
    return {"number": number, "codes": codes, "wrong": wrong, "mutations": mutations}


def _commands(root: Path, state: Path, rng: random.Random, one_command: bool) -> list[list[str]]:
    """Return commands: a list of the parent folder, a command that shows the run, and one or two judgements.

    one_command: only one of these three parts.
    """
    run = str(root)
    looks = [
        ["trace", run, "-o", "-"],
        ["ls", run],
        ["ls", run, "--json"],
        ["show", run],
        ["show", run, "fc.weight", "--json"],
    ]
    by_user = ["-r", "all_zero:tensor_regex=.", "-r", "exploding_tensor", "--ended"]
    with_state = ["rules", "run", run, "--state", str(state)]
    judged = rng.choice(
        [
            [["rules", "run", run]],
            [["rules", "run", run, *by_user]],
            [with_state, with_state],
            [["diagnose", run]],
        ]
    )
    parts = [[["ls", str(root.parent)]], [rng.choice(looks)], judged]
    return rng.choice(parts) if one_command else [command for part in parts for command in part]


def _command(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code, its output, and an exception that escaped, as text."""
    from tdcore.cli import main

    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    sys.argv = ["tdcore", *arguments]
    failure, code = "", -1
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            failure = (
                f"{type(error).__name__}: {error!s:.200} ({place.filename.rpartition('/')[2]}:{place.lineno})"
            )
    printed.flush()
    text = printed.buffer.getvalue().decode("utf-8", "replace")
    return code, text, failure


def _build_commands_once() -> None:
    """Build the Typer commands once.

    Typer builds them in each call, which takes longer than most commands.
    """
    import typer

    from tdcore.cli import app as module

    module.app = typer.main.get_command(module.app)  # type: ignore[assignment]  # called in the same way


def _damage(state: Path, rng: random.Random) -> None:
    data = bytearray(state.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    state.write_bytes(bytes(data))


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def _memory() -> int:
    """Return the resident memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _highest() -> int:
    """Return the peak of the resident memory, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.hostile")
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first run of the sequence")
    parser.add_argument("--keep", type=Path, help="a new folder in which one run is kept")
    parser.add_argument("--one-command", action="store_true", help="one random command for each run")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child or given.keep is not None:
        _run_all(given.seed, given.first, given.runs, given.one_command, given.keep)
        return 0
    outcome = campaign(runs=given.runs, seed=given.seed, first=given.first, one_command=given.one_command)
    print(outcome.text)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
