"""libfabric's own test suite between two hosts: its pairs of programs, one on each, which on one host run over
shared memory (tests/fabtests)."""

from __future__ import annotations

import sys

import pytest

from client import Outcome, unavailable
from hosts import run_script
from lab import ROOT, needs_guest

sys.path.append(str(ROOT / "tests" / "fabtests"))

from suite import KNOWN, OPENED, absent, command, listed  # noqa: E402

if absent():
    unavailable(str(absent()), allow_module_level=True)

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

PEER = "10.9.0.2"
LISTED = listed()
# What a bounded run takes: a connection with data, descriptors, and one-sided operations on connected endpoints.
SHARE = ["fi_cm_data", "fi_msg_epoll", "fi_rma_pingpong -e msg -o write -S 65536 -I 10"]
# What is known to fail is known on one host. What is there to measure alone takes minutes where a machine is
# emulated, and what it checks the others check as well.
ALL = [line for line in LISTED["functional"] + LISTED["short"] if line not in KNOWN and "bw" not in line]


def test_the_share_is_of_the_suite() -> None:
    assert set(SHARE) <= {*ALL, SHARE[-1]}, set(SHARE) - set(ALL)


@pytest.mark.parametrize(
    "line", [*SHARE, *(pytest.param(line, marks=pytest.mark.full) for line in ALL if line not in SHARE)]
)
def test_pair(line: str) -> None:
    """Both processes end well, on kestrel."""
    program = " ".join([*command(line, PEER), "-p", "kestrel"])
    # The time of both hosts is shared with other tests.
    output = run_script(
        f"""
        export FI_PROVIDER=kestrel FI_PROVIDER_PATH={ROOT}/target/release FI_LOG_LEVEL=info FI_LOG_PROV=kestrel
        export FI_KESTREL_PEER_TIMEOUT=8000
        on-peer {program} -s {PEER} >/tmp/there 2>&1 & serves=$!
        until grep -qs "{OPENED}" /tmp/there || ! kill -0 $serves 2>/dev/null; do sleep 0.1; done
        {program} {PEER} 2>&1 || failed=$?
        wait $serves || failed=$?
        echo "on the other host:"; cat /tmp/there; exit ${{failed:-0}}
        """,
    )
    sides = [Outcome(0, side) for side in output.split("on the other host:\n")]
    assert len(sides) == 2 and all(side.domains() >= 1 for side in sides), output
