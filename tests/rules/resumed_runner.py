"""A runner with a state in its own process, which test_state_kills.py controls step by step.

python -m tests.rules.resumed_runner RUN STATE LOG

The runner follows the run to its end. At each moment of STOPS it prints the moment's name and waits for a
line on stdin; at the end it prints its result as JSON. Each poll advances the clock by 0.3 seconds, so that
the result depends only on the run and these lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tdcore.rules import ExplodingTensor, Finding, LossNotDecreasing, RuleProtocol, run, runner, state
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.legacy import Rule as OlderRule
from tdcore.rules.run_source import RunSource
from tdcore.rules.step_range import with_step_range
from tests.rules.a_rule_of_mine import EveryNth

# A poll has ended; the state is about to be written; its new file exists under another name; it is saved;
# an action is about to send; it has sent.
STOPS = ("look", "writing", "written", "saved", "acting", "told")
_SECONDS_PER_LOOK = 0.3


class StepAbove(OlderRule):
    """A condition that is fulfilled at a late step."""

    def invoke_at_step(self, step: int) -> bool:
        return step >= 40


class LogKeys:
    """An action that writes the keys of its findings to a file."""

    name = "log keys"

    def __init__(self, path: Path, stop: Callable[[str], object]) -> None:
        self.path = path
        self.stop = stop

    def act(self, findings: Sequence[Finding], source: Any, sink: Any) -> None:
        self.stop("acting")
        with self.path.open("a") as file:
            for finding in findings:
                file.write(json.dumps(finding.key) + "\n")
        self.stop("told")


def rules() -> list[RuleProtocol]:
    """Rules that report each step, so that the log of the actions contains every step."""
    every = (
        EveryNth(nth=3), ExplodingTensor(), LossNotDecreasing(num_steps=5, patience=1), LegacyRule(StepAbove)
    )  # fmt: skip
    return [with_step_range(rule, each=True) for rule in every]


def main(
    place: str, path: str | None, log: Path, stop: Callable[[str], object] = lambda name: None
) -> dict[str, object]:
    with stopping(stop):
        report = run(
            place, rules(), until_end=True, state=path, actions=[LogKeys(log, stop)], write_findings=False
        )
    return report.to_json()


@contextmanager
def stopping(stop: Callable[[str], object]) -> Iterator[None]:
    """Call `stop` at these moments; each poll advances the clock."""
    looks = 0
    write, replace = state._write, Path.replace

    def clock() -> float:
        return looks * _SECONDS_PER_LOOK

    def wait(seconds: float) -> None:
        nonlocal looks
        looks += 1
        stop("look")

    def written(temporary: Path, target: Path) -> Path:
        stop("written")
        return replace(temporary, target)

    def saved(path: Path, parts: list[bytes]) -> None:
        stop("writing")
        with patch.object(Path, "replace", written):
            write(path, parts)
        stop("saved")

    with (
        patch.object(state, "_write", saved),
        patch.object(runner, "RunSource", partial(RunSource, clock=clock)),
        patch.object(runner, "StateFile", partial(state.StateFile, clock=clock)),
        patch.object(runner, "follow", partial(runner.follow, wait=wait)),
    ):
        yield


def ask(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), ask)), flush=True)
