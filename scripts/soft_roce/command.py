"""One command on host a, as if it ran here: standard streams, terminal, time limit, exit status."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty

from . import frames
from .lab import Lab
from .packages import say

STATUS_TIMED_OUT = 124
TURN_SECONDS_MAX = 60.0


class Command:
    """The command, from its first frame to its exit status."""

    def __init__(self, lab: Lab, arguments: list[str], terminal: bool) -> None:
        self._lab = lab
        self._status: int | None = None
        self._terminal = terminal
        # By descriptor: what is to be written there.
        self._output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        payload = frames.pack_command(
            terminal_size() if terminal else b"",
            os.fsencode(os.getcwd()),
            [os.fsencode(argument) for argument in arguments],
            dict(os.environb),
        )
        self._send = lab.open_command(payload, self._receive)
        if input_is_ours():
            lab.readers[0] = self._read_input
        else:
            self._send(frames.INPUT, b"")

    def wait(self, seconds_max: float) -> int:
        """Its exit status; 124 if it was stopped at the limit (0 is none)."""
        deadline = time.monotonic() + seconds_max if seconds_max else None
        saved = None
        if self._terminal:
            saved = termios.tcgetattr(0)
            tty.setraw(0)
            self._follow_size()
        try:
            while self._status is None or any(self._output.values()):
                left = TURN_SECONDS_MAX if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    break
                self._lab.turn(min(left, TURN_SECONDS_MAX))
        finally:
            if saved:
                termios.tcsetattr(0, termios.TCSADRAIN, saved)
        if self._status is None or any(self._output.values()):
            say(f"stopped after {seconds_max:g} s")
            return STATUS_TIMED_OUT
        return self._status

    def _receive(self, kind: int, payload: bytes) -> None:
        if kind == frames.EXIT:
            self._status = int(payload)
        elif kind == frames.ACK:
            self._lab.readers[0] = self._read_input
        else:
            descriptor = 1 if kind == frames.OUTPUT else 2
            self._output[descriptor] += payload
            self._lab.writers[descriptor] = lambda: self._write(descriptor, kind)

    def _write(self, descriptor: int, kind: int) -> None:
        """Writes as much as goes at once; when all is written, asks for more. Whoever is behind a pipe may
        have stopped reading, and the limit and the other host are not to wait for that."""
        waiting = self._output[descriptor]
        try:
            # So much has room where poll() says that there is some.
            del waiting[: os.write(descriptor, waiting[: select.PIPE_BUF])]
        except BlockingIOError:
            return
        if not waiting:
            del self._lab.writers[descriptor]
            self._send(frames.ACK, bytes([kind]))

    def _follow_size(self) -> None:
        """Has the terminal in the guest follow this one's size. A handler of signals may come in the middle
        of sending, so what sends is the next turn."""
        resized, wakes = os.pipe()
        os.set_blocking(resized, False)
        os.set_blocking(wakes, False)

        def tell() -> None:
            os.read(resized, 4096)
            self._send(frames.RESIZE, terminal_size())

        self._lab.readers[resized] = tell
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGWINCH, lambda *_: None)

    def _read_input(self) -> None:
        """Sends some of standard input, and waits for it to be taken before more is read."""
        try:
            data = os.read(0, frames.DATA_SIZE_MAX)
        except OSError:
            data = b""
        self._send(frames.INPUT, data)
        del self._lab.readers[0]


def input_is_ours() -> bool:
    """Whether standard input is there to be read: from the background a terminal is not."""
    try:
        return not sys.stdin.isatty() or os.tcgetpgrp(0) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False  # closed


def terminal_size() -> bytes:
    """Rows and columns of the terminal here."""
    size = os.get_terminal_size(0)
    return b"%d %d" % (size.lines, size.columns)
