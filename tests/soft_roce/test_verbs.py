"""RC queue pairs between two hosts, with loss, and when the cable, a process or a host goes.

And on one host: what is said where something is missing.
"""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import PATIENT, PULL_AND_PLUG, ended, needs_guest, run_alone

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

# The bounds of docs/verbs.md for a cable that is pulled, and some time for an emulated machine.
BUSY_MS_MAX = 8_000 + 10_000
SILENT_MS_MAX = 5_000 + 1_000 + 8_000 + 10_000
# The same of a process that dies.
KILLED_MS_MAX = 1_000 + 5_000


def between_hosts(echo: str, netem: str = "", *, script: str) -> str:
    """What a script prints that runs beside an endpoint on the other host."""
    start = f"""
    echo={echo}
    serve() {{ on-peer $echo serve 10.9.0.2:$1 & peer_listening $1; }}
    """
    return run_script(start + script, netem=netem)


WHOLE = pytest.param("", id="whole", marks=pytest.mark.full)


@pytest.mark.parametrize("netem", [WHOLE, pytest.param("loss 1%", id="lossy")])
def test_two_hosts_ask_and_answer(echo: str, netem: str) -> None:
    """And a host or an endpoint that is not there is an error."""
    output = between_hosts(
        echo,
        netem,
        script=f"export {PATIENT}"
        """
        serve 7000; $echo ask 10.9.0.2:7000 500
        ! $echo ask 10.9.0.77:7000 1 2>&1; ! $echo ask 10.9.0.2:7999 1 2>&1
        """,
    )
    assert "500 answers" in output
    assert "10.9.0.77:7000" in output and "no endpoint listens at 10.9.0.2:7999" in output


def test_a_pulled_cable_is_noticed_and_a_plugged_one_works(echo: str) -> None:
    output = between_hosts(echo, script=PULL_AND_PLUG)
    (busy, how_busy), (_, how_idle) = ended(output)
    assert (how_busy, how_idle) == ("Lost", "Lost")
    assert busy < BUSY_MS_MAX, output
    silent = re.search(r"idle after (\d+) ms", output)
    assert silent and int(silent[1]) < SILENT_MS_MAX, output
    assert "50 answers" in output


@pytest.mark.full
def test_an_outage_shorter_than_the_peer_timeout_is_outlasted(echo: str) -> None:
    """The cable is away for longer than a peer may not answer unless said otherwise.

    To pull it and to plug it takes an emulated machine up to ten seconds each."""
    output = between_hosts(
        echo,
        script="""
        export FI_KESTREL_PEER_TIMEOUT=45000
        goes_on() {
            until grep -q "goes on" /tmp/busy && kill -0 $idle; do
                kill -0 $busy || { cat /tmp/busy; exit 1; }
                sleep 0.1
            done
        }
        serve 7000
        $echo ask 10.9.0.2:7000 100 busy >/tmp/busy & busy=$!
        $echo ask 10.9.0.2:7000 100 idle >/tmp/idle & idle=$!
        says answers /tmp/busy; says answers /tmp/idle
        cable pull; sleep 12; cable plug
        goes_on
        on-peer sh -c 'kill -9 $(pidof echo)'
        wait $busy; cat /tmp/busy; wait $idle; cat /tmp/idle
        """,
    )
    away = re.search(r"goes on after (\d+) ms", output)
    assert away and int(away[1]) >= 12_000, output
    assert [how for _, how in ended(output)] == ["Lost", "Lost"]


def test_a_killed_process_is_noticed_and_a_new_one_takes_its_place(echo: str) -> None:
    output = between_hosts(
        echo,
        script="""
        serve 7000
        $echo ask 10.9.0.2:7000 50 idle >/tmp/idle & idle=$!
        says answers /tmp/idle
        on-peer sh -c 'kill -9 $(pidof echo)'; killed=$(date +%s%3N)
        wait $idle; echo "after $(($(date +%s%3N) - killed)) ms"; cat /tmp/idle
        serve 7000
        $echo ask 10.9.0.2:7000 50
        """,
    )
    assert [how for _, how in ended(output)] == ["Lost"]
    first, second = re.findall(r"incarnation (\w+)", output)
    assert first != second
    after = re.search(r"after (\d+) ms\n", output)
    assert after and int(after[1]) < KILLED_MS_MAX, output


def test_what_is_missing_is_named(echo: str) -> None:
    script = f"""
    as_user() {{ setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set=-all "$@" 2>&1; }}
    chmod 755 /tmp; cp {echo} /tmp/echo
    for limit in 64 800; do
        ! as_user sh -c "ulimit -l $limit; /tmp/echo serve $SOFT_ROCE_ADDRESS:7000"
    done
    chmod 600 /dev/infiniband/uverbs0
    ! as_user /tmp/echo serve $SOFT_ROCE_ADDRESS:7000
    ip link set d0 down
    ! /tmp/echo serve $SOFT_ROCE_ADDRESS:7000 2>&1
    rdma link delete rxe0
    ! /tmp/echo serve $SOFT_ROCE_ADDRESS:7000 2>&1
    """
    output = run_alone(script=script)
    assert "(RLIMIT_MEMLOCK) is 64 KiB: raise it with ulimit -l" in output
    assert "(RLIMIT_MEMLOCK) is 800 KiB" in output
    assert "no permission to open /dev/infiniband/uverbs0" in output
    assert "rxe0 (no port is active)" in output
    assert "no RDMA device" in output
