"""Command: the input of the program, its end, and that no process of it survives a time-out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.actions import ActionDispatcher, Command, action_worker
from tdcore.actions.command import OutputTail
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding
from tests.signals import ignored_signals
from tests.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
KEEP = """
import json, os, sys
given = {"stdin": json.load(sys.stdin), "argv": sys.argv[2:],
         "env": {n: v for n, v in os.environ.items() if n.startswith("TDCORE_")}}
open(sys.argv[1], "w").write(json.dumps(given))
"""


def test_the_findings_are_on_standard_input_and_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Command([sys.executable, "-c", KEEP, str(out), "$HOME", "a b"]).act(
        [finding(), finding(tensor="b")], Running(), None
    )
    given = json.loads(out.read_text())
    assert given["argv"] == ["$HOME", "a b"]
    assert (given["stdin"]["run"], given["stdin"]["count"]) == ("runs/demo", 2)
    assert [each["tensor"] for each in given["stdin"]["findings"]] == ["gradient/w", "b"]
    assert given["env"] | {
        "TDCORE_RUN": "runs/demo", "TDCORE_COUNT": "2", "TDCORE_RULE": "VanishingGradient",
        "TDCORE_CODE": "TDC101", "TDCORE_STEP": "7", "TDCORE_MODE": "TRAIN", "TDCORE_MODE_STEP": "7",
        "TDCORE_ATTEMPT": "0", "TDCORE_WORKER": "worker_0",
        "TDCORE_TENSOR": "gradient/w", "TDCORE_WHY": "too small",
    } == given["env"]  # fmt: skip


def test_a_string_is_split_and_no_shell_sees_it(tmp_path: Path) -> None:
    marker = tmp_path / "made by a shell"
    Command(f"{sys.executable} -c 'pass' ; touch '{marker}' $(touch '{marker}')").act(
        [finding()], Running(), None
    )
    assert not marker.exists()


def test_a_shell_runs_when_it_is_asked_for_and_names_of_the_run_are_not_its_code(tmp_path: Path) -> None:
    out, marker = tmp_path / "out", tmp_path / "marker"
    action = Command(f'printf %s "$TDCORE_TENSOR" > {out}', shell=True)
    action.act([finding(tensor=f"$(touch {marker})\0`touch {marker}`")], Running(), None)
    assert out.read_text() == f"$(touch {marker}) `touch {marker}`"
    assert not marker.exists()


def test_a_status_other_than_zero_is_a_failure_with_the_programs_last_words() -> None:
    code = "import sys; print('first\\nit is broken: hunter2-password', file=sys.stderr); sys.exit(3)"
    action = Command([sys.executable, "-c", code, "hunter2-password"])
    with pytest.raises(ActionError) as raised:
        action.act([finding()], Running(), None)
    program = os.path.basename(sys.executable)
    assert str(raised.value) == f"{program} ended with status 3: it is broken: ***"
    assert "hunter2" not in repr(action)


def test_parts_of_arguments_are_not_shown_either() -> None:
    code = "import sys; sys.exit('not a token: ' + sys.argv[1].split('=')[1])"
    for action in (
        Command([sys.executable, "-c", code, "--token=hunter2-password"]),
        Command("echo 'Bearer hunter2-password' | grep -q x; hunter2-password", shell=True),
    ):
        with pytest.raises(ActionError, match=r"\*\*\*") as raised:
            action.act([finding()], Running(), None)
        assert "hunter2" not in str(raised.value)


def test_a_program_that_fails_is_not_run_again_for_the_same_fault(tmp_path: Path) -> None:
    out = tmp_path / "out"
    action = Command(f"echo x >> {out}; exit 1", shell=True)
    with pytest.raises(ActionError):
        action.act([finding(step=0)], Running(), None)
    for step in range(1, 4):
        action.act([finding(step=step)], Running(), None)
    assert out.read_text() == "x\n"


def test_a_flood_of_output_is_neither_kept_nor_waited_for() -> None:
    code = (
        "import sys, subprocess\n"
        "[sys.stderr.write('x' * 99 + '\\n') for _ in range(200_000)]\n"
        "print('the end', file=sys.stderr, flush=True)\n"
        "sys.exit(5)\n"
    )
    action = Command([sys.executable, "-c", code])
    with pytest.raises(ActionError, match=r"ended with status 5: the end$"):
        action.act([finding()], Running(), None)


def test_of_the_error_output_only_the_last_is_kept() -> None:
    with OutputTail() as tail:
        for number in range(100):
            os.write(tail.write_end, b"%05d" % number * 1000)
            tail.read(1.0)
        assert len(tail.text) == 4096
        assert tail.text.endswith("00099")


def test_a_signal_is_named() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    with pytest.raises(ActionError, match="was killed by signal 15"):
        Command([sys.executable, "-c", code]).act([finding()], Running(), None)


def test_a_time_out_kills_the_program_and_all_that_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    action = Command(f"sleep 600 & echo $! > {pid_file}; wait", shell=True, timeout=timedelta(seconds=3))
    with pytest.raises(ActionError, match="it took longer than 3 s"):
        action.act([finding()], Running(), None)
    grandchild = int(pid_file.read_text())
    wait_until(lambda: not alive(grandchild), "the grandchild is dead")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_program_that_nobody_waits_for_any_more_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    dispatcher = ActionDispatcher(
        [Command(f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600", shell=True)]
    )
    dispatcher.give([finding()], Running(), None)
    wait_until(pid_file.exists, "the program began")
    dispatcher.close(timedelta())
    problems: list[str] = []

    def said_both() -> bool:
        problems.extend(dispatcher.take_problems())
        return len(problems) == 2

    wait_until(said_both, "it was killed")
    assert sorted(problems) == [
        "action command failed: /bin/sh was killed: the rules have ended and do not wait for it",
        "action command: 1 finding was not reported within 0 s",
    ]
    assert not alive(int(pid_file.read_text()))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_wait_for_the_end_that_was_broken_off_does_not_keep_a_program_alive(
    tmp_path: Path,
) -> None:
    """The wait is interrupted by Ctrl-C."""
    pid_file = tmp_path / "pid"
    dispatcher = ActionDispatcher(
        [Command(f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600", shell=True)]
    )
    dispatcher.give([finding()], Running(), None)
    wait_until(pid_file.exists, "the program began")
    interrupter = threading.Thread(target=interrupt_when_it_waits, args=(threading.get_ident(),))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 -- nothing may interrupt before
        interrupter.start()
        dispatcher.close(timedelta(seconds=PATIENCE_SECONDS))
    interrupter.join()
    dispatcher.close(timedelta())
    assert not alive(int(pid_file.read_text()))


def interrupt_when_it_waits(thread: int) -> None:
    """Send SIGINT to the thread as soon as it waits for an action."""
    wait_until(
        lambda: any(f.name == "join" and f.filename == action_worker.__file__ for f in stack_of(thread))
    )
    signal.pthread_kill(thread, signal.SIGINT)


def stack_of(thread: int) -> traceback.StackSummary:
    return traceback.extract_stack(sys._current_frames()[thread])


def test_a_program_starts_with_default_signals_in_the_background_too() -> None:
    """A program with an inherited, ignored SIGINT cannot be interrupted; shell scripts cannot undo this."""
    code = "import signal as s; assert s.getsignal(s.SIGINT) is s.default_int_handler, s.getsignal(s.SIGINT);"
    code += "assert {s.getsignal(e) for e in (s.SIGHUP, s.SIGQUIT, s.SIGTERM)} == {s.SIG_DFL};"
    code += "assert not s.pthread_sigmask(s.SIG_BLOCK, ())"
    with ignored_signals():
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            Command([sys.executable, "-c", code]).act([finding()], Running(), None)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_a_program_inherits_no_descriptor_of_this_process() -> None:
    inheritable, other = os.pipe()
    os.set_inheritable(inheritable, True)
    code = f"import os; assert not os.path.exists('/proc/self/fd/{inheritable}')"
    try:
        Command([sys.executable, "-c", code]).act([finding()], Running(), None)
    finally:
        os.close(inheritable)
        os.close(other)


def test_a_program_has_its_input_where_this_process_has_closed_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import os, sys\n"
        "from tdcore.actions import Command\n"
        "from tests.actions.findings import Running, finding\n"
        "for each in (0, 1, 2):\n"
        "    os.close(each)\n"
        f"Command([sys.executable, '-c', {KEEP!r}, {str(out)!r}]).act([finding()], Running(), None)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert json.loads(out.read_text())["stdin"]["count"] == 1


def test_a_program_whose_status_another_has_collected_counts_as_done() -> None:
    with ignored_signals(signal.SIGCHLD):
        Command([sys.executable, "-c", "import sys; sys.exit(3)"]).act([finding()], Running(), None)


def test_a_child_that_lives_on_does_not_hold_up_the_action(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
    )
    Command([sys.executable, "-c", code]).act([finding()], Running(), None)
    child = int(pid_file.read_text())
    assert alive(child)
    os.kill(child, 9)


def test_a_program_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(ActionError, match="no-such-program could not be started: No such file"):
        Command("/nowhere/no-such-program --token hunter2-password").act([finding()], Running(), None)


@pytest.mark.parametrize("argv", ["", "  ", [], ["a", 3], ["a\0b"], "'open", 5, [""]])
def test_a_command_that_is_none_is_refused(argv: object) -> None:
    with pytest.raises(ConfigError, match=r"Command\.argv"):
        Command(argv)  # type: ignore[arg-type]


def test_a_shell_takes_one_string() -> None:
    with pytest.raises(ConfigError, match="one string"):
        Command(["a", "b"], shell=True)


def test_a_time_out_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout"):
        Command("true", timeout=timedelta())
