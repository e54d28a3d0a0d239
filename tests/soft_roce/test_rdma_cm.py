"""Connections through the kernel's connection manager: on one host and on two, with loss, and when
the cable, a process or the manager itself is gone."""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import HEARING, PULL_AND_PLUG, ended, example, needs_guest, run_alone

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

# The bounds of docs/verbs.md, and some time for an emulated machine.
BUSY_MS_MAX = 8_000 + 10_000
KILLED_MS_MAX = 1_000 + 5_000

# Shell function: how often connections of this host have been confirmed through rdma_cm since the script
# began, as the kernel counts it.
COUNTING = """
export ECHO_LOG=1
counters=/sys/class/infiniband/rxe0/ports/1
sent_before=$(cat $counters/cm_tx_msgs/rtu) received_before=$(cat $counters/cm_rx_msgs/rtu)
confirmed() {
    echo confirmed $(($(cat $counters/cm_tx_msgs/rtu) - sent_before)) \
        $(($(cat $counters/cm_rx_msgs/rtu) - received_before))
}
"""


@pytest.fixture(scope="session")
def streams() -> str:
    """The same over socket endpoints, which stand on connected ones."""
    return example("socket_echo")


def managed(echo: str, script: str) -> str:
    """A script whose endpoints connect through rdma_cm, with a server on the other host."""
    return f"""{COUNTING}
    export FI_KESTREL_CONNECT_BY=rdma_cm
    echo={echo}
    serve() {{ on-peer $echo serve 10.9.0.2:$1 2>/tmp/serve & peer_listening $1; }}
    {script}
    """


def confirmed(output: str) -> list[tuple[int, int]]:
    """Connections that were confirmed so far, by this host and to it."""
    found = re.findall(r"^confirmed (\d+) (\d+)$", output, re.MULTILINE)
    return [(int(sent), int(received)) for sent, received in found]


def test_rdma_cm_makes_connections_on_one_host(echo: str) -> None:
    """And where it cannot be opened TCP does."""
    script = """
        $echo serve $SOFT_ROCE_ADDRESS:7000 2>/tmp/serve & listening 7000
        $echo ask $SOFT_ROCE_ADDRESS:7000 100 2>&1; confirmed
        rm /dev/infiniband/rdma_cm
        $echo ask $SOFT_ROCE_ADDRESS:7000 50 2>&1; confirmed
        """
    output = run_alone(script=managed(echo, script))
    assert "100 answers" in output and "50 answers" in output
    assert output.count("connected through rdma_cm") == 1, output
    assert "connections are made over TCP: rxe0: no connection manager (rdma_cm)" in output
    # There, and back; then by nobody.
    first, second = confirmed(output)
    assert first == (2, 2) and second[0] == 2, output


@pytest.mark.full
@pytest.mark.parametrize("netem", ["", "loss 1%"], ids=["whole", "lossy"])
def test_two_hosts_ask_and_answer(echo: str, netem: str) -> None:
    script = "serve 7000; $echo ask 10.9.0.2:7000 500 2>&1; confirmed"
    output = run_script(managed(echo, script), netem=netem)
    assert "500 answers" in output
    if not netem:
        assert confirmed(output) == [(1, 1)], output


def test_the_code_point_reaches_the_wire(echo: str) -> None:
    """Every packet that comes to the other host has it, but for those by which the kernels connect."""
    # A kernel asks again after 4.3 s, and an emulated one on a busy machine may miss the first time.
    script = f"""{HEARING}
    export FI_KESTREL_CONNECT_TIMEOUT=20000
    serve 7000; hear 300
    ECHO_DSCP=46 $echo ask 10.9.0.2:7000 500 2>&1; confirmed; heard
    """
    output = run_script(managed(echo, script))
    assert "500 answers" in output and confirmed(output) == [(1, 1)], output
    heard = re.search(r"^code points (.*)$", output, re.MULTILINE)
    assert heard and set(heard[1].split()) - {"0"} == {"46"}, output


@pytest.mark.full
def test_without_a_class_the_kernels_default_holds(echo: str) -> None:
    """What an administrator has set for all that rdma_cm connects, and who answers has the caller's."""
    script = f"""{HEARING}
    export FI_KESTREL_CONNECT_TIMEOUT=20000
    mkdir -p /sys/kernel/config; mount -t configfs none /sys/kernel/config 2>&1 || true
    mkdir /sys/kernel/config/rdma_cm/rxe0
    echo 104 >/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos
    serve 7000; hear 300
    $echo ask 10.9.0.2:7000 500 2>&1; confirmed; heard
    """
    output = run_alone("--two", script=managed(echo, script))
    assert "500 answers" in output and confirmed(output) == [(1, 1)], output
    heard = re.search(r"^code points (.*)$", output, re.MULTILINE)
    assert heard and set(heard[1].split()) - {"0"} == {"26"}, output


@pytest.mark.full
def test_a_device_that_is_removed_is_noticed(echo: str) -> None:
    """Its removal waits until nobody has it open: rdma_cm says that it is about to go."""
    script = """
        $echo serve $SOFT_ROCE_ADDRESS:7000 2>/tmp/serve & serves=$!; listening 7000
        $echo ask $SOFT_ROCE_ADDRESS:7000 50 idle >/tmp/idle 2>&1 & idle=$!
        says answers /tmp/idle
        rdma link delete rxe0 & deletes=$!
        # Who serves hears of the removal, or of the end of who asked.
        wait $idle; cat /tmp/idle; says '^lost: ' /tmp/serve
        kill $serves; wait $deletes
        """
    output = run_alone(script=managed(echo, script))
    assert [how for _, how in ended(output)] == ["Lost"] and "DEVICE_REMOVAL" in output, output


@pytest.mark.full
def test_hosts_of_ipv6_alone_reach_each_other(echo: str) -> None:
    """Over TCP and through rdma_cm, from the one GID that has such an address and is not of a link alone."""
    script = """
        change() { echo "ip addr del 10.9.0.$1/24 dev eth0; ip addr add fd09::$1/64 dev eth0 nodad"; }
        eval "$(change 1)"; on-peer sh -c "$(change 2)"
        for way in tcp rdma_cm; do
            export FI_KESTREL_CONNECT_BY=$way
            on-peer $echo serve [fd09::2]:7000 2>/tmp/serve & serves=$!; peer_listening 7000
            $echo ask [fd09::2]:7000 50 2>&1; confirmed
            on-peer sh -c 'kill $(pidof echo)'; ! wait $serves
        done
        """
    output = run_alone("--two", script=managed(echo, script))
    assert output.count("50 answers") == 2, output
    assert output.count("uses GID 1: fd09::1") == 2, output
    assert output.count("connected through rdma_cm to=[fd09::2]:7000") == 1, output
    assert confirmed(output) == [(0, 0), (1, 1)], output


# Shell: nothing of TCP leaves a host, nor at first of UDP, which carries RoCE. Of the IPv4 packet: its protocol.
LOSES_TCP = """
loses_tcp() {
    . /run/soft-roce/settings
    tc qdisc replace dev $network root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc qdisc add dev $network parent 1:2 handle 2: netem loss 100%
    tc filter add dev $network parent 1: prio 1 protocol ip u32 match u8 6 0xff at 9 flowid 1:2
    tc filter add dev $network parent 1: prio 2 protocol ip u32 match u8 17 0xff at 9 flowid 1:2
}
lets_udp_pass() { tc filter del dev $network parent 1: prio 2; }
"""


@pytest.mark.full
def test_a_network_that_lets_no_tcp_pass_does(echo: str) -> None:
    """Also where the first request is lost: TCP is tried for a second, and then rdma_cm again."""
    script = f"""{LOSES_TCP}
        export FI_KESTREL_CONNECT_TIMEOUT=30000
        serve 7000; loses_tcp
        $echo ask 10.9.0.2:7000 50 >/tmp/asked 2>&1 & asks=$!
        says "GID" /tmp/asked; sleep 2; lets_udp_pass
        wait $asks || {{ cat /tmp/asked; exit 1; }}
        cat /tmp/asked; confirmed; tc -s qdisc show dev $network
        """
    output = run_alone("--two", script=managed(echo, script))
    assert "50 answers" in output and "connected through rdma_cm" in output, output
    assert confirmed(output) == [(1, 1)], output
    assert re.search(r"netem[^\n]*loss 100%\n[^\n]*dropped [1-9]", output), output


# Shell: loses what a host sends to say that an answer came. Of the IPv4 packet: the UDP port of RoCE,
# the queue pair of management, and the attribute of the datagram behind the headers (RTU is 0x14).
LOSES_LAST_WORDS = """
loses_last_words() {
    . /run/soft-roce/settings
    tc qdisc replace dev $network root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc qdisc add dev $network parent 1:2 handle 2: netem loss 100%
    tc filter add dev $network parent 1: protocol ip u32 \
        match u16 4791 0xffff at 22 match u32 1 0x00ffffff at 32 match u16 0x0014 0xffff at 64 \
        flowid 1:2
}
lost() { tc -s qdisc show dev $network | grep -A 1 netem; }
"""


@pytest.mark.full
def test_a_packet_stands_for_a_last_word_that_was_lost(streams: str) -> None:
    """The host that was asked never hears that its answer came: what is sent to it says as much."""
    output = run_alone(
        "--two",
        script=f"""{COUNTING}{LOSES_LAST_WORDS}
        loses_last_words
        on-peer {streams} serve 10.9.0.2:7000 & peer_listening 7000
        {streams} ask 10.9.0.1:7001 10.9.0.2:7000 100000; confirmed; lost
        echo "heard $(on-peer cat $counters/cm_rx_msgs/rtu)"
        """,
    )
    assert "100000 bytes came back" in output
    assert confirmed(output)[0][0] >= 1, output
    lost = re.search(r"dropped (\d+)", output)
    assert lost and int(lost[1]) >= 1, output
    assert "heard 0" in output, output


@pytest.mark.full
def test_a_stream_between_hosts_goes_through_rdma_cm(streams: str) -> None:
    """Connected endpoints do without being told to. A peer that is killed is noticed."""
    output = run_script(
        f"""{COUNTING}
        on-peer {streams} serve 10.9.0.2:7000 & peer_listening 7000
        {streams} ask 10.9.0.1:7001 10.9.0.2:7000 1000000; confirmed
        {streams} ask 10.9.0.1:7002 10.9.0.2:7000 1000000000 >/tmp/asked 2>&1 & asks=$!
        sleep 4; on-peer sh -c 'kill -9 $(pidof socket_echo)'
        ! wait $asks; cat /tmp/asked
        """,
    )
    assert "1000000 bytes came back" in output
    ((sent, received),) = confirmed(output)
    assert sent >= 1 and received >= 1, output
    assert "the peer is gone" in output, output


@pytest.mark.full
def test_a_killed_process_is_noticed_and_a_new_one_takes_its_place(echo: str) -> None:
    script = """
        serve 7000
        $echo ask 10.9.0.2:7000 50 idle >/tmp/idle & idle=$!
        says answers /tmp/idle
        $echo ask 10.9.0.2:7000 50 busy >/tmp/busy & busy=$!
        says answers /tmp/busy
        on-peer sh -c 'kill -9 $(pidof echo)'; killed=$(date +%s%3N)
        wait $idle $busy; echo "after $(($(date +%s%3N) - killed)) ms"; cat /tmp/idle /tmp/busy
        serve 7000
        $echo ask 10.9.0.2:7000 50; confirmed
        """
    output = run_script(managed(echo, script))
    assert [how for _, how in ended(output)] == ["Lost"] * 2
    first, _, second = re.findall(r"incarnation (\w+)", output)
    assert first != second
    after = re.search(r"after (\d+) ms\n", output)
    assert after and int(after[1]) < KILLED_MS_MAX, output
    assert confirmed(output) == [(3, 3)], output


@pytest.mark.full
def test_a_pulled_cable_is_noticed_and_a_plugged_one_works(echo: str) -> None:
    output = run_script(managed(echo, PULL_AND_PLUG))
    (busy, how_busy), (_, how_idle) = ended(output)
    assert (how_busy, how_idle) == ("Lost", "Lost"), output
    assert busy < BUSY_MS_MAX, output
    silent = re.search(r"idle after (\d+) ms", output)
    assert silent and int(silent[1]) < BUSY_MS_MAX, output
    assert "50 answers" in output and "connected through rdma_cm" in output


@pytest.mark.full
def test_a_host_without_rdma_cm_is_reached_over_tcp(echo: str) -> None:
    script = """
        on-peer rm /dev/infiniband/rdma_cm
        serve 7000; $echo ask 10.9.0.2:7000 50 2>&1; confirmed
        """
    output = run_alone("--two", script=managed(echo, script))
    assert "50 answers" in output and "connected through rdma_cm" not in output
    assert confirmed(output) == [(0, 0)], output
    assert "no endpoint listens" not in output
