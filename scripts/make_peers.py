"""Create the environments .venvs/<name> of the peers, the libraries that the benchmarks compare with.

    python3 scripts/make_peers.py [name ...] [--list]

The file requirements/peer-<name>.txt pins every package of an environment, which contains exactly these
packages (a build of torch for GPUs adds packages). The environment uses Python 3.11 if it is installed,
otherwise the running Python. An environment that is up to date is not changed. If a peer cannot be installed,
the last lines of pip's output are written to .venvs/<name>.failed.txt, the table reports the peer, and the
exit code is 1. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("profilers", "smdebug", "smdebug-keras", "smdebug-xgboost", "tensorboard", "wandb")
WANTED = (3, 11)
_STAMP = "peer-stamp.txt"
_TAIL_LINES = 30
_TIMEOUT_SECONDS = 1800


def requirements_of(name: str) -> Path:
    """The file with the requirements of this peer."""
    return ROOT / "requirements" / f"peer-{name}.txt"


def folder_of(name: str) -> Path:
    """The peer's environment."""
    return ROOT / ".venvs" / name


def python_of(name: str) -> Path:
    """The Python of the peer's environment."""
    return folder_of(name) / "bin" / "python"


def pins(text: str) -> dict[str, str]:
    """Package -> version, from lines such as "name==1.0", with normalised names and without "+cpu"."""
    lines = (line.split("#")[0].split(";")[0].strip() for line in text.splitlines())
    pairs = (line.split("==", 1) for line in lines if "==" in line)
    return {_normal(name): version.strip().split("+")[0] for name, version in pairs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def holds(python: Path, wanted: dict[str, str]) -> bool:
    """Whether this environment works and has each package in the required version."""
    try:
        done = _run([str(python), "-m", "pip", "freeze", "--all"], timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    there = pins(done.stdout)
    return done.returncode == 0 and all(there.get(name) == version for name, version in wanted.items())


def stamp_text(name: str) -> str:
    """Content of the stamp file of an environment that is up to date: the hash of its requirements."""
    return hashlib.sha256(requirements_of(name).read_bytes()).hexdigest() + "\n"


def ready(name: str) -> bool:
    """Whether the environment of this peer exists and was created from the current requirements."""
    try:
        return python_of(name).exists() and (folder_of(name) / _STAMP).read_text() == stamp_text(name)
    except OSError:
        return False


def find_python() -> str:
    """A working Python 3.11 from PATH or pyenv; otherwise the running Python."""
    name = f"python{WANTED[0]}.{WANTED[1]}"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(versions.glob(f"{WANTED[0]}.{WANTED[1]}*/bin/python3"), key=_patch, reverse=True)
    for candidate in (sys.executable, shutil.which(name), *map(str, found)):
        if candidate and _version(candidate) == WANTED:
            return candidate
    return sys.executable


def _patch(python: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", python.parts[-3])]


def _version(python: str) -> tuple[int, ...] | None:
    """Version of a Python; None if it cannot be started (a pyenv shim of a version that is not selected)."""
    try:
        done = _run([python, "-c", "import sys, venv; print(*sys.version_info[:2])"], timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def make(name: str) -> str:
    """Create the environment of one peer. Returns "", or the last lines of the output of a failed command."""
    failed = ROOT / ".venvs" / f"{name}.failed.txt"
    if ready(name):
        failed.unlink(missing_ok=True)
        return ""
    wanted = pins(requirements_of(name).read_text())
    if not holds(python_of(name), wanted):
        problem = _install(name, wanted)
        if problem:
            failed.parent.mkdir(exist_ok=True)
            failed.write_text(problem + "\n")
            return problem
    (folder_of(name) / _STAMP).write_text(stamp_text(name))
    failed.unlink(missing_ok=True)
    return ""


def _install(name: str, wanted: dict[str, str]) -> str:
    """Create a new environment with the peer's packages. Returns as make()."""
    pip = [str(python_of(name)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    commands = [
        [find_python(), "-m", "venv", "--clear", str(folder_of(name))],
        [*pip, "--progress-bar=off", "-r", str(requirements_of(name))],
    ]
    for command in commands:
        try:
            done = _run(command, timeout=_TIMEOUT_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            return "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
    return "" if holds(python_of(name), wanted) else "pip installed other versions than the pinned versions"


def _run(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def row(name: str, state: str, problem: str = "") -> str:
    """One line of the table."""
    version = pins(requirements_of(name).read_text()).get(name.partition("-")[0], "?")
    last = problem.splitlines()[-1].strip() if problem else ""
    return f"{name:16} {version:10} {state:10} {last}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help=f"names of peers: {', '.join(PEERS)}; default: all")
    parser.add_argument("--list", action="store_true", help="only list the peers and their state")
    options = parser.parse_args()
    unknown = [name for name in options.name if name not in PEERS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not a peer; they are {', '.join(PEERS)}")
    names = options.name or list(PEERS)
    bad = False
    for name in names:
        if options.list:
            print(row(name, "ready" if ready(name) else "not made"), flush=True)
            continue
        problem = make(name)
        bad = bad or bool(problem)
        print(row(name, "failed" if problem else "ready", problem), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
