"""libfabric's own test suite between two hosts: its pairs of programs, one on each, which on one host run over
shared memory (tests/fabtests)."""

from __future__ import annotations

import sys

import pytest

from client import unavailable
from lab import ROOT, needs_guest
from pair import HERE, PEER, run_pair

sys.path.append(str(ROOT / "tests" / "fabtests"))

from suite import KNOWN, OPENED, absent, command, listed  # noqa: E402

if absent():
    unavailable(str(absent()), allow_module_level=True)

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

LISTED = listed()
# What a bounded run takes: a connection with data, and descriptors; and what no list has at this size,
# one-sided operations on connected endpoints.
SHARE = ["fi_cm_data", "fi_msg_epoll"]
MORE = ["fi_rma_pingpong -e msg -o write -S 65536 -I 10"]
# Whose client has to be told its own address.
NAMES_SOURCE = ["fi_msg_sockets"]
# What is known to fail is known on one host. What is there to measure alone takes minutes where a machine is
# emulated, and what it checks the others check as well.
ALL = [line for line in LISTED["functional"] + LISTED["short"] if line not in KNOWN and "bw" not in line]


def test_the_share_is_of_the_suite() -> None:
    assert set(SHARE) <= set(ALL), set(SHARE) - set(ALL)


@pytest.mark.parametrize(
    "line", [*SHARE, *MORE, *(pytest.param(line, marks=pytest.mark.full) for line in ALL if line not in SHARE)]
)
def test_pair(line: str) -> None:
    """Both processes end well, on kestrel."""
    program = " ".join([*command(line, PEER), "-p", "kestrel"])
    # Some tell each other their addresses over TCP, and open nothing before.
    started = f"""
        listens_there() {{ on-peer sh -c 'ss -Hltnp | grep -q "(.fi_"'; }}
        is_up() {{ grep -qs "{OPENED}" /tmp/there || ! kill -0 $serves 2>/dev/null || listens_there; }}
        await is_up
    """
    source = f"-s {HERE}" if line in NAMES_SOURCE else ""
    sides = run_pair(f"{program} -s {PEER}", f"{program} {source} {PEER}", started)
    assert all(side.domains() >= 1 for side in sides), [side.output for side in sides]
