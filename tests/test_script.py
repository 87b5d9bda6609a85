"""`tdcore run` does not change a script: each script runs with and without it, with equal results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.signals import default_signals, ignored_signals

ROOT = Path(__file__).resolve().parents[1]

FACTS = '''"""What a script finds around itself."""
import atexit, os, signal, sys, warnings

atexit.register(print, "registered first")
atexit.register(print, "registered second")
print(sys.argv, __file__, __name__, __doc__, __package__, __spec__ and __spec__.name, __cached__)
print(type(__loader__), sys.path[:3], sorted(globals()), sys.modules["__main__"].__dict__ is globals())
print(sys.excepthook is sys.__excepthook__, sys.stdin.read())
print(sorted({"torch", "numpy", "yaml", "typer"} & set(sys.modules)))

def fail():
    raise ValueError("bad")

what = sys.argv[1]
if what == "raise":
    try:
        fail()
    except ValueError as error:
        raise RuntimeError("worse") from error
elif what == "exit":
    sys.exit(3)
elif what == "text":
    sys.exit("a text")
elif what == "hook":
    sys.excepthook = lambda kind, error, trace: print("own hook", error, trace.tb_frame.f_code.co_name)
    fail()
elif what == "sigint":
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
elif what == "background":
    print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP))
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGHUP)
elif what == "sigterm":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)
elif what == "warn":
    warnings.warn("look here", stacklevel=1)
'''

SPAWNING = """
import multiprocessing, sys
print("imported as", __name__, sys.argv)

class Thing:
    pass

def work(thing):
    return type(thing).__module__, sys.modules["__main__"].__name__, "tdcore" in sys.modules

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(work, (Thing(),)))
"""


def run(
    folder: Path, *arguments: object, signals: AbstractContextManager[None] | None = None
) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with signals or default_signals():
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env=environment,
            input="hello",
            capture_output=True,
            text=True,
            timeout=240,
        )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scripts, and the same scripts as modules of a package."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for name in ("facts.py", "package/module.py", "package/__main__.py"):
        (tmp_path / name).write_text(FACTS)
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "spawning.py").write_text(SPAWNING)
    return tmp_path


@pytest.mark.parametrize("what", ["end", "raise", "exit", "text", "hook", "sigint", "sigterm", "warn"])
def test_a_script_finds_and_ends_as_without(folder: Path, what: str) -> None:
    alone = run(folder, "facts.py", what, "--x", 1)
    assert run(folder, "-m", "tdcore.run", "-q", "facts.py", what, "--x", 1) == alone
    expected = {
        "raise": 1,
        "exit": 3,
        "text": 1,
        "hook": 1,
        "sigint": -signal.SIGINT,
        "sigterm": -signal.SIGTERM,
    }
    assert alone[0] == expected.get(what, 0)


def test_a_script_in_the_background_ignores_the_same_signals_as_without(folder: Path) -> None:
    alone = run(folder, "facts.py", "background", signals=ignored_signals())
    with_tdcore = run(folder, "-m", "tdcore.run", "-q", "facts.py", "background", signals=ignored_signals())
    assert with_tdcore == alone
    assert alone[0] == 0
    assert f"{signal.SIG_IGN} {signal.SIG_IGN}" in alone[1]


@pytest.mark.parametrize("name", ["package.module", "package", "no_such_module", "package.no_such_module"])
def test_a_module_finds_and_ends_as_without(folder: Path, name: str) -> None:
    alone = run(folder, "-m", name, "text")
    assert run(folder, "-m", "tdcore.run", "-q", "-m", name, "text") == alone
    assert alone[0] == 1


@pytest.mark.parametrize("given", [["--", "end"], ["--"], ["end", "--", "-q"], ["-q", "--out", "x"]])
def test_arguments_reach_the_script_as_they_are(folder: Path, given: list[str]) -> None:
    (folder / "arguments.py").write_text("import sys; print(sys.argv)")
    assert run(folder, "-m", "tdcore.run", "-q", "arguments.py", *given)[1] == f"{['arguments.py', *given]}\n"


def test_a_syntax_error_reads_as_without(folder: Path) -> None:
    assert run(folder, "-m", "tdcore.cli", "run", "-q", "syntax.py") == run(folder, "syntax.py")


def test_spawned_children_import_the_script_and_not_tdcore(folder: Path) -> None:
    alone = run(folder, "spawning.py")
    assert run(folder, "-m", "tdcore.run", "-q", "spawning.py") == alone
    assert "imported as __mp_main__" in alone[1]
    assert "('__mp_main__', '__mp_main__', False)" in alone[1]


def test_an_import_of_torch_that_fails_reads_as_without(folder: Path) -> None:
    (folder / "torch.py").write_text('raise OSError("a library is missing")\n')
    (folder / "uses.py").write_text("import torch\n")
    assert run(folder, "-m", "tdcore.run", "-q", "uses.py") == run(folder, "uses.py")


def test_a_script_that_never_trains_is_told_once(folder: Path) -> None:
    code, _, errors = run(folder, "-m", "tdcore.run", "facts.py", "exit")
    assert code == 3
    assert errors.count("tdcore run: no training was found") == 1
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.py"], "can't open"),
        (["package"], "is a folder"),
        (["--save-interval", "0", "facts.py"], "save_interval must be at least 1"),
        (["--rule", "no_such_rule", "facts.py"], "no_such_rule"),
        (["--config", "none.yaml", "facts.py"], "none.yaml cannot be read"),
        ([], "the following arguments are required: SCRIPT"),
    ],
)
def test_wrong_usage_is_2_and_starts_nothing(folder: Path, arguments: list[str], says: str) -> None:
    code, output, errors = run(folder, "-m", "tdcore.run", *arguments)
    assert (code, output) == (2, "")
    assert says in errors
