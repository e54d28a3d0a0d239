"""Prepares what scripts/soft-roce needs, once; without it the tests that boot are skipped."""

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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """No test inherits the hosts of one that failed."""
    if report.failed:
        hosts.pool.drop()
