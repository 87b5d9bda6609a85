"""The quickstart and the tutorials: their steps run one after the other, from top to bottom."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.s3.servers import Server

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "quickstart",
    "tutorials/write-a-rule",
    *(
        pytest.param(f"tutorials/{page}", marks=pytest.mark.full)
        for page in ("find-a-fault", "move-over", "scale")
    ),
]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXPECTED = re.compile(r"# exit code (\d+)")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES)
def test_the_steps_of_a_page_work_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(page, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_steps_of_the_page_about_a_bucket_work(
    moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dataclasses.replace(moto.client(), bucket="my-bucket").request("PUT", "").status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.endpoint)
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spool"))
    follow("tutorials/bucket", tmp_path, monkeypatch)


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the steps of a page in a new folder, from top to bottom.

    Code with a title becomes a file, other Python code runs in one namespace, and commands run, except pip. A
    command fails the test if its exit code is neither 0 nor the code in its comment.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # the networks are small: threads of torch would only wait for each other
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, title, code in FENCE.findall((ROOT / f"docs/{page}.md").read_text()):
        if title:
            Path(title).write_text(code)
        elif language == "python":
            exec(code, names)
        elif language == "sh":
            for line in code.splitlines():
                expected = EXPECTED.search(line)
                command(line, int(expected[1]) if expected else 0, monkeypatch)
    sys.modules.pop("my_rules", None)


def command(line: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one line of a page: scripts in their own processes, other commands of tdcore in this process."""
    from tdcore.cli.app import main

    program, *arguments = shlex.split(line, comments=True)
    if program == "pip" or "~" in line:  # settings of the user's machine
        return
    if program == "tdcore" and arguments[0] != "run":
        monkeypatch.setattr(sys, "argv", ["tdcore", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == expected, line
        return
    modules = {"python": [], "torchrun": ["-m", "torch.distributed.run"], "tdcore": ["-m", "tdcore.cli"]}
    arguments = [sys.executable, *modules[program], *arguments]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240)
    assert done.returncode == expected, line + "\n" + done.stdout + done.stderr
