"""What becomes of all that an endpoint has under way when its peer's cable or process goes: of an RDM
endpoint, and of a connected one (FI_EP_MSG), which then has to connect anew."""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import PATIENT, PROMPT, example, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

KINDS = {"Short", "Long", "Unmatched", "Write", "Read", "FetchAdd", "Receive"}
# The bounds of docs/verbs.md for a cable that is pulled and for a process that dies, and some time for
# an emulated machine.
PULLED_MS_MAX = 8_000 + 10_000
KILLED_MS_MAX = 1_000 + 5_000
# An attempt to connect ends with FI_KESTREL_CONNECT_TIMEOUT.
CONNECT_MS_MAX = 5_000 + 10_000


@pytest.fixture(scope="session")
def outage() -> str:
    """The example that keeps operations of every kind under way, built."""
    return example("outage")


def between_hosts(
    outage: str, netem: str = "", *, setting: str = "", connected: bool = False, script: str
) -> str:
    """What a script prints that begins when operations of every kind are under way to the other host."""
    how = "-connected" if connected else ""
    start = f"""
    export FI_KESTREL_TRANSPORT=verbs {PROMPT} {setting}
    serve() {{
        on-peer env FI_KESTREL_TRANSPORT=verbs {PROMPT} {setting} {outage} serve{how} 10.9.0.2:7000 10.9.0.1:7001 &
        peer_listening 7000
    }}
    serve
    {outage} ask{how} 10.9.0.1:7001 10.9.0.2:7000 >/tmp/asked 2>&1 & asker=$!
    asked() {{
        until grep -q "$1" /tmp/asked; do
            kill -0 $asker 2>/dev/null || {{ wait $asker || true; cat /tmp/asked; exit 1; }}
            sleep 0.1
        done
    }}
    asked "are under way"
    """
    return run_script(start + script, netem=netem)


def looked_through(output: str, ms_max: int, connected: bool = False) -> None:
    """Every kind has failed, with a reason, in time, and the peer was reached again. What a connection has
    posted ends with it (FI_SHUTDOWN), and receives name no peer."""
    failed = re.findall(r"^(\w+) failed after (\d+) ms: (.+)$", output, re.MULTILINE)
    assert {kind for kind, _, _ in failed} == KINDS, output
    assert len(failed) == len(KINDS), output
    # Who accepts does at a port of its own.
    peer, own = ("10.9.0.2:", "the connection is over") if connected else ("10.9.0.2:7000",) * 2
    for kind, _, reason in failed:
        assert (own if kind == "Receive" else peer) in reason, output
    took = re.search(r"all have ended (\d+) ms", output)
    assert took and int(took[1]) < ms_max, output
    assert re.search(r"reached again by attempt [1-9]", output), output
    if connected:
        over = re.search(r"shut down (\d+) ms after that", output)
        assert over and int(over[1]) < 1_000, output


DEVICE = pytest.param("FI_KESTREL_NIC_ATOMICS=exclusive", id="device", marks=pytest.mark.full)


@pytest.mark.parametrize("setting", [pytest.param("", id="packets"), DEVICE])
def test_all_ends_when_the_cable_is_pulled(outage: str, setting: str) -> None:
    """And the peer is reached again when it is plugged."""
    script = """
    cable pull
    asked "all have ended"
    cable plug
    asked reached; wait $asker; cat /tmp/asked
    """
    looked_through(between_hosts(outage, setting=setting, script=script), PULLED_MS_MAX)


def test_a_connection_ends_when_the_cable_is_pulled(outage: str) -> None:
    """With all that is under way on it. While the cable is out an attempt to connect fails in time and says
    why; when it is plugged, one succeeds."""
    script = """
    cable pull
    asked "attempt 2 failed"
    cable plug
    asked reached; wait $asker; cat /tmp/asked
    """
    output = between_hosts(outage, connected=True, script=script)
    looked_through(output, PULLED_MS_MAX, connected=True)
    attempts = re.findall(r"^attempt \d+ failed after (\d+) ms: (.+)$", output, re.MULTILINE)
    assert len(attempts) >= 2, output
    assert all(int(ms) < CONNECT_MS_MAX and "10.9.0.2:7000" in why for ms, why in attempts), output


CONNECTED = pytest.param(True, id="connected")


@pytest.mark.parametrize("connected", [pytest.param(False, id="rdm"), CONNECTED])
def test_operations_of_all_kinds_pass_a_lossy_cable(outage: str, connected: bool) -> None:
    """Some of each kind, and what is read is compared."""
    script = "kill $asker; cat /tmp/asked"
    output = between_hosts(outage, "loss 1%", setting=PATIENT, connected=connected, script=script)
    assert "all kinds are under way" in output and "failed after" not in output, output


@pytest.mark.parametrize(
    "connected",
    [pytest.param(False, id="rdm"), pytest.param(True, id="connected", marks=pytest.mark.full)],
)
def test_all_ends_with_the_peers_process(outage: str, connected: bool) -> None:
    """And who comes in its place is reached."""
    script = """
    on-peer sh -c 'kill -9 $(pidof outage)'
    asked "all have ended"
    serve
    asked reached; wait $asker; cat /tmp/asked
    """
    output = between_hosts(outage, connected=connected, script=script)
    looked_through(output, KILLED_MS_MAX, connected)
