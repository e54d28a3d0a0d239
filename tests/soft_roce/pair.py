"""Two programs of libfabric's, one on each of two hosts, which know nothing of kestrel."""

from __future__ import annotations

from client import LIBRARY, Outcome, unavailable
from hosts import run_script
from lab import PATIENT

PEER = "10.9.0.2"
HERE = "10.9.0.1"


def run_pair(there: str, here: str, ready: str, netem: str = "") -> list[Outcome]:
    """What both left who must end well: the one here, and the one on the other host, which starts first. What the
    shell has to do until that one is ready may look into its output, /tmp/there, and whether it runs, $serves."""
    if not (LIBRARY / "libkestrel_fi.so").exists():
        unavailable(f"{LIBRARY}/libkestrel_fi.so is not built (cargo build --release)")
    output = run_script(
        f"""
        export FI_PROVIDER=kestrel FI_PROVIDER_PATH={LIBRARY} FI_LOG_LEVEL=info FI_LOG_PROV=kestrel
        export {PATIENT}
        on-peer {there} >/tmp/there 2>&1 & serves=$!
        {ready}
        {here} 2>&1 || failed=$?
        # Of who has failed the other one may never hear.
        test ${{failed:-0}} != 0 || wait $serves || failed=$?
        echo "on the other host:"; cat /tmp/there; exit ${{failed:-0}}
        """,
        netem=netem,
    )
    sides = [Outcome(0, side) for side in output.split("on the other host:\n")]
    assert len(sides) == 2, output
    return sides
