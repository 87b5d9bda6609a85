"""Tests of the hook for MXNet, which need an environment of their own: stage `mxnet` of .ci/run."""

from __future__ import annotations

import importlib.util
import warnings

if importlib.util.find_spec("mxnet") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import numpy as np

    setattr(np, "bool", bool)  # noqa: B010 -- MXNet 1.9 needs the name, which NumPy has dropped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's own
        import mxnet  # noqa: F401
