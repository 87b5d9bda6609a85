"""The contents of `import tdcore`, and what the import loads."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import tdcore

HEAVY = ("torch", "tensorflow", "mxnet", "xgboost", "pyarrow", "numpy", "typer", "rich")


def test_every_exported_name_exists_and_the_list_is_sorted() -> None:
    assert list(tdcore.__all__) == sorted(tdcore.__all__)
    for name in tdcore.__all__:
        assert getattr(tdcore, name) is not None


def test_importing_tdcore_loads_no_framework_and_no_arrow() -> None:
    code = "import sys, json; import tdcore; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = set(json.loads(out))
    assert not loaded & set(HEAVY)


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        tdcore.no_such_name  # noqa: B018


def test_the_former_place_of_the_collections_warns_and_gives_the_same_objects() -> None:
    import tdcore.collection
    import tdcore.config

    for name in tdcore.collection.__all__:
        with pytest.warns(DeprecationWarning, match=rf"tdcore\.config: import {name}"):
            former = getattr(tdcore.collection, name)
        assert former is getattr(tdcore.config, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        tdcore.collection.no_such_name  # noqa: B018


@pytest.mark.parametrize("package", ["tdcore.config", "tdcore.session"])
def test_the_names_that_a_package_loads_on_first_use_are_there(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
