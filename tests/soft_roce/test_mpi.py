"""An MPI job on two hosts with two ranks on each: both transports carry it at once."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from hosts import run
from lab import ROOT, needs_guest

sys.path.append(str(ROOT / "tests" / "clients"))

from client import INTEL_MPI, MPICH, PROOF, WHOLE_LINES, Mpi, unavailable  # noqa: E402
from test_benchmarks import LIMITS  # noqa: E402
from test_mpi4py import SHARE, SUITE  # noqa: E402
from test_programs import build  # noqa: E402

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

RSH = str(Path(__file__).with_name("rsh"))
# How each launcher reaches the other host.
LAUNCH = {
    "mpich": ["-launcher", "ssh", "-launcher-exec", RSH],
    "intelmpi": ["-bootstrap", "ssh", "-bootstrap-exec", RSH],
}
RANKS = ["-hosts", "10.9.0.1,10.9.0.2", "-ppn", "2", "-n", "4"]
SCALE = os.environ.get("KESTREL_TEST_SCALE", "default")
BY_DEVICE = re.compile(r"of these by the kernel and (\d+) by the device")
SENT = re.compile(r"sent (\d+) messages \(\d+ bytes\) through shared memory, (\d+) messages")


def job(
    program: list[str],
    folder: Path,
    seconds_max: int,
    mpi: Mpi = MPICH,
    reaching: int = 0,
    netem: str = "",
) -> str:
    """What a program on four ranks printed, each of which has used both transports, and so many of which
    had the device read or write by itself.
    """
    if not mpi.launcher.exists():
        unavailable(f"{mpi.name} is not there: {mpi.launcher} (scripts/clients)")
    library = ROOT / "target" / "release"
    if not (library / "libkestrel_fi.so").exists():
        unavailable(f"{library}/libkestrel_fi.so is not built (cargo build --release)")
    ours = {"FI_PROVIDER_PATH": library, "FI_LOG_LEVEL": "info", "FI_LOG_PROV": "kestrel"}
    # Two ranks keep all of a host's time to themselves, and its kernel plays the device.
    ours["FI_KESTREL_PEER_TIMEOUT"] = "30000"
    variables = [f"{name}={value}" for name, value in {**ours, **mpi.variables}.items()]
    command = ["env", *variables, str(mpi.launcher), *LAUNCH[mpi.name], *RANKS, *WHOLE_LINES, *program]
    done = run(command, folder=folder, netem=netem, seconds_max=seconds_max)
    text = done.stdout + done.stderr
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("libfabric:"))
    assert done.returncode == 0, f"{done.returncode}:\n{plain[-4000:]}"
    assert text.count(PROOF) == 4, f"not all ranks on kestrel:\n{plain[-4000:]}"
    sent = [tuple(map(int, found)) for found in SENT.findall(text)]
    assert len(sent) == 4 and all(near > 0 and far > 0 for near, far in sent), sent
    by_device = [int(found) for found in BY_DEVICE.findall(text)]
    assert sum(count > 0 for count in by_device) >= reaching, by_device
    return plain


def test_every_byte_is_checked() -> None:
    """Messages of all kinds, collectives and communicators."""
    text = job([build(MPICH, "exchange"), {"quick": "4096", "default": "8192", "full": "65536"}[SCALE]], ROOT, 400)
    assert re.search(r"[1-9]\d* checks passed on 4 ranks", text), text[-4000:]


LOSSY = pytest.param("loss 1%", 800, id="lossy", marks=pytest.mark.full)


@pytest.mark.parametrize("netem, seconds_max", [pytest.param("", 400, id="whole"), LOSSY])
def test_one_sided_operations(netem: str, seconds_max: int) -> None:
    """Two ranks have their right neighbour on the other host. With loss it takes some 3 min: what was lost
    is sent again when the device has waited long enough.
    """
    text = job([build(MPICH, "onesided"), "created"], ROOT, seconds_max, reaching=2, netem=netem)
    assert re.search(r"[1-9]\d* checks passed on 4 ranks", text), text[-4000:]


@pytest.mark.full
@pytest.mark.parametrize("module", SHARE)
def test_mpi4py(module: str) -> None:
    if not (SUITE / "prepared").exists():
        unavailable("mpi4py's tests are not there (scripts/clients)")
    text = job([MPICH.python(), "test/main.py", "-i", rf"test_{module}\.py"], SUITE, 3600)
    assert "\nOK" in text and re.search(r"Ran [1-9]\d* tests? in", text), text[-4000:]


BENCHMARKS = ["PingPong", *(pytest.param(it, marks=pytest.mark.full) for it in ("Sendrecv", "Allreduce", "Alltoall"))]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_intel_mpi_benchmarks(benchmark: str) -> None:
    """All sizes, with few iterations."""
    program = str(INTEL_MPI.folder / "bin" / "IMB-MPI1")
    text = job([program, benchmark, *LIMITS["IMB-MPI1"]], ROOT, 1200, INTEL_MPI)
    assert f"# Benchmarking {benchmark}" in text and re.search(r"^ +4194304 ", text, re.M), text[-4000:]
