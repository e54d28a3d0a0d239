"""kestrel-perf's ranks as the launchers of real MPIs start them."""

import json
from pathlib import Path

import pytest

from client import ALL, EXPORT, LIBRARY, Mpi, need, open_mpi_of

SIZE = 8


@pytest.mark.parametrize("mpi", ALL, ids=lambda mpi: mpi.name)
def test_ranks_find_each_other(mpi: Mpi, tmp_path: Path) -> None:
    """Two ranks measure with each other, and rank 0 alone reports."""
    need(mpi)
    program = LIBRARY / "kestrel-perf"
    report = tmp_path / "report.json"
    files = ["--json", str(report), "--html", str(tmp_path / "report.html")]
    measure = ["latency", "--size", str(SIZE), "--iterations", "1000", *files]
    outcome = mpi.start(2, [str(program), *measure], 120)
    assert outcome.status == 0, outcome.text()[-4000:]
    # By itself the program starts its own ranks: then this word is missing.
    assert "2 ranks by " in outcome.text(), outcome.text()
    sections = json.loads(report.read_text())["sections"]
    rows = [row for section in sections for row in section["rows"]]
    assert {row["size"] for row in rows} == {SIZE} and all(row["ns"] > 0 for row in rows), rows
    assert outcome.text().count("written: ") == 1, "rank 0 alone reports"


@pytest.mark.parametrize(("says", "exports"), [("OpenRTE) 4.1.4", False), ("Open MPI) 5.0.7", True)])
def test_open_mpi_is_told_by_its_version(tmp_path: Path, says: str, exports: bool) -> None:
    """Which of them Debian has depends on Debian."""
    launcher = tmp_path / "mpirun"
    launcher.write_text(f"#!/bin/sh\necho 'mpirun ({says}'\n")
    launcher.chmod(0o755)
    mpi = open_mpi_of(launcher)
    assert mpi.known == ("openmpi5" if exports else "openmpi4")
    assert (mpi.arguments[-len(EXPORT) :] == EXPORT) == exports
