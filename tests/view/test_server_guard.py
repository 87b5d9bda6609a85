"""The requests that the server of the view accepts and refuses, through real HTTP."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.trial.writer import RunWriter
from tests.view.view_server import ViewServer, view_server

SECRET = "the content of a file outside of the opened folder"


def write_run(place: Path, *, end: bool = True) -> RunWriter:
    run = RunWriter(place)
    for step in range(3):
        run.add("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3) + step, step=step)
        run.add("loss", 1.0 / (step + 1), step=step, kind="loss")
    run.flush()
    if end:
        run.end()
    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    folder = tmp_path_factory.mktemp("view")
    write_run(folder / "opened" / "a")
    write_run(folder / "opened" / "b")
    write_run(folder / "elsewhere" / "c")
    (folder / "elsewhere" / "secret.txt").write_text(SECRET)
    (folder / "opened" / "link").symlink_to(folder / "elsewhere" / "c")
    with view_server(folder / "opened", "--no-rules") as running:
        yield running


def test_the_page_and_the_answers_are_served(server: ViewServer) -> None:
    page = server.request("GET", "")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert server.get("overview", run="a").json["run"]["rows"] == 6


def test_the_address_without_its_last_slash_leads_to_the_page(server: ViewServer) -> None:
    answer = server.request("GET", server.path.rstrip("/"))
    assert (answer.status, answer.headers["location"]) == (308, server.path)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "[",
    ],
)
def test_another_host_header_is_refused(server: ViewServer, host: str) -> None:
    for path in ("", "api/runs"):
        answer = server.request("GET", path, headers={"Host": host})
        assert answer.status in (400, 403)
        assert b"fc.weight" not in answer.body


@pytest.mark.parametrize("host", ["localhost:9", "127.0.0.1:9", "[::1]:9", "LOCALHOST"])
def test_names_of_this_machine_are_accepted_with_any_port(server: ViewServer, host: str) -> None:
    assert server.request("GET", "api/runs", headers={"Host": host}).status == 200


def test_a_wrong_token_is_refused(server: ViewServer) -> None:
    token = server.path.strip("/")
    other = ("A" if token[0] != "A" else "B") + token[1:]
    for path in ("/", "/api/runs", f"/{token[:-1]}/", f"/{other}/api/runs", f"/x/{token}/", "/%E9/", "//"):
        answer = server.request("GET", path)
        assert answer.status == 403, path
        assert "address" in answer.json["error"]


def test_tokens_of_two_starts_differ(tmp_path: Path, server: ViewServer) -> None:
    with view_server(tmp_path, "--no-rules") as other:
        assert len(other.path.strip("/")) >= 32
        assert other.path != server.path


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"},  # another port of this machine
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_a_page_of_another_origin_is_refused(server: ViewServer, headers: dict[str, str]) -> None:
    answer = server.request("GET", "api/runs", headers=headers)
    assert answer.status == 403
    assert "origin" in answer.json["error"]
    assert "access-control-allow-origin" not in answer.headers
    written = server.request(
        "POST", "api/stop", headers={"Content-Type": "application/json", **headers}, body=b"{}"
    )
    assert written.status == 403


def test_a_link_on_another_page_may_open_the_page(server: ViewServer) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert server.request("GET", "", headers=headers).status == 200


def test_a_request_that_writes_needs_an_origin(server: ViewServer) -> None:
    answer = server.request(
        "POST", "api/stop", headers={"Content-Type": "application/json"}, body=b'{"run": "a"}'
    )
    assert answer.status == 403


def test_a_form_of_another_page_cannot_write(server: ViewServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert server.post("stop", {"run": "a"}, Content_Type=kind).status == 400


@pytest.mark.parametrize("path", ["", "view.js", "api/runs", "api/overview?run=a", "api/nothing", "/"])
def test_every_answer_has_the_headers_that_restrict_the_page(server: ViewServer, path: str) -> None:
    headers = server.request("GET", path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


@pytest.mark.parametrize(
    "run",
    [
        "../elsewhere/c",
        "..",
        ".",
        "/",
        "%2e%2e/elsewhere/c",
        "a/../../elsewhere/c",
        "a\x00",
        "s3://x/y",
        "link",
    ],
)
def test_no_run_outside_of_the_opened_folder_is_shown(server: ViewServer, run: str) -> None:
    answer = server.get("overview", run=run)
    assert answer.status == 404
    assert "error" in answer.json


def test_a_link_to_a_run_elsewhere_is_listed_as_unreadable(server: ViewServer) -> None:
    lines = {line["id"]: line for line in server.get("runs").json["runs"]}
    assert set(lines) == {"a", "b", "link"}
    assert lines["link"]["status"] == "unreadable"
    assert "outside" in lines["link"]["error"]


@pytest.mark.parametrize(
    "path",
    [
        "../elsewhere/secret.txt", "..%2felsewhere%2fsecret.txt", "%2e%2e/%2e%2e/elsewhere/secret.txt",
        "static/../../opened/a/run.json", "a/run.json", "....//secret.txt", "..\\elsewhere\\secret.txt",
        "%00", "index.html%00.js", "api/../../elsewhere/secret.txt", "//etc/passwd", "__init__.py",
    ],
)  # fmt: skip
def test_only_the_files_of_the_page_are_served(server: ViewServer, path: str) -> None:
    answer = server.request("GET", path if not path.startswith("/") else server.path + path)
    assert answer.status in (400, 403, 404)
    assert SECRET.encode() not in answer.body
    assert b"root:" not in answer.body


def test_head_has_the_headers_and_no_body(server: ViewServer) -> None:
    answer = server.request("HEAD", "")
    assert (answer.status, answer.body) == (200, b"")
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("path", ["", "api/runs", "api/stop", "api/events"])
@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE", "PATCH"])
def test_other_methods_are_refused_without_cors_headers(server: ViewServer, method: str, path: str) -> None:
    answer = server.request(method, path, headers={"Origin": f"http://{server.host}"})
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_get_does_not_write(server: ViewServer) -> None:
    assert server.request("GET", "api/stop?run=a").status in (404, 405)


def test_huge_parameters_are_an_error_of_the_request(server: ViewServer) -> None:
    long = server.get("tensor", run="a", name="x" * 65_536)
    assert long.status in (400, 404)
    assert len(long.body) < 2_000
    with contextlib.suppress(ConnectionError):  # the server may close the connection before it has read all
        assert server.request("GET", "api/tensor?name=" + "x" * (2 << 20)).status == 400
    many = "&".join(f"p{number}=1" for number in range(20_000))
    assert server.request("GET", f"api/layers?{many}").status == 400
    for columns in ("0", "-1", "1e9", "9" * 5_000, "NaN"):
        assert server.get("layers", run="a", columns=columns).status == 400
    assert server.get("compare", runs=",".join(map(str, range(20_000)))).status == 400
    assert server.get("runs").status == 200


def test_a_huge_body_is_refused(server: ViewServer) -> None:
    answer = server.post("stop", {"run": "a", "reason": "x" * (2 << 20)})
    assert answer.status == 400
    assert "bytes" in answer.json["error"]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_not_an_object_is_refused(server: ViewServer, body: bytes) -> None:
    headers = {"Origin": f"http://{server.host}", "Content-Type": "application/json"}
    assert server.request("POST", "api/stop", headers=headers, body=body).status == 400


def test_a_slow_client_does_not_delay_others(server: ViewServer) -> None:
    name, _, port = server.host.rpartition(":")
    slow = [socket.create_connection((name, int(port))) for _ in range(40)]
    try:
        for each in slow:
            each.sendall(f"GET {server.path}api/runs HTTP/1.1\r\nHost: {server.host}\r\nX-Slow: ".encode())
        assert server.get("overview", run="a").status == 200
    finally:
        for each in slow:
            each.close()


def test_a_client_that_does_not_read_does_not_delay_others(server: ViewServer) -> None:
    name, _, port = server.host.rpartition(":")
    slow = [socket.create_connection((name, int(port))) for _ in range(8)]
    try:
        for each in slow:
            line = f"GET {server.path}api/layers?run=a&columns=4096 HTTP/1.1\r\nHost: {server.host}\r\n\r\n"
            each.sendall(line.encode() * 50)
        assert server.get("overview", run="b").status == 200
    finally:
        for each in slow:
            each.close()


def test_a_request_without_http_is_refused(server: ViewServer) -> None:
    name, _, port = server.host.rpartition(":")
    with socket.create_connection((name, int(port))) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert server.get("runs").status == 200


def test_answers_are_valid_until_the_run_changes(server: ViewServer) -> None:
    first = server.get("overview", run="a")
    again = server.request("GET", "api/overview?run=a", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert "no-cache" in first.headers["cache-control"]
    assert server.get("runs").headers["cache-control"] == "no-store"


def test_answers_are_compressed_on_request(server: ViewServer) -> None:
    plain = server.get("overview", run="a")
    packed = server.request("GET", "api/overview?run=a", headers={"Accept-Encoding": "gzip"})
    content = (
        gzip.decompress(packed.body) if packed.headers.get("content-encoding") == "gzip" else packed.body
    )
    assert json.loads(content) == plain.json
    script = server.request("GET", "view.js", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(script.body) == server.request("GET", "view.js").body


def test_the_server_listens_on_the_loopback_interface_only(server: ViewServer) -> None:
    listening = [
        each for each in psutil.Process(server.process.pid).net_connections() if each.status == "LISTEN"
    ]
    assert [each.laddr.ip for each in listening] == ["127.0.0.1"]
