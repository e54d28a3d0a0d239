"""The conformance suite over RC queue pairs of a real driver, both ends on one host."""

from __future__ import annotations

import pytest

from hosts import run_tests
from lab import HERE, modules_of, program_of_tests

pytestmark = pytest.mark.usefixtures("ready")

# How many connections rdma_cm has confirmed.
CONFIRMED = "/sys/class/infiniband/$SOFT_ROCE_DEVICE/ports/1/cm_tx_msgs/rtu"

# The suite in parts, so that no part takes long where the machine is emulated; but to boot that takes
# longer than most. A bounded run takes those that are not marked.
PARTS = [
    pytest.param(["messages", "truncation", "remote_data", "segments", "persistence"], id="messages"),
    pytest.param(["multi_receive", "peek", "cancel"], id="receives", marks=pytest.mark.full),
    pytest.param(["sizes", "queues"], id="sizes", marks=pytest.mark.full),
    pytest.param(["levels", "counters", "atomic"], id="counters", marks=pytest.mark.full),
    pytest.param(["rma", "mapped_anew", "adapter_atomics"], id="rma"),
    pytest.param(["order", "progress", "binding", "addresses"], id="order", marks=pytest.mark.full),
    pytest.param(
        ["datagrams", "datagram_contexts", "multicast", "connections", "connection_events"],
        id="others",
    ),
    pytest.param(["load"], id="load", marks=pytest.mark.full),
    pytest.param(
        ["scalable", "context_pairs", "shared_contexts", "shared_peeks", "mixed_contexts", "fences"],
        id="contexts",
        marks=pytest.mark.full,
    ),
    pytest.param(
        ["completion_order", "matching_order", "data_order"], id="orders", marks=pytest.mark.full
    ),
    pytest.param(["auth_keys", "buffered", "sources"], id="buffered", marks=pytest.mark.full),
    pytest.param(["triggered", "deferred_work"], id="triggered", marks=pytest.mark.full),
    pytest.param(["sockets", "socket_datagrams"], id="sockets", marks=pytest.mark.full),
]


@pytest.fixture(scope="session")
def suite() -> str:
    return program_of_tests("conformance_verbs")


def test_the_parts_are_the_whole_suite(suite: str) -> None:
    assert modules_of(suite) == {case for part in PARTS for case in part.values[0]}


# Devices are said to share no receives among queue pairs, as some do not.
OWN = {"FI_KESTREL_SRQ": "off"}
# What one thread uses alone, and what several may: all of the latter is for whole runs.
WAYS = [
    pytest.param("exclusive", {}, id="exclusive"),
    pytest.param("shared", {}, id="shared", marks=pytest.mark.full),
    pytest.param("exclusive", OWN, id="own_receives", marks=pytest.mark.full),
]
# What is made for one thread alone.
EXCLUSIVE = {"adapter_atomics", "multicast"}


@pytest.mark.parametrize("way, setting", WAYS)
@pytest.mark.parametrize("cases", PARTS)
def test_the_conformance_suite_passes(
    suite: str, cases: list[str], way: str, setting: dict[str, str]
) -> None:
    names = [f"{way}::{case}::" for case in cases if way == "exclusive" or case not in EXCLUSIVE]
    if not names:
        pytest.skip("one thread alone uses what these are about")
    confirmed = run_tests(suite, names, CONFIRMED, {"KESTREL_TEST_SCALE": "quick", **setting})
    if "connections" in cases and not HERE:
        assert confirmed > 0, "rdma_cm has made no connection"


def test_a_device_need_not_share_receives(suite: str) -> None:
    """Some of the suite: a whole run has all."""
    names = [f"exclusive::{case}::" for case in ("truncation", "multi_receive", "datagrams")]
    run_tests(suite, names, CONFIRMED, {"KESTREL_TEST_SCALE": "quick", **OWN})
