"""kestrel-perf compare beside the programs of others: that it finds, starts and reads them. No figure is
judged."""

import json
import os
from pathlib import Path

from client import INTEL_MPI, LIBRARY, ROOT, need, run, unavailable

SIZE = 8


def against(part: str, folder: Path) -> dict[str, set[str]]:
    """Whom kestrel was compared with, by the section of the report."""
    report = folder / "report.json"
    files = ["--json", str(report), "--html", str(folder / "report.html")]
    little = ["--seconds", "5", "--size", str(SIZE), "--iterations", "200", "--ranks", "2"]
    command = [str(LIBRARY / "kestrel-perf"), "compare", "--only", part, *little, *files]
    outcome = run(command, dict(os.environ), 180)
    assert outcome.status == 0, outcome.text()[-4000:]
    sections = json.loads(report.read_text())["sections"]
    rows = [(section["id"], row) for section in sections for row in section["rows"]]
    assert rows and all(row["size"] == SIZE and row["ns"] > 0 for _, row in rows), outcome.text()[-4000:]
    found: dict[str, set[str]] = {}
    for section, row in rows:
        found.setdefault(section, set()).add(row["against"]["name"])
    return found


def test_intel_mpi(tmp_path: Path) -> None:
    need(INTEL_MPI)
    collectives = {f"compare-imb-{name}": {"libfabric's shm"} for name in ("allreduce", "alltoall", "bcast")}
    ping_pong = {"compare-imb-pingpong": {"Intel MPI's own shm"}}
    assert against("imb", tmp_path) == ping_pong | collectives


def test_ucx(tmp_path: Path) -> None:
    """Which `scripts/peers` installs."""
    installed = run([str(ROOT / "scripts/peers")], dict(os.environ), 300)
    if installed.status != 0:
        said = installed.output.strip().splitlines() or ["it said nothing"]
        unavailable(f"UCX is not there: {said[-1]} (scripts/peers)")
    assert Path(installed.output.splitlines()[-1]).is_file()
    assert against("ucx", tmp_path) == {"compare-ucx": {"UCX"}}
