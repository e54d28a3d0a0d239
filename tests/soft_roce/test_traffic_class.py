"""The class that an endpoint asks for is in the headers of its packets."""

from __future__ import annotations

import shlex

import pytest

from lab import example, needs_guest, run_script

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

# As libfabric numbers them: FI_TC_LOW_LATENCY, and the code point 46 as fi_tc_dscp_set() has it.
LOW_LATENCY = 0x201
CODE_POINT_46 = 0x100 | 46

# Prints the code points of the RoCE packets that come, when there have been as many as asked for.
# A raw socket gets a copy of each packet of UDP, with its header.
LISTEN = """
import socket, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
raw.settimeout(100)
print("listening", flush=True)
seen, left = set(), int(sys.argv[1])
while left:
    packet = raw.recv(65536)
    start = 4 * (packet[0] & 15)
    if packet[start + 2 : start + 4] == (4791).to_bytes(2, "big"):
        seen.add(packet[1] >> 2)
        left -= 1
print("code points", *sorted(seen), flush=True)
"""


# Waits for a listener on the other host that hears so many packets, and says what it heard.
HEARING = f"""
hear() {{
    on-peer python3 -c {shlex.quote(LISTEN)} $1 >/tmp/heard & listens=$!
    until grep -q listening /tmp/heard; do sleep 0.1; done
}}
heard() {{ wait $listens; grep code /tmp/heard; }}
"""


def test_packets_carry_it() -> None:
    """Those of queue pairs, be they data, acknowledgements or what is read; and datagrams."""
    rank, datagrams = (example("kestrel-tests", name) for name in ("rank", "datagrams"))
    addresses = "10.9.0.1:7000 10.9.0.2:7000"
    script = f"""
    export TRAFFIC_CLASS={LOW_LATENCY} FI_KESTREL_FETCH_MIN=64K
    hear 200
    on-peer env TRAFFIC_CLASS=$TRAFFIC_CLASS {rank} 1 {addresses} & there=$!
    {rank} 0 {addresses}; wait $there; heard
    TRAFFIC_CLASS={CODE_POINT_46}
    hear 50
    on-peer env TRAFFIC_CLASS=$TRAFFIC_CLASS {datagrams} serve 10.9.0.2:7000 & peer_listening 7000
    {datagrams} ask 10.9.0.1:7001 10.9.0.2:7000 100; heard
    """
    output = run_script("--two", script=HEARING + script)
    heard = [line for line in output.splitlines() if line.startswith("code points")]
    assert heard == ["code points 32", "code points 46"], output
