"""Prepares what scripts/soft-roce needs, once; without it the tests that boot are skipped."""

import os
import time
from collections.abc import Iterator

import pytest

import hosts
from client import unavailable
from lab import HERE, example, run


@pytest.fixture(scope="session")
def ready() -> Iterator[None]:
    """Downloads and the image are there, so that no test's time is spent on them. In the end the hosts that
    tests have shared are switched off."""
    if not HERE:
        done = run("--prepare")
        if done.returncode == 125:
            unavailable(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
    yield
    hosts.pool.drop()


@pytest.fixture(scope="session")
def echo() -> str:
    """The example that asks and answers, built."""
    return example("echo")


# When no test begins any more: see scripts/test.
UNTIL = float(os.environ.get("KESTREL_TEST_UNTIL", "inf"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each file comes first, so that there is one of every kind however little time is left.
    Each of two workers begins with its half of the list."""
    first = list({item.path: item for item in reversed(items)}.values())[::-1]
    ordered = first + [item for item in items if item not in first]
    items[:] = ordered[0::2] + ordered[1::2]


def pytest_runtest_setup() -> None:
    """Leaves out what there is no time for."""
    if time.time() >= UNTIL:
        pytest.skip("the half hour of the default share is over; scripts/test soft-roce runs it")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """No test inherits the hosts of one that failed."""
    if report.failed:
        hosts.pool.drop()
