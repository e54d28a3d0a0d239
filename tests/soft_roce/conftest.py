"""Prepares what scripts/soft-roce needs, once; without it the tests that boot are skipped."""

import pytest

from lab import HERE, example, run


@pytest.fixture(scope="session")
def ready() -> None:
    """Downloads and the image are there, so that no test's time is spent on them."""
    if HERE:
        return
    done = run("--prepare")
    if done.returncode == 125:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def echo() -> str:
    """The example that asks and answers, built."""
    return example("echo")
