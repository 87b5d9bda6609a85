"""Tests of the hook for MXNet, which need an environment of their own: stage `mxnet` of .ci/run."""

from __future__ import annotations

import importlib.util
import warnings

if importlib.util.find_spec("mxnet") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MXNet, about its own code
        import mxnet  # noqa: F401
