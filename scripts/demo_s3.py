"""`make demo-s3`: the demo of tdcore with its runs in a bucket, on an S3 server that ends with the demo.

The server is `rclone serve s3` on 127.0.0.1, with its files in a temporary folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.s3.servers import NoServerError, rclone_server  # noqa: E402


def main(arguments: list[str]) -> int:
    """Run the demo with additional `arguments`, then list the objects in the bucket."""
    command = [sys.executable, "-m", "tdcore.cli"]
    try:
        with rclone_server() as server:
            environment = {**os.environ, **server.environment}
            place = server.url("demo")
            print(f"S3 server on {server.endpoint}; it stops when the demo ends\n", flush=True)
            code = subprocess.run(
                [*command, "demo", "--out", place, *arguments], env=environment, check=False
            ).returncode
            print("\nwhat the bucket holds of the faulty net:", flush=True)
            subprocess.run([*command, "ls", server.url("demo/faulty")], env=environment, check=False)
            return code
    except NoServerError as error:
        print(f"demo-s3: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
