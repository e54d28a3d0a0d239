"""How much to run, for all tests that pytest runs."""

import os
from pathlib import Path

import pytest

# What cargo builds for the tests lies where they look, wherever else this user's builds go.
os.environ["CARGO_TARGET_DIR"] = str(Path(__file__).resolve().parents[1] / "target")


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why each test was skipped, or failed as is known: one line each, which scripts/test reads."""
    skipped = [(report, report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    failing = [(report, report.wasxfail) for report in terminalreporter.stats.get("xfailed", [])]
    for report, reason in skipped + failing:
        name = report.nodeid.rsplit("::", 1)[-1]
        if "[" in name:
            name = name.split("[", 1)[1].removesuffix("]")
        reason = " ".join(reason.split()).removeprefix("Skipped: ").removeprefix("reason: ")
        terminalreporter.write_line(f"SKIPPED {name}: {reason}")
