"""The machines of one run: booted together, and every frame between them handed on."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import select
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import frames
from .errors import BootError, SetupError
from .machine import Machine, Shape, settings
from .packages import say
from .prepare import NO_KVM_PREFIX, Prepared, cache_folder

# With KVM the kernel reaches init in a second or two, or never.
KVM_SECONDS_MAX = 15
BOOT_SECONDS_MAX = 180
TURN_SECONDS_MAX = 0.2
FOLDERS_IN = Path("/tmp")
FOLDER_PREFIX = "soft-roce-run-"
# The file by which a run knows the folders of others.
MARKER = "made-by-soft-roce"
# Called with the kind and the payload of each frame of a session.
Handler = Callable[[int, bytes], None]


@dataclass(frozen=True)
class Plan:
    """What is asked for: one host or two, how strong, and what the cable does to packets."""

    two: bool
    accelerator: str
    shape: Shape
    netem: str
    verbose: bool


class Link:
    """One machine, what was received from it in part, and what waits to be sent to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ready = False
        self.received = bytearray()
        self.outgoing = bytearray()
        self.handlers: dict[int, Handler] = {}
        self.last_session = 0
        machine.channel.setblocking(False)

    def send(self, kind: int, session: int, payload: bytes = b"") -> None:
        """Sends now or, where the guest is slow, later: acknowledgements keep it little."""
        self.outgoing += frames.pack(kind, session, payload)
        self.flush()

    def flush(self) -> None:
        """Sends what goes."""
        try:
            while self.outgoing:
                del self.outgoing[: self.machine.channel.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self.outgoing.clear()  # the machine ended, which turn() sees as well

    def open_session(self, handler: Handler) -> int:
        """A number for a new session of this side, and who gets its frames."""
        self.last_session += 1
        self.handlers[self.last_session] = handler
        return self.last_session


def claim_folder() -> tuple[Path, int]:
    """A folder for this run's settings and logs, with a lock that says that the run is alive. What
    runs left behind that were killed is removed."""
    for folder in FOLDERS_IN.glob(f"{FOLDER_PREFIX}*"):
        try:
            # Anybody may have made what has such a name, a pipe too.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
            lock = os.open(folder, flags)
        except OSError:
            continue  # another user's, or just removed
        try:
            if is_ours(lock):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # that run is alive
        finally:
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=FOLDERS_IN))
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Last: who sees it may try the lock.
    (folder / MARKER).write_text("made by scripts/soft-roce, which removes this folder\n")
    return folder, lock


def is_ours(folder: int) -> bool:
    """Whether a run of this user's has made a folder, given as a descriptor."""
    try:
        marker = os.stat(MARKER, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(marker.st_mode) and marker.st_uid == os.fstat(folder).st_uid == os.geteuid()


class Lab:
    """Machines that run; a context manager, so that they end however the block is left."""

    def __init__(self, prepared: Prepared, plan: Plan) -> None:
        self._prepared = prepared
        self._plan = plan
        self._folder, self._folder_lock = claim_folder()
        self._links: dict[str, Link] = {}
        # More descriptors to wait for, by those who run a command: descriptor, what to call.
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_) -> None:
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._folder_lock)

    def _kill(self) -> None:
        for link in self._links.values():
            link.machine.kill()
        self._links.clear()

    # --- Booting -----------------------------------------------------------------------------

    def boot(self) -> None:
        """Starts the hosts and waits until they are up; with KVM where that works."""
        started = time.monotonic()
        accelerator, record = self._plan.accelerator, self._no_kvm_record()
        if accelerator == "auto":
            offered = os.access("/dev/kvm", os.R_OK | os.W_OK) and not record.exists()
            accelerator = "kvm" if offered else "tcg"
        try:
            self._start(accelerator)
        except BootError as error:
            if (self._plan.accelerator, accelerator) != ("auto", "kvm"):
                raise
            self._kill()
            accelerator = "tcg"
            self._start(accelerator)
            record.write_text(f"{error}\n")
            say(f"KVM does not work here, emulating instead, also from now on ({record})")
        if self._plan.verbose:
            say(f"up after {time.monotonic() - started:.1f} s, on {accelerator}")

    def _no_kvm_record(self) -> Path:
        """Exists where KVM is offered and hangs, as it does inside some virtual machines: so that
        this kernel and this QEMU need not try again."""
        place = f"{platform.release()} {platform.version()} {self._prepared.qemu[0]}"
        return cache_folder() / f"{NO_KVM_PREFIX}{hashlib.sha256(place.encode()).hexdigest()[:16]}"

    def _start(self, accelerator: str) -> None:
        plan, roles = self._plan, ("a", "b") if self._plan.two else ("a",)
        ends: tuple = (None,)
        if plan.two:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for role, end in zip(roles, ends):
            machine = Machine(role, accelerator, self._prepared, plan.shape)
            self._links[role] = Link(machine)
            folder = self._folder / f"{accelerator}-{role}"
            given = settings(role, folder, plan.netem, plan.two, plan.shape.writable)
            machine.start(folder, end, given)
            if end:
                end.close()
        self._wait_until_up(KVM_SECONDS_MAX if accelerator == "kvm" else BOOT_SECONDS_MAX)

    def _wait_until_up(self, init_seconds_max: float) -> None:
        """The kernel must reach init in its time; then the rest must be done in its own."""
        started = time.monotonic()
        while not all(link.ready for link in self._links.values()):
            machines = [link.machine for link in self._links.values()]
            for machine in machines:
                if machine.ended():
                    self._lose(machine.name, f"QEMU ended:\n{machine.report()}")
            passed = time.monotonic() - started
            reached = all(machine.reached_init() for machine in machines)
            if passed > (BOOT_SECONDS_MAX if reached else init_seconds_max):
                reports = "\n".join(machine.report() for machine in machines)
                raise BootError(f"no host was up after {passed:.0f} s:\n{reports}")
            self.turn(TURN_SECONDS_MAX)

    # --- Frames ------------------------------------------------------------------------------

    def turn(self, seconds_max: float) -> None:
        """Waits for something to happen, at most so long, and deals with it."""
        poll = select.poll()
        for link in self._links.values():
            poll.register(
                link.machine.channel, select.POLLIN | bool(link.outgoing) * select.POLLOUT
            )
        for waiting, event in ((self.readers, select.POLLIN), (self.writers, select.POLLOUT)):
            for descriptor in waiting:
                poll.register(descriptor, event)
        ready = {descriptor for descriptor, _ in poll.poll(max(0, seconds_max) * 1000)}
        for role, link in list(self._links.items()):
            if link.machine.channel.fileno() in ready:
                link.flush()
                self._receive(role, link)
        for waiting in (self.readers, self.writers):
            for descriptor in ready & waiting.keys():
                waiting[descriptor]()

    def _receive(self, role: str, link: Link) -> None:
        try:
            data = link.machine.channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(role, f"QEMU ended:\n{link.machine.report()}")
            return
        link.received += data
        for frame in frames.take(link.received):
            self._dispatch(role, link, *frame)

    def _lose(self, role: str, reason: str) -> None:
        """A machine ended: whoever waits for a command on it gets to know."""
        link = self._links.pop(role)
        link.machine.kill()
        if not link.ready:
            raise BootError(f"host {role} did not boot: {reason}")
        for handler in list(link.handlers.values()):
            handler(frames.ERRORS, f"soft-roce: host {role} is gone: {reason}\n".encode())
            handler(frames.EXIT, b"%d" % frames.STATUS_FAILED)

    def _dispatch(self, role: str, link: Link, kind: int, session: int, payload: bytes) -> None:
        if kind == frames.READY:
            link.ready = True
        elif kind == frames.FAILED:
            raise SetupError(f"host {role} could not be set up: {payload.decode(errors='replace')}")
        elif session in link.handlers:
            handler = link.handlers[session]
            if kind == frames.EXIT:
                del link.handlers[session]
            handler(kind, payload)
        elif session & frames.OPENED_BY_GUEST:
            self._serve(link, kind, session, payload, "b" if role == "a" else "a")

    def _serve(self, link: Link, kind: int, session: int, payload: bytes, peer: str) -> None:
        """The first frame of a session that a program in a guest opens."""
        if kind not in (frames.EXECUTE, frames.CABLE, frames.KILL_PEER):
            return  # the end of a session that is over
        if peer not in self._links:
            reason = "it ended" if self._plan.two else "start with --two"
            self._answer(link, session, f"there is no other host: {reason}", frames.STATUS_FAILED)
        elif kind == frames.EXECUTE:
            self._relay(link, session, self._links[peer], payload)
        elif kind == frames.CABLE:
            for end in self._links.values():
                end.machine.set_link(payload == b"plug")
            self._answer(link, session, "", 0)
        else:
            self._answer(link, session, "", 0)
            self._lose(peer, "it was killed")

    def _answer(self, link: Link, session: int, text: str, status: int) -> None:
        if text:
            link.send(frames.ERRORS, session, f"soft-roce: {text}\n".encode())
        link.send(frames.EXIT, session, b"%d" % status)

    def _relay(self, link: Link, session: int, peer: Link, payload: bytes) -> None:
        """Runs a command of one guest on the other: the frames of both go to and fro."""

        def to_peer(kind: int, data: bytes) -> None:
            if kind == frames.CLOSE:
                link.handlers.pop(session, None)
                peer.handlers.pop(number, None)
            peer.send(kind, number, data)

        def to_asker(kind: int, data: bytes) -> None:
            if kind == frames.EXIT:
                link.handlers.pop(session, None)
            link.send(kind, session, data)

        link.handlers[session] = to_peer
        number = peer.open_session(to_asker)
        peer.send(frames.EXECUTE, number, payload)

    # --- Commands ----------------------------------------------------------------------------

    def open_command(self, payload: bytes, handler: Handler) -> Callable[[int, bytes], None]:
        """Starts a command on host a; returns what sends it further frames."""
        link = self._links["a"]
        session = link.open_session(handler)
        link.send(frames.EXECUTE, session, payload)
        return lambda kind, data: link.send(kind, session, data)
