"""One virtual machine: its QEMU process, the channel to its agent, and its monitor."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .errors import SetupError
from .packages import tail
from .prepare import Prepared

GUEST = Path(__file__).resolve().parent / "guest"
# Emulated processors are no faster for what guards against Meltdown and its like. They do not say that
# their time stamp counters agree, so that the kernel would take the slow HPET for its clock.
KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable"
# To pull the cable takes a busy, emulated machine up to ten seconds.
MONITOR_SECONDS_MAX = 60
# RoCE packets carry 4096 bytes and their headers.
CABLE_MTU = 4500
PR_SET_PDEATHSIG = 1
SIGN_OF_LIFE = "soft-roce: init"


@dataclass(frozen=True)
class Shape:
    """What one host gets."""

    processors: int
    memory_mib: int
    # A folder of this machine that the guest may write, besides its own copy of everything.
    writable: Path | None


class Machine:
    """A host named "a" or "b", running until kill()."""

    def __init__(self, name: str, accelerator: str, prepared: Prepared, shape: Shape) -> None:
        self.name = name
        self._accelerator = accelerator
        self._prepared = prepared
        self._shape = shape
        self._process: subprocess.Popen | None = None
        self._folder = Path()
        self.channel, self._agent_end = socket.socketpair()
        self._monitor, self._monitor_end = socket.socketpair()

    def start(self, folder: Path, cable: socket.socket | None, settings: dict[str, str]) -> None:
        """Starts QEMU; `folder` gets the settings for the guest and the log of its console."""
        self._folder = folder
        folder.mkdir()
        for value in settings.values():
            if set(value) & set("'\n"):
                raise SetupError(f"a quote or a line break in {value!r}: the guest cannot read it")
        lines = [f"{name}='{value}'\n" for name, value in settings.items()]
        (folder / "settings").write_text("".join(lines))
        handed_on = [self._agent_end.fileno(), self._monitor_end.fileno()]
        if cable:
            handed_on.append(cable.fileno())
        errors = open(folder / "errors", "wb")
        self._process = subprocess.Popen(
            self._command(cable),
            env={**os.environ, **self._prepared.qemu_environment},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=handed_on,
            # Ctrl-C is for the driver, which then ends this process by its own hand.
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()),
        )
        errors.close()
        # Only QEMU holds these now, so that its end is seen as the end of the channel.
        self._agent_end.close()
        self._monitor_end.close()

    def _command(self, cable: socket.socket | None) -> list[str]:
        tools = self._prepared.tools
        accelerator = "tcg,thread=multi" if self._accelerator == "tcg" else self._accelerator
        command = [
            *self._prepared.qemu,
            *("-name", f"soft-roce-{self.name}", "-machine", "q35", "-accel", accelerator),
            *("-cpu", "max", "-smp", str(self._shape.processors)),
            *("-m", str(self._shape.memory_mib), "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-serial", f"file:{self._folder / 'console'}"),
            *("-kernel", str(self._prepared.image.kernel)),
            *("-initrd", str(self._prepared.image.initramfs)),
            *("-append", f"{KERNEL_ARGUMENTS} soft_roce={self._folder}"),
            *("-chardev", f"socket,id=agent,fd={self._agent_end.fileno()}"),
            *("-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=soft-roce"),
            *("-chardev", f"socket,id=monitor,fd={self._monitor_end.fileno()}"),
            *("-mon", "chardev=monitor,mode=control"),
            *share("host", Path("/"), writable=False),
            *share("tools", tools, writable=False),
        ]
        if self._shape.writable:
            command += share("writable", self._shape.writable, writable=True)
        if cable:
            address = f"52:54:00:12:34:{ord(self.name):02x}"
            # Plain descriptors: nothing in a file system, nothing on this machine's network.
            command += [
                *("-netdev", f"dgram,id=cable,local.type=fd,local.str={cable.fileno()}"),
                "-device",
                f"virtio-net-pci,id=port,netdev=cable,mac={address},host_mtu={CABLE_MTU},romfile=",
            ]
        return command

    def ended(self) -> bool:
        """Whether QEMU is gone."""
        return self._process is None or self._process.poll() is not None

    def set_link(self, up: bool) -> None:
        """Pulls or plugs this end of the cable."""
        if not self.ended():
            self._ask("set_link", {"name": "port", "up": up})

    def _ask(self, command: str, arguments: dict) -> None:
        """One command to QEMU's monitor."""
        try:
            self._converse(command, arguments)
        except OSError as error:
            raise SetupError(f"QEMU's monitor does not take {command}: {error}") from error

    def _converse(self, command: str, arguments: dict) -> None:
        """It greets with a line of its own, and may report events."""
        self._monitor.settimeout(MONITOR_SECONDS_MAX)
        if not hasattr(self, "_replies"):
            self._replies = self._monitor.makefile("r")
            self._replies.readline()
            self._converse("qmp_capabilities", {})
        message = {"execute": command, "arguments": arguments}
        self._monitor.sendall(json.dumps(message).encode() + b"\n")
        for line in self._replies:
            reply = json.loads(line)
            if "error" in reply:
                raise SetupError(f"QEMU refused {command}: {reply['error']}")
            if "return" in reply:
                return
        raise SetupError(f"QEMU ended during {command}")

    def reached_init(self) -> bool:
        """Whether the guest's kernel came as far as guest/init, which says so on the console."""
        return SIGN_OF_LIFE in self._printed("console")

    def report(self) -> str:
        """What QEMU and the guest's kernel printed last, or before the kernel gave up."""
        texts = []
        for name in ("errors", "console"):
            before_panic, panic, after = self._printed(name).partition("Kernel panic")
            texts.append(tail(before_panic + panic + after.partition("\n")[0]))
        return "\n".join(text for text in texts if text) or "(nothing was printed)"

    def _printed(self, name: str) -> str:
        file = self._folder / name
        return printable(file.read_text(errors="replace")) if file.exists() else ""

    def kill(self) -> None:
        """Ends QEMU; whatever state it is in, it has nothing to save."""
        if self._process:
            self._process.kill()
            self._process.wait()
        for end in (self.channel, self._monitor, self._agent_end, self._monitor_end):
            end.close()


def share(tag: str, folder: Path, writable: bool) -> list[str]:
    """A folder of this machine, as the guest's file system `tag`."""
    quoted = str(folder).replace(",", ",,")
    mode = "" if writable else ",readonly=on"
    return [
        *("-fsdev", f"local,id={tag},path={quoted},security_model=none,multidevs=remap{mode}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def printable(text: str) -> str:
    """A console's text without the firmware's control sequences."""
    text = re.sub(r"\x1b(?:\[[0-9;?=]*[A-Za-z]|c)", "", text)
    return "\n".join(line for line in text.splitlines() if line.strip())


def die_with(parent: int) -> None:
    """In the child: the kernel kills it when its parent is gone, however that came about."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it was gone before


def settings(role: str, folder: Path, netem: str, cable: bool, writable: Path | None) -> dict:
    """What guest/init and guest/agent.py read: names of the shell, and plain values."""
    own, other = ("10.9.0.1", "10.9.0.2") if role == "a" else ("10.9.0.2", "10.9.0.1")
    return {
        "role": role,
        "address": own,
        "peer": other if cable else "",
        "network": "eth0" if cable else "d0",
        "mtu": str(CABLE_MTU),
        "netem": netem,
        "writable": str(writable or ""),
        "python": sys.executable,
        "guest": str(GUEST),
        "run": str(folder),
    }
