"""Socket endpoints on queue pairs: an echo server and its client, on one host and on two."""

from __future__ import annotations

import pytest

from hosts import run_script
from lab import example, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

BYTES = 3_000_000


@pytest.fixture(scope="session")
def echo() -> str:
    """The example that sends back what comes, and asks for that, built."""
    return example("socket_echo")


def test_two_hosts_echo_a_stream_and_datagrams(echo: str) -> None:
    """Every byte comes back, in order, and then the end, also with a lossy cable; of datagrams most."""
    output = run_script(
        f"""
        on-peer {echo} serve 10.9.0.2:7000 & peer_listening 7000
        {echo} ask 10.9.0.1:7001 10.9.0.2:7000 {BYTES}
        {echo} ask 10.9.0.1:7002 10.9.0.2:7000 1
        on-peer {echo} serve-datagrams 10.9.0.2:7005 & peer_listening 7005
        {echo} ask-datagrams 10.9.0.1:7003 10.9.0.2:7005 100
        """,
        netem="loss 1%",
    )
    assert f"{BYTES} bytes came back" in output, output
    assert "\n1 bytes came back" in output, output
    answers = int(output.split(" of 100 datagrams came back")[0].split()[-1])
    assert answers > 80, output
