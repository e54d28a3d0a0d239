"""scripts/soft-roce keeps what it promises: to the command, to the caller, and about the device."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from lab import (
    SCRIPT,
    SECONDS_MAX,
    command_of,
    latencies,
    needs_guest,
    qemu_of,
    run,
    run_alone,
    start,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("ready")


@needs_guest
def test_a_command_runs_as_it_would_here(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "input").write_text("seen")
    script = r"""
        pwd; cat input; echo "$1" "$VALUE"; cat
        sed -n 's/^SigIgn:\t//p' /proc/self/status
        echo complaint >&2
        echo gone > input; echo stays > kept/file
        exit 7
    """
    done = run(
        *("--writable", kept, "--", "sh", "-c", script, "sh", "two  words"),
        stdin="from outside\n",
        cwd=tmp_path,
        env={**os.environ, "VALUE": "a\nb"},
    )
    # No signal is ignored.
    printed = f"{tmp_path}\nseentwo  words a\nb\nfrom outside\n{0:016}\n"
    assert done.stdout == printed, done.stderr
    # The first run of all may have to say before that KVM does not work here.
    assert done.returncode == 7 and done.stderr.endswith("complaint\n")
    assert done.stderr.count("\n") == 1 + ("KVM does not work" in done.stderr)
    assert (tmp_path / "input").read_text() == "seen"
    assert (kept / "file").read_text() == "stays\n"


def test_one_host_has_a_device_that_works() -> None:
    output = run_alone(
        script=f"""
        ibv_devinfo -d "$SOFT_ROCE_DEVICE"
        ib_send_lat -n 500 >/dev/null & listening 18515
        ib_send_lat -n 500 "$SOFT_ROCE_ADDRESS"; wait $!
        ibv_rc_pingpong -g "$SOFT_ROCE_GID" -n 200 >/dev/null & listening 18515
        ibv_rc_pingpong -g "$SOFT_ROCE_GID" -n 200 "$SOFT_ROCE_ADDRESS"; wait $!
        rping -s -a "$SOFT_ROCE_ADDRESS" -C 10 & await accepts
        rping -c -a "$SOFT_ROCE_ADDRESS" -C 10; wait $!
        # What --here does, where there is a device.
        env -u SOFT_ROCE_DEVICE {sys.executable} {SCRIPT} --here -- sh -c 'echo "here: $SOFT_ROCE_DEVICE"; exit 4' ||
            echo "status $?"
    """
    )
    assert "PORT_ACTIVE" in output
    shortest, typical = latencies(output, 2)
    assert 0 < shortest <= typical
    assert "200 iters in" in output
    device = next(line.split()[1] for line in output.splitlines() if line.startswith("hca_id"))
    assert f"here: {device}\nstatus 4\n" in output


@needs_guest
def test_output_comes_while_the_command_runs_and_the_limit_ends_it() -> None:
    process = start("--timeout", 30, "--", "sh", "-c", "echo first; sleep 1000; echo last")
    try:
        assert process.stdout.readline() == "first\n"
        machines = qemu_of(process)
        assert len(machines) == 1
        output, errors = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
    assert (process.returncode, output) == (124, "")
    assert "stopped after 30 s" in errors
    assert not command_of(machines[0])


@needs_guest
@pytest.mark.parametrize("blocks", [True, pytest.param(False, marks=pytest.mark.full)])
def test_the_limit_holds_where_nobody_reads(blocks: bool) -> None:
    """Whether a write to the pipe that is full waits, or fails. A busy machine may not come to print anything."""
    reads, writes = os.pipe()
    os.set_blocking(writes, blocks)
    process = start("--timeout", 5, "--", "yes", stdout=writes)
    try:
        assert process.wait(SECONDS_MAX) == 124
    finally:
        process.kill()
        os.close(writes)
        os.close(reads)
    assert "stopped after 5 s" in process.stderr.read()


@needs_guest
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGKILL]
)
def test_no_machine_outlives_the_script(number: signal.Signals) -> None:
    process = start("--two", "--", "sleep", "1000")
    try:
        wait_until("two machines run", lambda: len(qemu_of(process)) == 2)
        machines = qemu_of(process)
        process.send_signal(number)
        process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    wait_until("they are gone", lambda: not any(map(command_of, machines)))


@needs_guest
def test_a_shell_has_a_terminal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(SCRIPT, [str(SCRIPT)], {**os.environ, "SHELL": "/bin/sh"})
    # What is to be interrupted says itself that it runs: between two programs the shell would keep the
    # interrupt until the next one has ended.
    answers = [(b"# ", b"tty; sh -c 'echo 42$((6*7)); exec sleep 1000'\n"), (b"4242", b"\x03")]
    answers.append((b"# ", b"exit 9\n"))
    seen, everything = b"", b""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        seen, everything = seen + data, everything + data
        if answers and answers[0][0] in seen:
            os.write(terminal, answers.pop(0)[1])
            seen = b""
    else:
        os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 9, everything.decode(errors="replace")
    assert b"/dev/pts/" in everything


@needs_guest
@pytest.mark.full
def test_the_cable_loses_and_delays_what_it_is_told_to() -> None:
    output = run_alone(
        "--two",
        "--loss",
        "2%",
        "--delay",
        "3ms",
        script="""
        tc qdisc show dev eth0; on-peer tc qdisc show dev eth0
        timed() {
            on-peer ib_send_lat -n 600 >/dev/null & peer_listening 18515
            from=$EPOCHREALTIME; ib_send_lat -n 600 host-b; echo "took $from $EPOCHREALTIME"; wait $!
        }
        timed
        tc -s qdisc show dev eth0 | grep dropped
        cable netem
        timed
    """,
    )
    assert output.count("delay 3ms loss 2%") == 2, output
    dropped = next(line for line in output.splitlines() if "dropped" in line)
    assert "(dropped 0," not in dropped
    # Not what ib_send_lat says: it counts cycles, and in a busy emulated machine it has taken a cycle's time
    # for a third too little, and for infinite.
    slow, fast = (float(end) - float(start) for start, end in re.findall(r"^took (\S+) (\S+)$", output, re.M))
    # 600 round trips, delayed by 3 ms each way.
    assert slow >= 600 * 2 * 0.003
    assert fast < slow


@needs_guest
def test_two_hosts_a_pulled_cable_and_a_dead_peer() -> None:
    output = run_alone(
        "--two",
        script="""
        hostname; on-peer hostname
        on-peer sh -c 'echo "$SOFT_ROCE_HOST $SOFT_ROCE_PEER"; echo aside >&2; exit 3' || echo "status $?"
        on-peer no-such-program || echo "status $?"
        on-peer cat; echo "cat has ended"
        # Who goes on writing keeps nobody.
        on-peer sh -c 'yes >&2 & sleep 0.1; exit 4' 2>/dev/null || echo "status $?"

        on-peer ib_send_lat -n 300 >/dev/null & peer_listening 18515
        ib_send_lat -n 300 host-b; wait $!

        # Its retry count of 7 means for ever to rxe: it waits, and goes on afterwards.
        on-peer ibv_rc_pingpong -g "$SOFT_ROCE_GID" -n 10000000 >/dev/null & server=$!
        peer_listening 18515
        ibv_rc_pingpong -g "$SOFT_ROCE_GID" -n 10000000 host-b >/dev/null & client=$!
        arrives 200 $client
        cable pull; echo pulled
        states
        sleep 0.5; before=$(received); sleep 1; after=$(received)
        echo "arrived meanwhile: $((after - before))"
        cable plug; echo plugged
        states
        arrives "$after" $client
        kill $server $client; wait $server $client || true

        on-peer ib_read_lat -R --retry_count=2 -n 100000 >/dev/null 2>&1 & server=$!
        on-peer bash -c "$(declare -f await accepts); await accepts"
        reads() {
            before=$(received)
            ib_read_lat -R --retry_count=2 -n 100000 host-b 2>&1 >/dev/null & client=$!
        }
        # The kernel says that it listens before it does: until then it rejects whoever asks. And what the ones
        # before have sent may still come.
        reads_on() {
            kill -0 $client 2>/dev/null || { reads; return 1; }
            [ "$(received)" -gt $((before + 200)) ]
        }
        reads; await reads_on
        cable pull
        wait $client || echo "read failed"
        kill $server; cable plug

        on-peer sh -c 'echo sleeps; exec sleep 1000' >/tmp/peer & says sleeps /tmp/peer
        kill-peer; echo killed
        wait $! || echo "sleep ended with $?"
        on-peer true || echo "status $?"
    """,
    )
    assert output.startswith("host-a\nhost-b\nb 10.9.0.1\nstatus 3\nstatus 127\ncat has ended\nstatus 4\n")
    assert latencies(output, 2)[0] > 0
    _, pulled = output.split("pulled\n", 1)
    pulled, plugged = pulled.split("plugged\n", 1)
    plugged, killed = plugged.split("killed\n", 1)
    assert pulled.count("PORT_DOWN") == 2
    assert "arrived meanwhile: 0\n" in pulled
    assert plugged.count("PORT_ACTIVE") == 2
    # 12 is IBV_WC_RETRY_EXC_ERR.
    assert "Failed status 12" in plugged and "read failed" in plugged
    assert killed == "sleep ended with 125\nstatus 125\n"
