"""A local HTTP server that receives the posts of webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["SECRET", "Receiver", "receiving"]

SECRET = "T0KEN/B0KEN/xyzzy-secret"


class Receiver:
    """A local HTTP server with prepared answers: (status, headers, body), one after the other."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers = list(answers)
        self.got: list[tuple[str, str, Any]] = []
        self.url = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
                status, headers, answer = receiver.answers.pop(0) if receiver.answers else (200, {}, b"ok")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815 -- the name that the base calls

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextmanager
def receiving(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[Receiver]:
    receiver = Receiver(*answers)
    server = ThreadingHTTPServer(("127.0.0.1", 0), receiver.handler())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/{SECRET}?key=more-secret"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
