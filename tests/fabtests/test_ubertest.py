"""fi_ubertest: hundreds of tests in one run, of every combination that a configuration names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from suite import CONFIGURATIONS, HOST, Outcome, Process, absent, command

if absent():
    pytest.skip(str(absent()), allow_module_level=True)

KNOWN = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text())["ubertest"]
RUNS_MAX = 10
SECONDS_MAX = 1500
SHARE = ["tcp/all"]
# That of udp takes datagrams to be lost that come late: see what is known of it.
FULL = ["udp/quick", "shm/quick", "shm/verify", "shm/all", "sockets/quick", "sockets/verify", "sockets/all"]
ENDED = re.compile(
    r"^Starting test \d+ / (\d+):\n(.*?)^Ending test \d+ / \d+, result: (.*?)$", re.DOTALL | re.MULTILINE
)


def configuration(name: str) -> str:
    """One of libfabric's, for kestrel, which has no FI_WAIT_MUTEX_COND: the run would end there."""
    text = (CONFIGURATIONS / f"{name}.test").read_text()
    text = re.sub(r"prov_name:\s*[^,\n]+", "prov_name: kestrel", text)
    return re.sub(r"^\s*FI_WAIT_MUTEX_COND,\n", "", text, flags=re.MULTILINE)


def run_once(name: str, folder: Path) -> Outcome:
    """Both sides of a configuration: how the client ended, who judges."""
    orders = folder / "kestrel.test"
    orders.write_text(configuration(name))
    with Process([*command("fi_ubertest"), "-x"], folder, "server") as server:
        # It listens first, on a socket.
        server.await_fabric()
        with Process([*command("fi_ubertest"), "-u", str(orders), HOST], folder, "client") as client:
            return client.wait(SECONDS_MAX)


@pytest.mark.parametrize(
    "name", [*SHARE, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)]
)
def test_ubertest(name: str, tmp_path: Path) -> None:
    for run in range(RUNS_MAX):
        (folder := tmp_path / str(run)).mkdir()
        outcome = run_once(name, folder)
        if name not in KNOWN["starts_over"] or not re.search(KNOWN["starts_over"][name], outcome.text()):
            break
        print(f"{name}: starts over")
    text = outcome.text()
    ended = ENDED.findall(text)
    counts = {what: int(count) for what, count in re.findall(r"^(\w+)\s*: (\d+)$", text, re.MULTILINE)}
    failed = [f"{what} {result}" for _, what, result in ended if result != "Success"]
    unknown = [test for test in failed if not re.search(KNOWN["may_fail"], test)]
    print(f"{name}: {counts}")
    assert not unknown, "\n".join(unknown)[:8000]
    assert counts and ended, f"exit status {outcome.status}, and no sum:\n{text[-3000:]}"
    assert counts["Success"] + counts["Skipped"] + len(failed) == int(ended[-1][0]), counts
    assert outcome.domains() >= len(ended), f"{outcome.domains()} domains on kestrel for {len(ended)} tests"
