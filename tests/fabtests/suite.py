"""How fabtests is run on kestrel: its own lists of programs, started and judged as its script does."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from client import ROOT, Outcome, environment

PREFIX = ROOT / "target" / "fabtests" / "prefix"
SCRIPT = PREFIX / "bin" / "runfabtests.sh"
CONFIGURATIONS = PREFIX / "share" / "fabtests" / "test_configs"
# Processes that run tests at once, of one checkout or of two, are hosts of their own, since servers take the
# same ports; and none of them is the one that programs take where nobody names any.
HOST = f"127.{64 + (os.getpid() >> 16 & 63)}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
# Far more than any test takes alone: it only ends what hangs.
SECONDS_MAX = 600
# The same of a server that starts, on a machine that is busy.
SECONDS_START = 30
# For what is known to hang.
SECONDS_MAX_HANGING = 10
# What libfabric logs of a server that has its fabric. Its endpoint follows at once.
OPENED = "Opened fabric: kestrel"
# How the kernel writes it of a socket.
LISTEN = "0A"


@dataclass(frozen=True)
class Known:
    """Why a test does not pass, and words that it prints then. A slow one runs at scale full only."""

    kind: str
    says: str
    evidence: str
    hangs: bool = False
    slow: bool = False


def read_known() -> dict[str, Known]:
    """known_failures.toml by the names of the tests."""
    tables = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text())
    return {
        test: Known(kind, **{key: value for key, value in entry.items() if key != "tests"})
        for kind in ("not_offered", "failing", "may_fail")
        for entry in tables[kind]
        for test in entry["tests"]
    }


KNOWN = read_known()


def absent() -> str | None:
    """Why fabtests cannot be run here, if so."""
    return None if SCRIPT.exists() else f"fabtests is not there: {SCRIPT} is missing (scripts/fabtests)"


def listed() -> dict[str, list[str]]:
    """The sets of tests in runfabtests.sh: its arrays, whose names end in "_tests"."""
    arrays = re.findall(r"^(\w+)_tests=\(([^()]*)^\)", SCRIPT.read_text(), re.MULTILINE)
    return {name: shlex.split(body) for name, body in arrays}


def parameters(lines: list[str]) -> list[object]:
    """Tests by their lines, of which those that are slow to fail, or one of many variants, are marked."""

    def bounded(line: str) -> bool:
        # fi_multi_ep is listed with each choice of its flags, and then again for another threading.
        variant = line.startswith("fi_multi_ep") and "--threading" in line
        return not variant and not (line in KNOWN and KNOWN[line].slow)

    return [line if bounded(line) else pytest.param(line, marks=pytest.mark.full) for line in lines]


def command(line: str, host: str = HOST) -> list[str]:
    """A test's program and arguments, with the addresses that runfabtests.sh fills in."""
    program, *arguments = line.replace("GOOD_ADDR", host).replace("SERVER_ADDR", host).split()
    return [str(PREFIX / "bin" / program), *arguments]


class Process:
    """A program in a session of its own, all of which ends with it."""

    def __init__(self, arguments: list[str], folder: Path, name: str) -> None:
        # Apart, since the log would come in the middle of a line.
        self.files = [folder / f"{name}.out", folder / f"{name}.err"]
        with self.files[0].open("w") as out, self.files[1].open("w") as err:
            self.popen = subprocess.Popen(
                arguments,
                env=environment(FI_PROVIDER="kestrel"),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                # A shell's background job ignores it, and sighandler_test would with it.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Ends the session, if it has not ended."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def said(self) -> str:
        """What it has printed so far, and then its log."""
        return "\n".join(file.read_text(errors="replace") for file in self.files)

    def await_start(self) -> None:
        """Waits until its fabric is open, or a client may meet it on a socket first; or it has ended, which its
        outcome tells."""
        until = time.monotonic() + SECONDS_START
        while self.popen.poll() is None:
            if OPENED in self.said() or self.listens():
                time.sleep(0.2)
                return
            assert time.monotonic() < until, f"the server does not start:\n{self.said()[-3000:]}"
            time.sleep(0.02)

    def listens(self) -> bool:
        """Whether it has a TCP socket that listens."""
        own = Path(f"/proc/{self.popen.pid}")
        try:
            links = [os.readlink(entry) for entry in (own / "fd").iterdir()]
            lines = [line.split() for kind in ("tcp", "tcp6") for line in (own / "net" / kind).open()]
        except OSError:
            # It ends, or closes what was just looked at.
            return False
        return any(line[3] == LISTEN and f"socket:[{line[9]}]" in links for line in lines)

    def wait(self, seconds_max: float) -> Outcome:
        """Waits for its end, and ends it at the limit."""
        try:
            return Outcome(self.popen.wait(seconds_max), self.said())
        except subprocess.TimeoutExpired:
            self.kill()
            return Outcome(None, self.said())


def play(server: list[str], clients: list[list[str]], folder: Path, seconds_max: float) -> list[Outcome]:
    """Runs a server, then its clients: what became of each. Who waits for one that failed is ended."""
    with ExitStack() as stack:
        first = stack.enter_context(Process(server, folder, "server"))
        if clients:
            first.await_start()
        others = [
            stack.enter_context(Process(client, folder, f"client-{number}"))
            for number, client in enumerate(clients)
        ]
        outcomes = [other.wait(seconds_max) for other in others]
        failed = any(outcome.status != 0 for outcome in outcomes)
        return [first.wait(2 if failed else seconds_max), *outcomes]


def limit(name: str) -> float:
    """How long a test may take. Units: seconds."""
    return SECONDS_MAX_HANGING if name in KNOWN and KNOWN[name].hangs else SECONDS_MAX


def judge(name: str, outcomes: list[Outcome], domains: int) -> None:
    """Each process must end well, with so many domains on kestrel; or as known, and no other way."""
    texts = "\n---\n".join(f"exit status {o.status}\n{o.text()[-3000:]}" for o in outcomes)
    passed = all(outcome.status == 0 for outcome in outcomes)
    known = KNOWN.get(name)
    if known is None:
        assert passed, f"{name}: server, then clients:\n{texts}"
        assert all(outcome.domains() >= domains for outcome in outcomes), f"{name}: not on kestrel:\n{texts}"
        return
    if known.kind == "may_fail" and passed:
        return
    assert not passed, f"{name} passes: it is no known failure any more"
    assert known.says in texts, f"{name} fails, but not as known:\n{texts}"
    if known.kind != "not_offered":
        pytest.xfail(known.evidence)
    assert any(o.status in (errno.ENODATA, errno.ENOSYS) for o in outcomes), texts
    pytest.skip(known.evidence)
