"""What every test of a client needs: how much to run, and whether the client is there."""

import os

import pytest

from client import Mpi


@pytest.fixture(scope="session")
def scale() -> str:
    """How much to run: quick, default or full, from KESTREL_TEST_SCALE."""
    value = os.environ.get("KESTREL_TEST_SCALE", "default")
    assert value in ("quick", "default", "full"), value
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Names the mark of what only --full runs."""
    config.addinivalue_line("markers", "full: runs at scale full only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only --full runs."""
    if os.environ.get("KESTREL_TEST_SCALE", "default") == "full":
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def need(mpi: Mpi) -> None:
    """Skips the test, with the reason, where the client is not there."""
    reason = mpi.absent()
    if reason:
        pytest.skip(reason)
