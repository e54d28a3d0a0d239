"""MPI programs of our own, on each MPI, which check all that they receive."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from client import ALL, CLIENTS, ROOT, Mpi, environment, need, run, unavailable

# Intel's package runs programs and has no compiler: it takes what MPICH's makes, whose binary
# interface it shares.
COMPILERS = {
    "openmpi": Path("/usr/bin/mpicc.openmpi"),
    "openmpi5": CLIENTS / "openmpi5/bin/mpicc",
    "mpich": CLIENTS / "mpich/bin/mpicc",
    "intelmpi": CLIENTS / "mpich/bin/mpicc",
}
PROGRAMS = ROOT / "target" / "client-programs"
# One-sided operations by libfabric's, not by messages: "ofi" is the layer that "rdma" uses for it.
OPEN_MPI_ONE_SIDED = ["--mca", "osc", "rdma", "--mca", "btl", "ofi,self"]
# The longest message by scale. Units: bytes.
LONGEST = {"quick": 1 << 20, "default": 8 << 20, "full": 64 << 20}
EACH = pytest.mark.parametrize("mpi", ALL, ids=lambda mpi: mpi.name)
RANKS = pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])


@functools.cache
def build(mpi: Mpi, name: str) -> str:
    """Compiles one of the programs beside this file, once, and says where it is."""
    need(mpi)
    if not COMPILERS[mpi.name].exists():
        unavailable(f"a compiler for {mpi.name} is not there (scripts/clients)")
    PROGRAMS.mkdir(exist_ok=True)
    source = Path(__file__).with_name(f"{name}.c")
    program = PROGRAMS / f"{name}-{mpi.name}"
    # Another process of tests may be running it.
    made = PROGRAMS / f"{program.name}-{os.getpid()}"
    command = [str(COMPILERS[mpi.name]), "-O2", "-Wall", "-o", str(made), str(source)]
    outcome = run(command, environment(), 120)
    assert outcome.status == 0, outcome.text()
    made.replace(program)
    return str(program)


def play(mpi: Mpi, command: list[str], ranks: int, domains_per_rank: int) -> None:
    """Runs a program to its end, all of whose ranks opened so many domains on kestrel."""
    text = mpi.start(ranks, command, 300).check(ranks, domains_per_rank)
    assert re.search(rf"[1-9]\d* checks passed on {ranks} ranks", text), text[-4000:]


@EACH
@RANKS
def test_messages(mpi: Mpi, ranks: int, scale: str) -> None:
    play(mpi, [build(mpi, "exchange"), str(LONGEST[scale])], ranks, 1)


@EACH
@RANKS
def test_one_sided(mpi: Mpi, ranks: int) -> None:
    """A rank of Open MPI has one domain for messages and one for one-sided operations."""
    if mpi.known == "openmpi5":
        pytest.skip("Open MPI 5.0.7 of Debian 13: no window can be made beside pml cm, on tcp;ofi_rxm and sockets neither")
    program = build(mpi, "onesided")
    if mpi.name.startswith("openmpi"):
        one_sided = replace(mpi, arguments=mpi.arguments + OPEN_MPI_ONE_SIDED)
        play(one_sided, [program, "dynamic"], ranks, 2)
    else:
        play(mpi, [program, "created"], ranks, 1)
