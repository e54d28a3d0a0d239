"""How each client is started on one provider, and the proof that it was there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "target" / "clients"
LIBRARY = ROOT / "target" / "release"
# In the line that the library logs for each domain that a process opens on it.
PROOF = "kestrel_fi::domain():"
# Such a line, which begins with the process: some open several, so that a count proves no rank.
PROOF_LINE = re.compile(rf"libfabric:(\d+):[^\n]*{re.escape(PROOF)}")


@dataclass
class Outcome:
    """What a run left: its exit status (None if it was stopped) and all it printed."""

    status: int | None
    output: str

    def domains(self) -> int:
        """How many domains were opened on kestrel."""
        return self.output.count(PROOF)

    def text(self) -> str:
        """The output without the provider's log."""
        lines = self.output.splitlines()
        return "\n".join(line for line in lines if not line.startswith("libfabric:"))

    def check(self, ranks: int, domains_per_rank: int = 1) -> str:
        """The output of a run that succeeded, all of whose ranks were on kestrel, with that many domains."""
        text = self.text()
        tail = text[-4000:]
        assert self.status is not None, f"stopped at its limit:\n{tail}"
        assert self.status == 0, f"exit status {self.status}:\n{tail}"
        opened = Counter(PROOF_LINE.findall(self.output))
        count = sum(domains >= domains_per_rank for domains in opened.values())
        assert count >= ranks, f"{count} of {ranks} ranks on kestrel ({opened}):\n{tail}"
        return text


def environment(**more: str) -> dict[str, str]:
    """Loads the library that was built here, and has it log."""
    ours = {
        "FI_PROVIDER_PATH": str(LIBRARY),
        "FI_LOG_LEVEL": "info",
        "FI_LOG_PROV": "kestrel",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return {**os.environ, **ours, **more}


def run(
    command: list[str], env: dict[str, str], seconds_max: float, folder: Path | None = None
) -> Outcome:
    """Runs a command in a session of its own, and ends all of that session at the limit, or when the test
    ends meanwhile."""
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds_max)
        return Outcome(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=30)
        return Outcome(None, output)
    except BaseException:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise


# From 2.37 on glibc writes what is not buffered in pieces of 128 bytes, between which those of other ranks come.
WHOLE_LINES = ["stdbuf", "-eL"]


@dataclass(eq=False)
class Mpi:
    """One MPI, with what puts it onto kestrel and nothing else."""

    name: str
    launcher: Path
    arguments: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    # Its section of known_failures.toml, where that is not its name.
    known: str = ""

    @property
    def folder(self) -> Path:
        """Its Python environment."""
        return CLIENTS / self.name

    def absent(self) -> str | None:
        """Why it cannot be run here, if so."""
        for path in (self.launcher, self.folder / "prepared"):
            if not path.exists():
                return f"{self.name} is not there: {path} is missing (scripts/clients)"
        return None

    def start(
        self, ranks: int, program: list[str], seconds_max: float, folder: Path | None = None
    ) -> Outcome:
        """Runs a program on some ranks."""
        command = [str(self.launcher), *self.arguments, "-n", str(ranks), *WHOLE_LINES, *program]
        return run(command, environment(**self.variables), seconds_max, folder)

    def python(self) -> str:
        """Its interpreter, which has mpi4py."""
        return str(self.folder / "bin" / "python")


def unavailable(reason: str, **more: bool) -> NoReturn:
    """Skips a test, or a whole file, that lacks what scripts fetch and build. Where KESTREL_TEST_REQUIRE=1
    says that all of that can be had, it fails."""
    if os.environ.get("KESTREL_TEST_REQUIRE") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, **more)


def need(mpi: Mpi) -> None:
    """The test runs only where the client is there."""
    reason = mpi.absent()
    if reason:
        unavailable(reason)


# "cm" is Open MPI's layer for libraries that match tags themselves, "ofi" the one for libfabric.
OPEN_MPI = [
    *("--oversubscribe", "--bind-to", "none"),
    *("--mca", "pml", "cm", "--mca", "mtl", "ofi"),
]
OURS = {"FI_PROVIDER": "kestrel"}
EXPORT = [
    word for name in ("PROVIDER", "PROVIDER_PATH", "LOG_LEVEL", "LOG_PROV") for word in ("-x", f"FI_{name}")
]

MPICH = Mpi(
    "mpich",
    CLIENTS / "mpich/bin/mpiexec",
    # NOLOCAL: what stays on this host goes through libfabric, too.
    variables={"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", **OURS},
)
INTEL_MPI = Mpi(
    "intelmpi",
    CLIENTS / "intelmpi/bin/mpiexec",
    variables={
        "I_MPI_FABRICS": "ofi",
        "I_MPI_PIN": "0",
        **OURS,
        "LD_LIBRARY_PATH": str(CLIENTS / "intelmpi/lib"),
    },
)


def open_mpi_of(launcher: Path) -> Mpi:
    """Debian's Open MPI, which is 4.1 in Debian 12 and 5 in Debian 13: from 5 on, ranks get those variables
    alone that are exported, and what fails is what fails on 5."""
    generation = 4
    if launcher.exists():
        said = run([str(launcher), "--version"], environment(), 60).output
        found = re.search(r"\((?:OpenRTE|Open MPI)\) (\d+)\.", said)
        generation = int(found[1]) if found else generation
    arguments = OPEN_MPI + (EXPORT if generation >= 5 else [])
    return Mpi("openmpi", launcher, arguments, OURS, known=f"openmpi{generation}")


OPEN_MPI_OF_DEBIAN = open_mpi_of(Path("/usr/bin/mpirun.openmpi"))
OPEN_MPI_5 = Mpi("openmpi5", CLIENTS / "openmpi5/bin/mpirun", OPEN_MPI + EXPORT, OURS)
ALL = [MPICH, INTEL_MPI, OPEN_MPI_OF_DEBIAN, OPEN_MPI_5]
