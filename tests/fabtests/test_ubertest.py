"""fi_ubertest: hundreds of tests in one run, of every combination that a configuration names."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import unavailable
from suite import CONFIGURATIONS, HOST, Outcome, Process, absent, command

if absent():
    unavailable(str(absent()), allow_module_level=True)

KNOWN = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text())["ubertest"]
RUNS_MAX = 10
SECONDS_MAX = 1500
# So many tests that may fail do not all fail: in a run of tcp/all 13 of 23 did.
MANY = 10
# How long another run of this machine may have the port. Unit: seconds.
OTHERS_MAX = 600
SHARE = ["tcp/all"]
# That of udp takes datagrams to be lost that come late: see what is known of it.
FULL = ["udp/quick", "shm/quick", "shm/verify", "shm/all", "sockets/quick", "sockets/verify", "sockets/all"]
# A configuration's sets of tests, and the operations of one.
SET = re.compile(r"^\{\n.*?^\},?$", re.DOTALL | re.MULTILINE)
OPERATIONS = re.compile(r"\bop:\s*\[([^\]]*)\]")
ENDED = re.compile(
    r"^Starting test \d+ / (\d+):\n(.*?)^Ending test \d+ / \d+, result: (.*?)$", re.DOTALL | re.MULTILINE
)


def parts(name: str) -> list[str]:
    """One of libfabric's configurations, for kestrel, cut into a file for each run.

    The programs keep 6 MiB of each test, their control buffer, until they end: a whole configuration
    took 24 GB on both sides. So each of its sets is a run of its own, and of each operation where
    it crosses them with types. Kestrel has no FI_WAIT_MUTEX_COND: the run would end there.
    """
    text = (CONFIGURATIONS / f"{name}.test").read_text()
    text = re.sub(r"prov_name:\s*[^,\n]+", "prov_name: kestrel", text)
    text = re.sub(r"^\s*FI_WAIT_MUTEX_COND,\n", "", text, flags=re.MULTILINE)
    return [part for a_set in SET.findall(text) for part in by_operation(a_set)]


def by_operation(a_set: str) -> list[str]:
    """The set, or one like it for each of its operations."""
    found = OPERATIONS.search(a_set)
    if not found:
        return [a_set]
    operations = re.findall(r"\w+", found[1])
    return [OPERATIONS.sub(f"op: [ {operation}, ]", a_set) for operation in operations]


def run_once(orders: str, folder: Path) -> Outcome:
    """Both sides of a part: how the client ended, who judges."""
    folder.mkdir(parents=True)
    (file := folder / "kestrel.test").write_text(orders)
    with Process([*command("fi_ubertest"), "-x"], folder, "server") as server:
        # It listens first, on a socket.
        server.await_start()
        with Process([*command("fi_ubertest"), "-u", str(file), HOST], folder, "client") as client:
            return client.wait(SECONDS_MAX)


def run_part(name: str, orders: str, folder: Path) -> Outcome:
    """A part, started over if it ends in the way that is known of its configuration."""
    for run in range(RUNS_MAX):
        outcome = run_once(orders, folder / str(run))
        if name not in KNOWN["starts_over"] or not re.search(KNOWN["starts_over"][name], outcome.text()):
            break
        print(f"{name}: starts over")
    return outcome


def judge(outcome: Outcome) -> Counter[str]:
    """What the client counted in a part, of which nothing failed in a way that is not known."""
    text = outcome.text()
    # That tests failed is a status as well; that it crashed or was stopped is another one.
    assert outcome.status is not None and outcome.status >= 0, f"ended by {outcome.status}:\n{text[-3000:]}"
    ended = ENDED.findall(text)
    sums = re.findall(r"^(\w+)\s*: (\d+)$", text, re.MULTILINE)
    counts = Counter({what: int(count) for what, count in sums})
    failed = [f"{what} {result}" for _, what, result in ended if result != "Success"]
    unknown = [test for test in failed if not re.search(KNOWN["may_fail"], test)]
    assert not unknown, "\n".join(unknown)[:8000]
    assert counts and ended, f"exit status {outcome.status}, and no sum:\n{text[-3000:]}"
    assert counts["Success"] + counts["Skipped"] + len(failed) == int(ended[-1][0]), counts
    assert outcome.domains() >= len(ended), f"{outcome.domains()} domains on kestrel for {len(ended)} tests"
    counts["known"] = len(failed)
    counts["may fail"] = sum(bool(re.search(KNOWN["may_fail"], what)) for _, what, _ in ended)
    return counts


@pytest.fixture
def machine() -> Iterator[None]:
    """One at a time on this machine, other checkouts' too: the server listens for its orders at one port of all
    addresses."""
    # No other user's link is followed.
    path = Path(tempfile.gettempdir()) / f"fabtests-port-{os.getuid()}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + OTHERS_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < until, f"another run has had {path} for {OTHERS_MAX} s"
                time.sleep(0.5)
        yield
    finally:
        os.close(lock)


# The server listens for its orders at one port of all addresses.
@pytest.mark.xdist_group("ubertest")
@pytest.mark.parametrize(
    "name", [*SHARE, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)]
)
def test_ubertest(name: str, tmp_path: Path, machine: None) -> None:
    orders = parts(name)
    assert orders, f"{name} has no sets"
    counts = Counter()
    for number, part in enumerate(orders):
        counts += judge(run_part(name, part, tmp_path / str(number)))
    # Which of them fail is chance.
    assert counts["known"] < counts["may fail"] or counts["may fail"] < MANY, counts
    print(f"{name}: {dict(counts)} in {len(orders)} runs")
