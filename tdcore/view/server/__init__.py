"""The server of `tdcore view`: a local web application that shows runs while they are written.

    serve(ServeOptions(place="runs"), ready=print)      until Ctrl-C

guard.py accepts or refuses requests, app.py answers them, and served_runs.py has the open runs. Each open run
has a thread (worker.py), and its rules have a process (rules_process.py). This package needs the extra
`view`: Starlette and uvicorn.
"""

from __future__ import annotations

from tdcore.view.server.serving import ServeOptions, serve

__all__ = ["ServeOptions", "serve"]
