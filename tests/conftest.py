"""How much to run, for all tests that pytest runs."""

import os

import pytest


@pytest.fixture(scope="session")
def scale() -> str:
    """How much to run: quick, default or full, from KESTREL_TEST_SCALE."""
    value = os.environ.get("KESTREL_TEST_SCALE", "default")
    assert value in ("quick", "default", "full"), value
    return value


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what only --full runs."""
    if os.environ.get("KESTREL_TEST_SCALE", "default") == "full":
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
