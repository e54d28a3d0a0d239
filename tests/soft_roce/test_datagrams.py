"""Datagrams between two hosts: whole, once, and nobody waits for what is lost."""

from __future__ import annotations

import re

import pytest

from hosts import run_script
from lab import HEARING, PROMPT, example, needs_guest

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]

QUESTIONS = 300
# Messages to a group where one in a hundred is lost on its way: that none is has a chance of one in 100,000.
SPOKEN = 1200
# A send waits for its peer to be found until FI_KESTREL_CONNECT_TIMEOUT; and some time for an emulated machine.
SEND_MS_MAX = 5_000 + 10_000
# Until a plugged cable carries datagrams again: what tries to find the peer then tries on for so long.
AGAIN_MS_MAX = 5_000 + 10_000
# As fi_tc_dscp_set() has it.
CODE_POINT_46 = 0x100 | 46


@pytest.fixture(scope="session")
def datagrams() -> str:
    """The example that asks and answers, built."""
    return example("datagrams")


def between_hosts(datagrams: str, netem: str = "", *, script: str) -> str:
    """What a script prints that runs beside an endpoint on the other host."""
    start = f"""
    datagrams={datagrams}
    serve() {{ on-peer $datagrams serve 10.9.0.2:7000 & peer_listening 7000; }}
    """
    return run_script(start + script, netem=netem)


def answers(output: str) -> list[int]:
    """How many questions were answered, of each who asked."""
    return [int(count) for count in re.findall(rf"(\d+) answers to {QUESTIONS} questions", output)]


@pytest.mark.full
def test_two_hosts_ask_and_answer(datagrams: str) -> None:
    output = between_hosts(
        datagrams, script=f"serve; $datagrams ask 10.9.0.1:7001 10.9.0.2:7000 {QUESTIONS}"
    )
    assert "domain rxe0, 4032 bytes at most" in output, output
    # Nothing is lost on purpose, and an emulated machine may lose something all the same.
    assert answers(output)[0] > QUESTIONS * 0.9, output


def test_what_is_lost_holds_nothing_up(datagrams: str) -> None:
    """Each answer that comes is whole and comes once, or the program says so and fails. Each
    question carries the traffic class."""
    output = between_hosts(
        datagrams,
        "loss 1%",
        script=f"""{HEARING}
        hear 100
        serve
        TRAFFIC_CLASS={CODE_POINT_46} $datagrams ask 10.9.0.1:7001 10.9.0.2:7000 {QUESTIONS}
        heard
        """,
    )
    assert "code points 46\n" in output, output
    assert answers(output)[0] > QUESTIONS * 0.7, output


@pytest.mark.full
def test_a_killed_peer_is_found_again(datagrams: str) -> None:
    """Sends go on while it is gone, and reach the one that takes its place."""
    output = between_hosts(
        datagrams,
        script=f"""
        serve
        $datagrams ask 10.9.0.1:7001 10.9.0.2:7000 {QUESTIONS} & asks=$!
        sleep 2; on-peer sh -c 'kill -9 $(pidof datagrams)'; sleep 1
        serve
        wait $asks
        $datagrams ask 10.9.0.1:7002 10.9.0.2:7000 {QUESTIONS}
        """,
    )
    assert len(answers(output)) == 2, output
    assert answers(output)[1] > QUESTIONS * 0.9, output


@pytest.mark.parametrize("manager", ["auto", pytest.param("rdma_cm", marks=pytest.mark.full)])
def test_both_hosts_hear_a_group(datagrams: str, manager: str) -> None:
    """Who is on the speaker's host hears it, and who is beyond the cable: by sockets, and by the
    kernel's connection manager, as on InfiniBand."""
    output = spoken(datagrams, QUESTIONS, manager=manager)
    joined = output.count("joined through rdma_cm")
    assert joined == (3 if manager == "rdma_cm" else 0), output
    assert min(heard(output, QUESTIONS)) > QUESTIONS * 0.9, output


def test_a_group_loses_what_the_cable_loses_and_nothing_else(datagrams: str) -> None:
    """What comes is whole, was sent, and comes once, or the program says so and fails. Nobody waits for
    what does not come. With so many that some are lost for certain."""
    output = spoken(datagrams, SPOKEN, "loss 1%")
    here, there = heard(output, SPOKEN)
    assert here > SPOKEN * 0.9, output
    assert SPOKEN * 0.7 < there < SPOKEN, output


def spoken(datagrams: str, count: int, netem: str = "", *, manager: str = "auto") -> str:
    """What is printed where so many messages are spoken to a group that both hosts hear, the own first."""
    script = f"""
    export FI_KESTREL_CONNECT_BY={manager} DATAGRAMS_LOG=1
    on-peer $datagrams hear 10.9.0.2:7000 239.9.8.7 {count} >/tmp/there 2>&1 & there=$!
    $datagrams hear 10.9.0.1:7001 239.9.8.7 {count} >/tmp/here 2>&1 & here=$!
    says hears /tmp/there; says hears /tmp/here
    $datagrams speak 10.9.0.1:7002 239.9.8.7 {count} 2>&1
    wait $here || status=$?; wait $there || status=$?; cat /tmp/here /tmp/there; exit ${{status:-0}}
    """
    return between_hosts(datagrams, netem, script=script)


def heard(output: str, count: int) -> list[int]:
    """How many of the messages to a group each host has heard."""
    found = [int(number) for number in re.findall(rf"heard (\d+) of {count} messages", output)]
    assert len(found) == 2, output
    return found


# As long as the connection that tells of a peer's end outlasts silence, and longer; see docs/verbs.md.
OUTAGES = [pytest.param(0, id="short", marks=pytest.mark.full), pytest.param(8, id="long")]


@pytest.mark.parametrize("seconds", OUTAGES)
def test_sends_end_while_the_cable_is_pulled_and_arrive_again(datagrams: str, seconds: int) -> None:
    """Each completes, or fails and says for whom, whether or not the peer is given up meanwhile."""
    output = between_hosts(
        datagrams,
        script=f"""
        export {PROMPT}
        serve
        $datagrams outlast 10.9.0.1:7001 10.9.0.2:7000 5 >/tmp/asked 2>&1 & asks=$!
        says_there() {{ until grep -q "$1" /tmp/asked; do kill -0 $asks || break; sleep 0.1; done; }}
        says_there "answers come"; cable pull
        says_there "no answers come"; sleep {seconds}; cable plug; plugged=$(date +%s%3N)
        says_there "come again"; echo "after $(($(date +%s%3N) - plugged)) ms"
        wait $asks || status=$?; cat /tmp/asked; exit ${{status:-0}}
        """,
    )
    longest = re.search(r"the longest took (\d+) ms", output)
    assert longest and int(longest[1]) < SEND_MS_MAX, output
    sends = re.search(r"of (\d+) sends (\d+) failed", output)
    assert sends and int(sends[1]) > 100, output
    assert sends[2] == "0" or re.search(r"failed for: .*10\.9\.0\.2:7000", output), output
    again = re.search(r"^after (\d+) ms", output, re.MULTILINE)
    assert again and int(again[1]) < AGAIN_MS_MAX, output
