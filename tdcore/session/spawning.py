"""Command line and environment of tdcore's own processes.

These processes are spawned, never forked, and import the same tdcore as the process that starts them.

Threads: any.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["command", "environment"]

# The new process runs this first. Neither the working directory nor the folder of the training script may
# shadow a module, and the process must import the trainer's tdcore. So `tdcore` is loaded from its folder,
# and the other folders of the trainer's sys.path come last. pyarrow would import an installed pandas (0.5 s
# and 50 MB that are not needed), so pandas is hidden from it.
_BOOT = """
import sys
sys.path[:] = [place for place in sys.path if place]
import json
job = json.loads(sys.argv[1])
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
places = job["package"]
spec = spec_from_file_location("tdcore", places[0] + "/__init__.py", submodule_search_locations=places)
package = sys.modules["tdcore"] = module_from_spec(spec)
spec.loader.exec_module(package)
class NoPandas:
    def find_spec(name, *_):
        if name == "pandas":
            raise ImportError("tdcore's own processes do without pandas")
sys.meta_path.insert(0, NoPandas)
sys.path.extend(place for place in job["places"] if place not in sys.path)
sys.exit(import_module(job["module"]).main([sys.argv[2]]))
"""

# Freed memory goes back to the system. Without these variables the flusher keeps up to 100 MB more, in
# Arrow's own allocator and in glibc's arenas of other threads. Blocks of less than 8 MiB are reused, because
# new memory costs a page fault for each page.
_ALLOCATOR = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
}

# Only the PYTHON* variables with the location of Python are passed on; the others (PYTHONINSPECT,
# PYTHONSTARTUP, PYTHONWARNINGS=error, ...) are for the trainer.
_KEPT_PYTHON_VARIABLES = frozenset(
    {"PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE"}
    | {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
)


def command(module: str, job: Mapping[str, Any]) -> list[str]:
    """Command line of a process that calls `module`.main with `job` as JSON. Run it in the folder "/"."""
    import tdcore

    here = [os.path.abspath(place) for place in tdcore.__path__]
    places = [os.path.abspath(place) for place in sys.path if place and os.path.exists(place)]
    boot = json.dumps({"package": here, "places": places, "module": module})
    return [sys.executable, "-c", _BOOT, boot, json.dumps(job)]


def environment() -> dict[str, str]:
    """Environment of such a process: few threads, no GPU, and little memory. A user's allocator is kept."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") or name in _KEPT_PYTHON_VARIABLES
    }
    return {**_ALLOCATOR, **kept, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
