"""What becomes of all that an RDM endpoint has under way when its peer's cable or process goes."""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import example, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

KINDS = {"Short", "Long", "Unmatched", "Write", "Read", "FetchAdd", "Receive"}
# The bounds of docs/verbs.md for a cable that is pulled and for a process that dies, and some time for
# an emulated machine.
PULLED_MS_MAX = 8_000 + 10_000
KILLED_MS_MAX = 1_000 + 5_000


@pytest.fixture(scope="session")
def outage() -> str:
    """The example that keeps operations of every kind under way, built."""
    return example("outage")


def between_hosts(outage: str, netem: str = "", *, setting: str = "", script: str) -> str:
    """What a script prints that begins when operations of every kind are under way to the other host."""
    start = f"""
    export FI_KESTREL_TRANSPORT=verbs {setting}
    serve() {{
        on-peer env FI_KESTREL_TRANSPORT=verbs {setting} {outage} serve 10.9.0.2:7000 10.9.0.1:7001 &
        peer_listening 7000
    }}
    serve
    {outage} ask 10.9.0.1:7001 10.9.0.2:7000 >/tmp/asked 2>&1 & asker=$!
    asked() {{
        until grep -q "$1" /tmp/asked; do
            kill -0 $asker 2>/dev/null || {{ wait $asker || true; cat /tmp/asked; exit 1; }}
            sleep 0.1
        done
    }}
    asked "are under way"
    """
    return run_script(start + script, netem=netem)


def looked_through(output: str, ms_max: int) -> None:
    """Every kind has failed, with a reason, in time, and the peer was reached again."""
    failed = re.findall(r"^(\w+) failed after (\d+) ms: (.+)$", output, re.MULTILINE)
    assert {kind for kind, _, _ in failed} == KINDS, output
    assert len(failed) == len(KINDS), output
    assert all("10.9.0.2:7000" in reason for _, _, reason in failed), output
    took = re.search(r"all have ended (\d+) ms", output)
    assert took and int(took[1]) < ms_max, output
    assert re.search(r"reached again by attempt [1-9]", output), output


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


def test_operations_of_all_kinds_pass_a_lossy_cable(outage: str) -> None:
    """Some of each kind, and what is read is compared."""
    # The time of both hosts is shared with other tests; what is lost is sent again after an eighth of this.
    setting = "FI_KESTREL_PEER_TIMEOUT=8000"
    output = between_hosts(outage, "loss 1%", setting=setting, script="kill $asker; cat /tmp/asked")
    assert "all kinds are under way" in output and "failed after" not in output, output


def test_all_ends_with_the_peers_process(outage: str) -> None:
    """And who comes in its place is reached."""
    script = """
    on-peer sh -c 'kill -9 $(pidof outage)'
    asked "all have ended"
    serve
    asked reached; wait $asker; cat /tmp/asked
    """
    looked_through(between_hosts(outage, script=script), KILLED_MS_MAX)
