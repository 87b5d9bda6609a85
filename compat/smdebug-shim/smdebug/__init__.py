"""smdebug, the library of Amazon SageMaker Debugger, as a name for tdcore. Nothing of smdebug is in here.

Each module has the names that scripts import from the module of smdebug with this name. All names are from
tdcore.smd and tdcore's hooks, with the differences that docs/moving.md of tdcore lists.
"""

from __future__ import annotations

from tdcore.smd import (
    Collection,
    CollectionKeys,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    modes,
)

__version__ = "1.0.34+tdcore"  # the release of smdebug whose names are here

__all__ = ["Collection", "CollectionKeys", "ReductionConfig", "SaveConfig", "SaveConfigMode", "modes"]
