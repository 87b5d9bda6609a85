"""For all tests: S3 servers, started with the first test that asks for one and shared by all; `--proofs`."""

import pytest

from tests.rules.proofs import Proofs
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proofs", choices=("check", "write"), help="the table of what is shown of each rule")


def pytest_configure(config: pytest.Config) -> None:
    task = config.getoption("--proofs")
    if task is not None:
        config.pluginmanager.register(Proofs(task))
