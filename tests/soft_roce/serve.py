"""Runs one command after the other in a guest, for tests that share its hosts.

Each line of standard input is a request, and each answer one of standard output, in JSON: see hosts.py,
which sends them. After each command nothing of it is left on either host: no process, no file in /tmp and
/dev/shm, nothing that the cable does to packets.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Only guests of scripts/soft-roce have it.
SETTINGS = Path("/run/soft-roce/settings")
# Where commands leave files.
FOLDERS = (Path("/tmp"), Path("/dev/shm"))
# What lay there on the peer when it was swept first.
RECORD = Path("/run/soft_roce_tests")
SWEEP_SECONDS_MAX = 10
STATUS_TIMED_OUT = 124


def serve() -> None:
    """Until nobody asks any more."""
    if left := sweep_on_peer():
        sys.exit(left)
    for line in sys.stdin:
        request = json.loads(line)
        before = entries()
        answer = execute(**request)
        answer["left"] = sweep()
        answer["left"] += sweep_on_peer()
        for path in entries() - before:
            remove(path)
        print(json.dumps(answer), flush=True)


def execute(
    command: list[str], environment: dict[str, str], folder: str, netem: str, seconds_max: float
) -> dict:
    """Runs a command with what the cable is to do meanwhile: its status, and what it wrote."""
    if netem:
        subprocess.run(["cable", "netem", *netem.split()], check=True)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            status = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = STATUS_TIMED_OUT
        if netem:
            subprocess.run(["cable", "netem"], check=True)
        return {
            "status": status if status >= 0 else 128 - status,
            "output": whole(output),
            "errors": whole(errors),
        }


def whole(file) -> str:
    """What a file holds, as text."""
    file.seek(0)
    return file.read().decode(errors="replace")


def sweep() -> str:
    """Ends every process of this host but the first one, which is the agent, and this one: those that are
    still there after a while, which is none unless the kernel hangs."""
    deadline = time.monotonic() + SWEEP_SECONDS_MAX
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        left = [process for process in processes() if runs(process)]
        if not left or time.monotonic() > deadline:
            return "".join(f"{name} is left\n" for name in map(command_of, left))
        time.sleep(0.02)


def sweep_on_peer() -> str:
    """The same on the other host; and what it finds there for the first time it leaves there later on."""
    command = ["on-peer", sys.executable, "-B", __file__, "sweep"]
    peer = subprocess.run(command, capture_output=True, text=True)
    ended = f"the sweep of the peer ended with status {peer.returncode}\n" if peer.returncode else ""
    return peer.stdout + peer.stderr + ended


def sweep_files() -> None:
    """Removes what commands have left on the peer. Not by its age: what has become younger since may be this
    machine's own, such as the folder that the checkout lies in. Nor what pytest makes there."""
    if not RECORD.exists():
        RECORD.write_text("".join(f"{entry}\n" for entry in entries()))
    known = set(RECORD.read_text().splitlines())
    for entry in entries():
        if str(entry) not in known and not entry.name.startswith("pytest-"):
            remove(entry)


def processes() -> list[Path]:
    """All of this host but the agent and this one."""
    mine = {"1", str(os.getpid())}
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and entry.name not in mine]


def runs(process: Path) -> bool:
    """Whether it is a program that has not ended: neither of the kernel's own, nor a zombie, of which the
    agent will hear within a second."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    kernel_thread = int(fields[6]) & 0x00200000
    return fields[0] != "Z" and not kernel_thread


def command_of(process: Path) -> str:
    """Its command line, if it is still there."""
    try:
        return (process / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return process.name


def entries() -> set[Path]:
    """What lies where commands leave files."""
    return {entry for folder in FOLDERS for entry in folder.iterdir()}


def remove(path: Path) -> None:
    """Removes a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    # It ends every process that it may.
    if not SETTINGS.exists():
        sys.exit("serve.py ends all other processes: it runs in a guest of scripts/soft-roce, and nowhere else")
    if sys.argv[1:] == ["sweep"]:
        print(sweep(), end="")
        sweep_files()
    else:
        serve()
