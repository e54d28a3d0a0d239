"""libfabric's own test suite: each program of its lists is one test, by the name that it has there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from client import environment, run, unavailable
from suite import CONFIGURATIONS, HOST, KNOWN, Process, absent
from suite import command, judge, limit, listed, parameters, play

if absent():
    unavailable(str(absent()), allow_module_level=True)

LISTED = listed()
SCALE = os.environ.get("KESTREL_TEST_SCALE", "default")
# What runs at each scale of the sets that are pairs. "short" is "standard" with fewer iterations.
PAIRS = {
    "quick": LISTED["short"],
    "default": LISTED["functional"] + LISTED["short"],
    "full": LISTED["functional"] + LISTED["standard"] + LISTED["short"],
}
# Programs that runfabtests.sh does not start, as their manual page describes them.
ALONE = ["fi_loopback", "fi_mr_cache_evict"]
MORE = [
    "fi_rdm_bw",
    "fi_rdm_bw -v -U",
    "fi_rma_pingpong -e rdm -o write -v",
    "fi_rma_pingpong -e rdm -o writedata -U",
    "fi_rma_pingpong -e msg -o write",
    "fi_resmgmt_test -e msg",
    "fi_resmgmt_test -e rdm",
    "fi_resmgmt_test -e rdm -t",
    "fi_unmap_mem",
    "fi_rdm_multi_domain",
    "fi_rdm_deferred_wq",
    "fi_rdm_deferred_wq -T rma",
    "fi_rdm_deferred_wq -T atomic",
]
PROVIDER = ["-p", "kestrel"]


def not_quick(test: Callable[..., None]) -> Callable[..., None]:
    """Leaves a test out of the shortest share."""
    return pytest.mark.full(test) if SCALE == "quick" else test


def test_no_other_provider_is_there() -> None:
    """So that what runs on this libfabric, without a domain too, runs on kestrel."""
    outcome = run([*command("fi_info"), "-l"], environment(), 60)
    assert outcome.status == 0, outcome.text()
    names = {line[:-1] for line in outcome.text().splitlines() if line.endswith(":") and line[0] != " "}
    others = {name for name in names if not name.startswith(("ofi_hook_", "off_coll"))}
    assert others == {"kestrel"}, others


@pytest.mark.parametrize("line", LISTED["unit"] + LISTED["regression"] + ALONE)
def test_unit(line: str, tmp_path: Path) -> None:
    """Some ask for descriptions alone, and open no domain."""
    judge(line, play([*command(line), *PROVIDER], [], tmp_path, limit(line)), 0)


@pytest.mark.parametrize("line", LISTED["neg_unit"])
def test_what_must_not_be_found(line: str, tmp_path: Path) -> None:
    (outcome,) = play([*command(line), *PROVIDER], [], tmp_path, limit(line))
    assert outcome.status == errno.ENODATA, outcome.text()


def play_pair(line: str, tmp_path: Path) -> None:
    server = [*command(line), *PROVIDER, "-s", HOST]
    judge(line, play(server, [[*server, HOST]], tmp_path, limit(line)), 1)


@pytest.mark.parametrize("line", parameters(PAIRS[SCALE]))
def test_pair(line: str, tmp_path: Path) -> None:
    play_pair(line, tmp_path)


@not_quick
@pytest.mark.parametrize("line", parameters(MORE))
def test_pair_that_no_list_has(line: str, tmp_path: Path) -> None:
    play_pair(line, tmp_path)


@not_quick
@pytest.mark.parametrize("line", LISTED["multinode"])
def test_multinode(line: str, tmp_path: Path) -> None:
    """On three processes, as runfabtests.sh starts them."""
    process = [*command(line), "-n", "3", *PROVIDER, "-s", HOST]
    judge(line, play(process, [process, process], tmp_path, limit(line)), 1)


@not_quick
def test_multicast(tmp_path: Path) -> None:
    listener = [*command("fi_mcast"), *PROVIDER, "-M", "239.1.1.1"]
    sender = [*command("fi_mcast"), *PROVIDER, "239.1.1.1"]
    judge("fi_mcast", play(listener, [sender], tmp_path, limit("fi_mcast")), 1)


@not_quick
@pytest.mark.parametrize(
    "configuration",
    ["stress", *(pytest.param(f"stress-{kind}", marks=pytest.mark.full) for kind in ("msg", "rd", "wr"))],
)
def test_clients_that_end_in_the_middle(configuration: str, tmp_path: Path) -> None:
    """The server, whose 32 threads share an endpoint, goes on: it ends with the test alone."""
    # By itself it asks for FI_THREAD_DOMAIN, and does not keep to it.
    stress = [*command("fi_rdm_stress --threading safe"), *PROVIDER]
    orders = str(CONFIGURATIONS / "rdm_stress" / f"{configuration}.json")
    with Process([*stress, "-s", HOST], tmp_path, "server") as server:
        server.await_start()
        with Process([*stress, "-u", orders, HOST], tmp_path, "client") as client:
            outcome = client.wait(limit("fi_rdm_stress"))
        assert outcome.status == 0, f"{outcome.text()[-3000:]}\n--- server:\n{server.said()[-3000:]}"
        assert outcome.domains() >= 16, f"{outcome.domains()} clients on kestrel"
        assert server.popen.poll() is None, f"the server ended:\n{server.said()[-3000:]}"


def test_each_known_failure_is_a_test() -> None:
    tests = {line for lines in LISTED.values() for line in lines} | {*MORE, *ALONE, "fi_mcast"}
    assert set(KNOWN) <= tests, set(KNOWN) - tests
