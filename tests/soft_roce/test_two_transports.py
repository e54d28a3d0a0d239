"""Two hosts with two ranks on each: neighbours meet in shared memory, the others on queue pairs."""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import HEARING, PATIENT, example, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

# What each rank sends each other one, as tests/examples/rank.rs has it: the messages and the last.
MESSAGES = 40 + 1
# FI_TC_LOW_LATENCY, as libfabric numbers it: code point 32.
LOW_LATENCY = 0x201


@pytest.fixture(scope="session")
def rank() -> str:
    """The example that is one rank, built."""
    return example("rank")


def job(rank: str, netem: str = "", *, setting: str) -> tuple[list[tuple[int, int]], str]:
    """Messages through shared memory and through RDMA that each rank sent, and the code points of
    the packets that came to the other host."""
    addresses = "10.9.0.1:7000 10.9.0.1:7001 10.9.0.2:7000 10.9.0.2:7001"
    setting += f" {PATIENT}"
    script = f"""{HEARING}
    hear 200
    export {setting}
    {rank} 0 {addresses} & zero=$!
    {rank} 1 {addresses} & one=$!
    on-peer env {setting} {rank} 2 {addresses} & two=$!
    on-peer env {setting} {rank} 3 {addresses} & three=$!
    for pid in $zero $one $two $three; do wait $pid; done
    heard
    """
    output = run_script(script, netem=netem)
    assert output.count("domain rxe0") == 4, output
    line = r"rank (\d): (\d+) messages \(\d+ bytes\) through shared memory, (\d+) messages"
    found = sorted(tuple(map(int, groups)) for groups in re.findall(line, output))
    assert [rank for rank, _, _ in found] == [0, 1, 2, 3], output
    code_points = re.findall(r"^code points (.*)$", output, re.MULTILINE)
    return [(near, far) for _, near, far in found], *code_points


# Also with a class that the user has set: code point 26, and congestion notification.
CLASS = pytest.param("", "FI_KESTREL_TRAFFIC_CLASS=106", "26", id="class")
LOSSY = pytest.param("loss 1%", "", "0", id="lossy", marks=pytest.mark.full)


@pytest.mark.parametrize("netem, setting, code_points", [CLASS, LOSSY])
def test_neighbours_go_near_and_others_far(
    rank: str, netem: str, setting: str, code_points: str
) -> None:
    sent = job(rank, netem, setting=f"FI_KESTREL_TRANSPORT=auto {setting}")
    assert sent == ([(MESSAGES, 2 * MESSAGES)] * 4, code_points)


def test_all_goes_far_where_that_is_forced(rank: str) -> None:
    """And every packet carries the traffic class: data, acknowledgements, and what is read."""
    setting = f"FI_KESTREL_TRANSPORT=verbs FI_KESTREL_FETCH_MIN=64K TRAFFIC_CLASS={LOW_LATENCY}"
    assert job(rank, setting=setting) == ([(0, 3 * MESSAGES)] * 4, "32")
