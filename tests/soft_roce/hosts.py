"""Hosts that stay up for several tests: to boot them takes an emulated machine longer than most tests.

A test that breaks its hosts, or looks at how they boot, has some of its own: lab.py.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import lab

SERVER = Path(__file__).with_name("serve.py")
# Until an answer comes: so much more than the command's own limit, for booting and for sweeping.
ANSWER_SECONDS_MAX = 240


class Hosts:
    """Two hosts that run, and the program on the first that runs commands."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        # One processor each takes an eighth less time than two, where the machine emulates four hosts.
        processors = ["--cpus", 2] if os.environ.get("KESTREL_TEST_SCALE") == "full" else []
        self._process = lab.start(
            *("--two", *processors, "--timeout", 0, "--", sys.executable, "-B", SERVER),
            stdin=subprocess.PIPE,
            stderr=self._errors,
        )

    def run(self, seconds_max: float, **request) -> dict:
        """What serve.py answers to a request."""
        deadline = time.monotonic() + seconds_max + ANSWER_SECONDS_MAX
        try:
            self._process.stdin.write(json.dumps({**request, "seconds_max": seconds_max}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # which the end of its answers tells as well
        received = b""
        # Past the file's own buffer, of which select() knows nothing.
        descriptor = self._process.stdout.fileno()
        while not received.endswith(b"\n"):
            if not select.select([descriptor], [], [], max(0, deadline - time.monotonic()))[0]:
                pytest.fail(f"the hosts do not answer:\n{self._said()}")
            data = os.read(descriptor, 1 << 20)
            if not data:
                pytest.fail(f"the hosts are gone:\n{self._said()}")
            received += data
        return json.loads(received)

    def _said(self) -> str:
        """What scripts/soft-roce and serve.py complained about."""
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> None:
        """Switches them off."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            lab.end(self._process)
        self._process.stdout.close()
        self._errors.close()


class Pool:
    """The hosts that this process of tests keeps."""

    def __init__(self) -> None:
        self._hosts: Hosts | None = None

    def run(self, **request) -> subprocess.CompletedProcess:
        """Runs a command on hosts that have run others, or that boot now."""
        self._hosts = self._hosts or Hosts()
        answer = self._hosts.run(**request)
        assert not answer["left"], answer
        return subprocess.CompletedProcess(
            request["command"], answer["status"], answer["output"], answer["errors"]
        )

    def drop(self) -> None:
        """Switches them off; the next test gets others."""
        if self._hosts:
            self._hosts.end()
        self._hosts = None


pool = Pool()


def run(
    command: list[object],
    *,
    netem: str = "",
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    seconds_max: float = lab.SECONDS_MAX,
) -> subprocess.CompletedProcess:
    """Runs a command on the first of two hosts that other tests have used, while the cable does what
    tc-netem(8) calls `netem`. Folder and environment are this process's, but for what is given."""
    words, environment = [str(word) for word in command], environment or {}
    if lab.HERE:
        return lab.run(
            *("--timeout", seconds_max, "--", *words),
            seconds_max=seconds_max + 60,
            cwd=folder,
            env={**os.environ, **environment},
        )
    return pool.run(
        command=words,
        environment=environment,
        folder=str(folder or Path.cwd()),
        netem=netem,
        seconds_max=seconds_max,
    )


def run_script(script: str, netem: str = "") -> str:
    """Runs a bash script like that, which must succeed: what it printed."""
    return lab.printed_by(run(["bash", "-c", lab.FUNCTIONS + script], netem=netem))


def run_tests(
    program: str, modules: list[str], counter: str, environment: dict[str, str]
) -> int:
    """Runs a program of tests in the guest, where its tests in these modules must be there and pass: by how
    much a counter of the device grew meanwhile, whose file the shell finds by that name."""
    tests = [program, "--test-threads", "1", "--show-output", *modules]
    script = f'before=$(cat {counter}); "$@" && echo "counted $(($(cat {counter}) - before))"'
    done = run(
        ["bash", "-c", script, "bash", *tests],
        environment=environment,
        seconds_max=lab.PART_SECONDS_MAX,
    )
    output = lab.printed_by(done)
    assert " 0 passed" not in output and "SKIPPED" not in output, output
    return int(output.rpartition("counted ")[2])
