"""What C programs call, through stock libfabric, where the way between endpoints is a device."""

from __future__ import annotations

import pytest

from hosts import run_tests
from lab import cargo, modules_of, program_of_tests

pytestmark = pytest.mark.usefixtures("ready")

# How many packets have come.
RECEIVED = "/sys/class/infiniband/$SOFT_ROCE_DEVICE/ports/1/hw_counters/rcvd_pkts"

# The modules of libfabric/tests/door in parts, so that no part takes long where the machine is
# emulated. A bounded run takes the first.
PARTS = [
    pytest.param(["levels", "multicast"], id="levels"),
    pytest.param(
        ["tagged", "tagged_flags", "transfer", "cancel", "injections", "completion_order"]
        + ["data_order", "message_order", "fences"],
        id="messages",
        marks=pytest.mark.full,
    ),
    pytest.param(
        ["atomics", "auth_key_regions", "counters", "deferred_work", "one_sided", "regions"]
        + ["triggered"],
        id="memory",
        marks=pytest.mark.full,
    ),
    pytest.param(
        ["connection_ends", "connection_errors", "connection_threads", "connections"]
        + ["datagrams", "socket_losses", "sockets"],
        id="connections",
        marks=pytest.mark.full,
    ),
    pytest.param(
        ["auth_keys", "buffered", "buffered_peers", "context_memory", "context_pairs", "contexts"]
        + ["mixed_contexts", "shared_receives"],
        id="contexts",
        marks=pytest.mark.full,
    ),
    pytest.param(
        ["aliases", "bad_input", "binding", "collectives", "control", "default_flags"]
        + ["descriptors", "domain_events", "endpoint_attributes", "life_cycle", "refusals"]
        + ["signals", "vector_use", "wait_sets", "waiting"],
        id="objects",
        marks=pytest.mark.full,
    ),
]
# These name addresses of any host, start other programs, or load the processor for long.
ELSEWHERE = {
    *("discovery", "forks", "instances", "logs", "names", "nodes", "threads", "vectors", "versions"),
}


@pytest.fixture(scope="session")
def door() -> str:
    """The test program, built, and the library beside it."""
    cargo("build", "--lib")
    return program_of_tests("door")


def test_the_parts_are_all_modules(door: str) -> None:
    parts = [module for part in PARTS for module in part.values[0]]
    assert len(parts) == len(set(parts)) and modules_of(door) == {*parts, *ELSEWHERE}


@pytest.mark.parametrize("modules", PARTS)
def test_the_door_leads_to_a_device(door: str, modules: list[str]) -> None:
    env = {"KESTREL_DOOR_BUILT": "1", "FI_KESTREL_TRANSPORT": "verbs"}
    packets = run_tests(door, [f"{module}::" for module in modules], RECEIVED, env)
    assert packets > 0, "nothing came by the device"
