"""How the tests call scripts/soft-roce, and what they look at from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client import unavailable

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "soft-roce"
# Commands run on this machine's own device, as scripts/soft-roce --here runs them.
HERE = os.environ.get("SOFT_ROCE_HERE") == "1"
# Far more than any test takes alone: it only ends what hangs.
SECONDS_MAX = 900
# The same of a part of a suite: unoptimized and emulated, beside another one, the longest takes more
# than four minutes where the machine is calm.
PART_SECONDS_MAX = 1200

# The time of both hosts is shared with other tests: one that is kept from its core for two seconds is no peer
# that is gone. What is lost is sent again after an eighth of this.
PATIENT = "FI_KESTREL_PEER_TIMEOUT=8000"
# What has gone is given up soon, so that tests of that do not take long.
PROMPT = "FI_KESTREL_PEER_TIMEOUT=1500"

needs_guest = pytest.mark.skipif(HERE, reason="SOFT_ROCE_HERE=1: needs a virtual machine")

# Shell functions for scripts that run in the guest.
FUNCTIONS = """
set -e
# Waits for a command to succeed, for two minutes at most.
await() {
    local end=$((SECONDS + 120))
    until "$@"; do ((SECONDS < end)) || { echo "in vain: $*" >&2; return 1; }; sleep 0.1; done
}
listens() { ss -Hltn "sport = :$1" | grep -q .; }
listening() { await listens "$1"; }
says() { await grep -qs "$1" "$2" || { cat "$2" >&2; return 1; }; }
accepts() { rdma resource show cm_id | grep -q LISTEN; }
peer_listening() { on-peer bash -c "$(declare -f await listens); await listens $1"; }
received() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }
arrives() { until [ "$(received)" -gt "$1" ]; do kill -0 "$2"; sleep 0.1; done; }
states() { ibv_devinfo | grep state: ; on-peer ibv_devinfo | grep state: ; }
"""

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

# Shell functions: a listener on the other host that hears so many packets, and what it heard.
HEARING = f"""
hear() {{
    on-peer python3 -c {shlex.quote(LISTEN)} $1 >/tmp/heard & listens=$!
    says listening /tmp/heard
}}
heard() {{ wait $listens; grep code /tmp/heard; }}
"""


def start(*arguments: object, **more) -> subprocess.Popen:
    """Starts the script; its output is text, in pipes."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, text=True, errors="replace", **{**given, **more})


def run(
    *arguments: object, stdin: str = "", seconds_max: int = SECONDS_MAX, **more
) -> subprocess.CompletedProcess:
    """Runs the script to its end."""
    process = start(*arguments, stdin=subprocess.PIPE, **more)
    try:
        output, errors = process.communicate(stdin, timeout=seconds_max)
    except subprocess.TimeoutExpired:
        end(process)
        output, errors = process.communicate(timeout=30)
        pytest.fail(f"stopped after {seconds_max} s:\n{output}\n{errors}")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def end(process: subprocess.Popen) -> None:
    """Ends the script, and with it its machines, however busy it is."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def printed_by(done: subprocess.CompletedProcess) -> str:
    """What a command printed that must have succeeded."""
    assert done.returncode == 0, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_alone(*options: object, script: str) -> str:
    """Runs a bash script that must succeed on hosts of its own: what it printed."""
    return printed_by(run(*options, "--", "bash", "-c", FUNCTIONS + script))


def cargo(*arguments: str) -> str:
    """What cargo prints, run with the features of the whole workspace, as for the tests."""
    if not shutil.which("cargo"):
        unavailable("cargo is not here")
    options = os.environ.get("KESTREL_TEST_CARGO", "").split()
    command = ["cargo", *arguments, "--workspace", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> str:
    """An example program, built."""
    cargo("build", "--example", name)
    return str(ROOT / "target" / "debug" / "examples" / name)


def program_of_tests(name: str) -> str:
    """A program of tests, built."""
    printed = cargo("test", "--test", name, "--no-run", "--message-format=json")
    messages = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    built = [message["executable"] for message in messages if message.get("executable")]
    return built[-1]


def modules_of(program: str) -> set[str]:
    """The modules that the tests of a program stand in."""
    command = [program, "--list", "--format=terse"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    paths = [line.split("::") for line in listed.stdout.splitlines() if "::" in line]
    return {path[-2] for path in paths}


def qemu_of(process: subprocess.Popen) -> list[int]:
    """The QEMU processes that a running script has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if "qemu" in command_of(int(child))]


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def wait_until(what: str, condition) -> None:
    """Fails if something does not become so."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX} s: {what}"
        time.sleep(0.05)


def latencies(output: str, size: int) -> tuple[float, float]:
    """Shortest and typical half round trip of perftest's table, in microseconds."""
    for line in output.splitlines():
        fields = line.split()
        if len(fields) >= 9 and fields[0] == str(size):
            return float(fields[2]), float(fields[4])
    pytest.fail(f"no row for {size} bytes:\n{output}")


# What two who ask see of a cable that is pulled, one busy and one silent, and of one that is plugged.
# `serve` and `$echo` are the test's.
PULL_AND_PLUG = f"""export {PROMPT}
serve 7000
$echo ask 10.9.0.2:7000 100 busy >/tmp/busy & busy=$!
$echo ask 10.9.0.2:7000 100 idle >/tmp/idle & idle=$!
says answers /tmp/busy; says answers /tmp/idle
cable pull; pulled=$(date +%s%3N)
wait $busy; cat /tmp/busy; wait $idle; echo "idle after $(($(date +%s%3N) - pulled)) ms"
grep ended /tmp/idle
cable plug
$echo ask 10.9.0.2:7000 50 2>&1
"""


def ended(output: str) -> list[tuple[int, str]]:
    """After how many milliseconds connections of the echo example ended, and how."""
    found = re.findall(r"ended (\d+) ms after the last answer: (\w+)", output)
    return [(int(ms), how) for ms, how in found]
