"""`kestrel-perf` on queue pairs, a rank on each of two hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client import unavailable
from hosts import run_script
from lab import PATIENT, ROOT, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

# What to measure, and what the report says of it: more than zero of each.
RUNS = [
    pytest.param(
        "latency --size 8 --iterations 20",
        ["half round trip"],
        id="latency",
        marks=pytest.mark.full,
    ),
    pytest.param(
        "bandwidth --size 64K --iterations 4", ["streaming", "ping-pong"], id="bandwidth"
    ),
    pytest.param("rate --iterations 200", ["one way"], id="rate", marks=pytest.mark.full),
    pytest.param("rma --size 8,64K --iterations 4", ["write", "read"], id="rma"),
    pytest.param("atomics --iterations 4", ["fetch-add"], id="atomics", marks=pytest.mark.full),
]


@pytest.fixture(scope="session")
def perf() -> Path:
    program = ROOT / "target" / "release" / "kestrel-perf"
    if not program.exists():
        unavailable(f"{program} is not built (cargo build --release -p kestrel-perf)")
    return program


@pytest.mark.parametrize(("words", "rows"), RUNS)
def test_two_shells_on_two_hosts(perf: Path, words: str, rows: list[str]) -> None:
    """The one that listens writes the report; there is no floor between two hosts, and it says so."""
    output = run_script(
        f"""
        export {PATIENT}
        perf() {{ {perf} {words} --provider verbs "$@"; }}
        on-peer {perf} --connect 10.9.0.1:7000 >/tmp/connected 2>&1 & connects=$!
        perf --listen 10.9.0.1:7000 --json /tmp/report.json --html /tmp/report.html
        wait $connects || {{ cat /tmp/connected; exit 1; }}
        test -s /tmp/report.html; cat /tmp/report.json
        """
    )
    table, _, report = output.partition("\n{")
    assert "provider: verbs" in table, output
    assert "floor: none (rank 1: the ranks are on two hosts, which share no memory)" in table, output
    for row in rows:
        assert row in table, output
    measured = [row for section in json.loads("{" + report)["sections"] for row in section["rows"]]
    assert measured and all(row["ns"] > 0 for row in measured), measured


def test_the_doctor_names_the_gid_of_the_port(perf: Path) -> None:
    """The one that belongs to the guest's address; then, without an address, what is to be done about it."""
    output = run_script(
        f"""
        {perf} doctor 2>&1 | grep -A 1 GID; echo
        ip addr flush dev eth0; {perf} doctor 2>&1 | grep -A 1 GID
        ip addr add 10.9.0.1/24 dev eth0
        """
    )
    whole, bare = output.split("\n\n", 1)
    assert "rxe0 port 1 goes by GID 1: ::ffff:10.9.0.1 (RoCE v2, eth0)" in whole, output
    assert whole.startswith("ok "), output
    assert bare.startswith("BAD ") and "ip addr add" in bare, output


@pytest.mark.parametrize("peers", [20, pytest.param(200, marks=pytest.mark.full)])
def test_many_peers_of_one_process(perf: Path, peers: int) -> None:
    """All connect to one, and keep less than 64 KiB at either end while they are idle."""
    output = run_script(
        f"{perf} peers --provider verbs --peers {peers} --json /tmp/peers.json && cat /tmp/peers.json"
    )
    table, _, report = output.partition("\n{")
    assert f"{peers} to one in " in table, output
    print(table)
    (section,) = json.loads("{" + report)["sections"]
    kept = {aim["what"]: aim["value"] for aim in section["aims"]}
    assert 0 < kept["bytes of a peer that is connected and idle, an end"] < 64 << 10, kept
