"""libfabric's own ping-pong between two hosts, on connected endpoints (FI_EP_MSG): a program that knows
nothing of kestrel, and checks every byte."""

from __future__ import annotations

import re
import sys

import pytest

from lab import ROOT, needs_guest
from pair import PEER, run_pair

sys.path.append(str(ROOT / "tests" / "clients"))

from client import Outcome  # noqa: E402
from test_tools import SIZES, check_pingpong, tool  # noqa: E402

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]


def pingpong(words: str, netem: str = "") -> list[Outcome]:
    """What it left on both hosts, each of whose processes was on kestrel."""
    program = f"{tool('fi_pingpong')} -p kestrel -e msg -c {words}"
    here = f"{program} -P 47811 {PEER}"
    sides = run_pair(f"{program} -B 47811", here, "peer_listening 47811", netem)
    assert "connected through rdma_cm" in sides[0].output, sides[0].output
    return sides


def test_fi_pingpong_passes_a_lossy_cable() -> None:
    """Each packet that is lost is sent again after a second here: so it is one size alone."""
    for side in pingpong("-S 65536 -I 10", "loss 1%"):
        text = side.check(1)
        assert re.search(r"^64k +10 +=10 ", text, re.MULTILINE), text


@pytest.mark.full
def test_fi_pingpong_has_all_sizes_pass() -> None:
    """Up to 6 MiB, each with its answer."""
    for side in pingpong("-S all -I 2"):
        check_pingpong(side, SIZES[-1], "2")
