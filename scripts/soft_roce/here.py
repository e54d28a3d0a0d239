"""The same commands on this machine itself, where its kernel has an RDMA device already."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
from pathlib import Path

from .command import STATUS_TIMED_OUT
from .errors import SetupError
from .packages import say

DEVICES = Path("/sys/class/infiniband")


def run(arguments: list[str], seconds_max: float) -> int:
    """Runs a command here, with the environment that it would find in a guest."""
    given = {**os.environ, **environment()}
    try:
        process = subprocess.Popen(arguments, env=given, start_new_session=True)
    except OSError as error:
        say(f"{arguments[0]}: {error.strerror}")
        return 127 if error.errno == errno.ENOENT else 126
    try:
        status = process.wait(seconds_max or None)
    except subprocess.TimeoutExpired:
        say(f"stopped after {seconds_max:g} s")
        status = STATUS_TIMED_OUT
    finally:
        # Its children too, whether it was stopped, interrupted or ended by itself.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return status if status >= 0 else 128 - status


def environment() -> dict[str, str]:
    """Names the device to use: the first with an active port and an IPv4 address."""
    devices = sorted(DEVICES.iterdir()) if DEVICES.is_dir() else []
    if not devices:
        raise SetupError(
            "this machine has no RDMA device. For soft-RoCE of its own kernel, as root:"
            " modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
        )
    for device in devices:
        port = device / "ports" / "1"
        if "ACTIVE" not in state_of(port):
            continue
        for index in range(16):
            address = ipv4_of(port / "gids" / str(index))
            if address:
                return {
                    "SOFT_ROCE_HOST": "a",
                    "SOFT_ROCE_DEVICE": device.name,
                    "SOFT_ROCE_ADDRESS": address,
                    "SOFT_ROCE_GID": str(index),
                }
    names = ", ".join(device.name for device in devices)
    raise SetupError(f"none of {names} has an active port 1 with an IPv4 address")


def state_of(port: Path) -> str:
    """What the kernel calls a port's state; nothing, of a port that is not there."""
    try:
        return (port / "state").read_text()
    except OSError:
        return ""


def ipv4_of(gid: Path) -> str | None:
    """The IPv4 address that an entry of a GID table stands for, if it does."""
    try:
        found = re.fullmatch(r"(?:0000:){5}ffff:(\w\w)(\w\w):(\w\w)(\w\w)", gid.read_text().strip())
    except OSError:
        return None  # an entry that is not in use
    return ".".join(str(int(byte, 16)) for byte in found.groups()) if found else None
