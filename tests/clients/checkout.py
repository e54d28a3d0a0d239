"""A checkout with the scripts alone, for tests of what they do when something goes wrong."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from client import ROOT, Outcome, run


class Checkout:
    """The scripts, and programs that do as lines of shell say in place of those that they start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("cargo", "rustc", "apt-get", "sudo"):
            self.program(f"bin/{name}", "exit 0")

    def program(self, name: str, lines: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return path

    def environment(self) -> dict[str, str]:
        """With these programs, a cache that is empty, and nothing that scripts/test has said to this one."""
        own = {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        given = {name: value for name, value in os.environ.items() if not name.startswith("KESTREL_TEST_")}
        return {**given, **own}

    def run(self, script: str, *arguments: str, **environment: str) -> Outcome:
        command = [str(self.folder / "scripts" / script), *arguments]
        return run(command, {**self.environment(), **environment}, 120)

    def test(self, *steps: str, **environment: str) -> Outcome:
        """Runs steps of scripts/test."""
        return self.run("test", "--quick", *steps, **environment)


def await_end(process: str) -> None:
    """Fails if a process that was killed is not gone soon. A zombie's parent is nobody of ours."""
    command = Path(f"/proc/{process}/cmdline")
    deadline = time.monotonic() + 10
    while command.exists() and command.read_text():
        assert time.monotonic() < deadline, command.read_text()
        time.sleep(0.02)
