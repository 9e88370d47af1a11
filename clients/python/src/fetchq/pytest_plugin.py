"""Fixtures for pytest, which finds them by itself: ``fetchq_fake`` and ``fetchq_db``."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import Fake

# Nothing else is imported here: the plugin is loaded in each run of pytest where the package is installed.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fetchq-db",
        default=os.environ.get("FETCHQ_TEST_URL"),
        help="connection string of a database with fetchq, for the fixture fetchq_db; default: FETCHQ_TEST_URL",
    )


@pytest.fixture
def fetchq_fake() -> Generator[Fake, None, None]:
    """Records what is put during a test instead of sending it: ``fetchq_fake.puts(task)``."""
    from .testing import fake

    with fake() as recorder:
        yield recorder


@pytest.fixture
def fetchq_db(request: pytest.FixtureRequest) -> str:
    """The connection string of the database for tests. Without one, the test is skipped."""
    url = request.config.getoption("--fetchq-db")
    if not url:
        pytest.skip("there is no database: give --fetchq-db or FETCHQ_TEST_URL")
    return str(url)
