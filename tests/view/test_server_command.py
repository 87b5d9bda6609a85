"""The command `tdcore view`: its messages and exit codes, and a page that has no browser."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.view.view_server import ROOT, view_server
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.full

_WITHOUT = """
import sys
sys.modules[{name!r}] = None  # as if it were not installed
sys.argv[0] = "tdcore"
from tdcore.cli import main
main()
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


def view(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("-m", "tdcore.cli", "view", "--no-browser", *map(str, arguments))


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(tmp_path: Path) -> None:
    done = run("-c", _WITHOUT.format(name="starlette"), "view", str(tmp_path), "--no-browser")
    assert done.returncode == 2
    assert "tdcore view needs starlette; install it with: pip install 'tdcore-capture[view]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = view(tmp_path / "file")
    assert (done.returncode, "is a file" in done.stderr) == (3, True)


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        done = view(tmp_path, "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on '127.0.0.1', port {port}" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--port", "70000"], ["--port", "x"], ["--host", "no.such.host.invalid"]]
)
def test_wrong_usage_is_2(tmp_path: Path, arguments: list[str]) -> None:
    assert view(tmp_path, *arguments).returncode == 2


def test_another_interface_has_a_warning_and_accepts_the_addresses_of_this_machine(tmp_path: Path) -> None:
    with view_server(tmp_path, "--no-rules", "--host", "0.0.0.0") as server:
        wait_until(lambda: "other machines can open the page" in "".join(server.printed), "the warning")
        port = server.host.rpartition(":")[2]
        server.url = f"http://127.0.0.1:{port}{server.path}"
        assert server.request("GET", "api/runs", headers={"Host": f"10.1.2.3:{port}"}).status == 200
        assert server.request("GET", "api/runs", headers={"Host": "evil.example"}).status == 403


def test_the_address_is_opened_in_a_browser_if_there_is_a_display(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    with view_server(tmp_path, "--browser", DISPLAY=":9", BROWSER=f"{browser} %s &") as server:
        wait_until((tmp_path / "opened").exists, "the browser was started")
        wait_until(
            lambda: (tmp_path / "opened").read_text() == server.url + "\n", "the browser got the address"
        )
