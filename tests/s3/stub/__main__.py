"""Starts the stub and prints its address: python -m tests.s3.stub --bucket NAME --key ID SECRET"""

from __future__ import annotations

import argparse
import asyncio
import ssl

from tests.s3.stub.connections import Connections
from tests.s3.stub.service import Service

_BUFFER_BYTES = 1 << 20  # maximum length of a head; of a body, at most twice as much is buffered


async def _serve(options: argparse.Namespace) -> None:
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.certificate_key)
    service = Service(bucket=options.bucket, accept_keys=dict(options.key))
    server = await asyncio.start_server(
        Connections(service).serve, "127.0.0.1", options.port, limit=_BUFFER_BYTES, ssl=context, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(f"{'https' if context else 'http'}://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Read the arguments and serve until killed."""
    parser = argparse.ArgumentParser(description="A strict S3 service for tests.")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--bucket", default="tdcore-tests")
    parser.add_argument("--key", nargs=2, action="append", default=[], metavar=("ID", "SECRET"))
    parser.add_argument("--certificate", help="PEM file; the stub then speaks TLS")
    parser.add_argument("--certificate-key", help="PEM file")
    asyncio.run(_serve(parser.parse_args()))


main()
