"""Fixtures of all tests: S3 servers, started at first use and shared by all tests; the option `--proofs`."""

import pytest

from tests.frameworks import FRAMEWORKS
from tests.freezing import freeze
from tests.hooks.support import MATRIX
from tests.rules.proofs import PROOFS
from tests.s3.fixtures import (  # noqa: F401 -- fixtures are found by their names
    moto,
    moto_session,
    rclone,
    rclone_session,
    s3_place,
    s3_prefix,
    stub,
    stub_session,
)
from tests.shown import add_option, register
from tests.tiers import is_full


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    register(config, [PROOFS, MATRIX, FRAMEWORKS])


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the full tier (tiers.py). Put files with slow tests first, so that no worker waits for them."""
    for item in items:
        if is_full(item.path, getattr(item, "originalname", item.name)):
            item.add_marker("full")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def _freeze() -> None:
    """Exclude all objects that exist before the tests of a file, for example those of imported modules."""
    freeze()
