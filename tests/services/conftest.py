"""The services of a session. What is missing on a machine is said in one line, and the tests of it are not run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fetching
import running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They run with ``--services`` only."""
    if not config.getoption("--services"):
        mine = [item for item in items if item.get_closest_marker("services")]
        config.hook.pytest_deselected(items=mine)
        items[:] = [item for item in items if item not in mine]


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    try:
        service = running.kafka()
        address = service.__enter__()
    except fetching.Missing as missing:
        pytest.skip(f"not run against Kafka: {missing}")
    yield address
    service.__exit__(None, None, None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[int]:
    try:
        service = running.postgres()
        port = service.__enter__()
        sys.path.append(str(fetching.packages()))
    except fetching.Missing as missing:
        pytest.skip(f"not run against Postgres: {missing}")
    yield port
    service.__exit__(None, None, None)
