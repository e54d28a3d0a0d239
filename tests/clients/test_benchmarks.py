"""Intel's MPI benchmarks on Intel MPI."""

from __future__ import annotations

import pytest

from client import INTEL_MPI, need

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
    for name in benchmarks:
        assert name.lower() in text.lower(), f"{name} did not run:\n{text[-4000:]}"
