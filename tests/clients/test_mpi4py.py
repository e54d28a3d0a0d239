"""mpi4py's own test suite on each MPI."""

import re
import tomllib
from pathlib import Path

import pytest

from client import ALL, CLIENTS, Mpi, need, unavailable

KNOWN = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text())
SUITE = CLIENTS / "mpi4py"
# What a bounded run takes: both kinds of messages, collectives, one-sided operations.
SHARE = ["p2p_buf", "p2p_obj", "cco_buf", "cco_nb_buf", "rma", "rma_nb"]


def play(mpi: Mpi, ranks: int, modules: list[str], seconds_max: float) -> None:
    """Runs modules of the suite, or all of it, and reads what unittest says."""
    need(mpi)
    if not (SUITE / "prepared").exists():
        unavailable("mpi4py's tests are not there (scripts/clients)")
    chosen = [word for module in modules for word in ("-i", rf"test_{module}\.py")]
    failing = [f"*{test}*" for known in KNOWN.get(mpi.known or mpi.name, []) for test in known["tests"]]
    left_out = [word for test in failing for word in ("-x", test)]
    program = [mpi.python(), "test/main.py", *chosen, *left_out]
    text = mpi.start(ranks, program, seconds_max, SUITE).check(ranks)
    assert "\nOK" in text and re.search(r"Ran [1-9]\d* tests? in", text), text[-4000:]


@pytest.mark.parametrize("mpi", ALL, ids=lambda mpi: mpi.name)
def test_a_share_on_two_ranks(mpi: Mpi, scale: str) -> None:
    play(mpi, 2, SHARE[:1] if scale == "quick" else SHARE, 300)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mpi", ALL, ids=lambda mpi: mpi.name)
def test_all_of_it(mpi: Mpi, ranks: int) -> None:
    play(mpi, ranks, [], 1800)
