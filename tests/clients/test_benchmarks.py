"""Intel's MPI benchmarks on Intel MPI."""

from __future__ import annotations

import re

import pytest

from client import INTEL_MPI, environment, need, run

# What runs always, and the families that run whole with --full.
SHARE = {
    "IMB-MPI1": ["PingPong", "Sendrecv", "Exchange", "Allreduce", "Alltoall", "Bcast"],
    "IMB-RMA": ["All_put_all", "One_get_all", "Accumulate", "Fetch_and_op"],
    "IMB-NBC": ["Ibcast", "Iallreduce", "Ialltoall"],
    "IMB-P2P": ["PingPong", "SendRecv_Replace"],
    "IMB-MT": ["PingPongMT", "AllreduceMT"],
}
# Few iterations, all sizes; contents are checked where the program offers it. The seconds are what a
# size may take on average: with too few a slow machine leaves out the largest.
LIMITS = {
    "IMB-MPI1": ["-iter", "20", "-time", "5"],
    "IMB-RMA": ["-iter", "20", "-time", "5"],
    "IMB-NBC": ["-iter", "20", "-time", "5"],
    "IMB-P2P": ["-iter", "20"],
    "IMB-MT": ["-repeat", "1", "-check", "true"],
}


# Those that run on a square or a cube of ranks alone.
RANKS_MIN = {"stencil2d": 4, "stencil3d": 8}


@pytest.mark.parametrize("program", SHARE)
def test_a_share(program: str, scale: str) -> None:
    play(program, SHARE[program], 2, scale)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", SHARE)
def test_all_of_it(program: str, ranks: int, scale: str) -> None:
    play(program, [], ranks, scale)


def play(program: str, benchmarks: list[str], ranks: int, scale: str) -> None:
    """Runs benchmarks to their end, with few iterations and all sizes."""
    need(INTEL_MPI)
    path = str(INTEL_MPI.folder / "bin" / program)
    seconds_max = 1800 if scale == "full" else 240
    text = INTEL_MPI.start(ranks, [path, *benchmarks, *LIMITS[program]], seconds_max).check(ranks)
    played = {name.lower() for name in re.findall(r"^# Benchmarking (\w+)", text, re.MULTILINE)}
    expected = {name.lower() for name in benchmarks} or by_default(path, ranks)
    assert expected <= played, f"{sorted(expected - played)} did not run:\n{text[-4000:]}"
    # A benchmark that takes too long leaves its largest sizes out, and succeeds all the same.
    late = [line for line in text.splitlines() if "time-out" in line]
    assert not late, f"sizes were left out:\n{text[-4000:]}"


def by_default(path: str, ranks: int) -> set[str]:
    """What a program plays that is asked for nothing in particular, by its own list."""
    env = environment(**INTEL_MPI.variables)
    outcome = run([str(INTEL_MPI.launcher), "-n", "1", path, "-list"], env, 60)
    assert outcome.status == 0, outcome.output
    # Some lists are comments; what a benchmark does is told below it, with more words.
    names = re.findall(r"^(?:#| {3}) (\w+)$", outcome.text(), re.MULTILINE)
    assert names, outcome.output
    return {name.lower() for name in names if ranks >= RANKS_MIN.get(name.lower(), 1)}
