"""Runs commands in a guest for the driver and for the other host, as process 1.

Imports are few on purpose: under emulation each costs up to a third of a second. That is why the
socket is the C module's, and why numbers are packed without struct.
"""

import os
import select
import sys

import _socket

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import frames  # noqa: E402  (found by the path above)

FOLDER = "/run/soft-roce"
DEVICE = "rxe0"
SWEEP_MS = 1000


def read_settings():
    """What the driver decided: lines of the form name='value', which the shell reads too."""
    pairs = {}
    with open(f"{FOLDER}/settings") as file:
        for line in file:
            name, value = line.rstrip("\n").split("=", 1)
            pairs[name] = value[1:-1]
    return pairs


class Port:
    """A byte channel that carries frames; writes block, since acknowledgements keep them few."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self._received = bytearray()

    def send(self, kind, session, payload=b""):
        data = frames.pack(kind, session, payload)
        while data:
            data = data[os.write(self.descriptor, data) :]

    def receive(self):
        """The frames that arrived, or None if the other side is gone."""
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            data = b""
        if not data:
            return None
        self._received += data
        return frames.take(self._received)


class Command:
    """A command that runs for someone behind a port."""

    def __init__(self, agent, session, payload):
        self.agent, self.session = agent, session
        terminal, folder, arguments, environment = frames.unpack_command(payload)
        self.streams = {}  # descriptor: kind of its frames
        self.unacknowledged = set()
        self.left = {}  # descriptor: how much is still to be sent of what it had written when it ended
        self.input_data = b""
        self.status = None
        environment.update(agent.environment(environment))
        if terminal:
            # What was a terminal here and is one there; the kernel echoes, edits and signals.
            self.input, inner = os.openpty()
            resize(self.input, terminal)
            ends, outer = (inner, inner, inner), {self.input: frames.OUTPUT}
        else:
            (stdin, self.input), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
            os.set_blocking(self.input, False)
            ends, outer = (stdin, stdout, stderr), {out: frames.OUTPUT, err: frames.ERRORS}
        self.pid = os.fork()
        if self.pid == 0:
            execute(ends, bool(terminal), folder, arguments, environment)
        for end in set(ends):
            os.close(end)
        for descriptor, kind in outer.items():
            os.set_blocking(descriptor, False)
            self.streams[descriptor] = kind
        self.watch = os.pidfd_open(self.pid)

    def wanted(self):
        """(descriptor, events) to poll for."""
        if self.status is None:
            yield self.watch, select.POLLIN
        for descriptor, kind in self.streams.items():
            if kind not in self.unacknowledged and self.left.get(descriptor) != 0:
                yield descriptor, select.POLLIN
        if self.input_data:
            yield self.input, select.POLLOUT

    def forward(self, descriptor):
        """Sends on what the command wrote; whether there was anything."""
        size = min(self.left.get(descriptor, frames.DATA_SIZE_MAX), frames.DATA_SIZE_MAX)
        if size == 0:
            return False
        try:
            data = os.read(descriptor, size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal that nobody holds any more
        if not data:
            del self.streams[descriptor]
            if descriptor != self.input:
                os.close(descriptor)
            return False
        if descriptor in self.left:
            self.left[descriptor] -= len(data)
        kind = self.streams[descriptor]
        self.unacknowledged.add(kind)
        self.agent.driver.send(kind, self.session, data)
        return True

    def feed(self, data=None):
        """Takes standard input: a frame's data, or more room in the pipe."""
        if data == b"":
            self.close_input()
        if data:
            self.input_data = data
        if not self.input_data or self.input is None:
            return
        try:
            self.input_data = self.input_data[os.write(self.input, self.input_data) :]
        except BlockingIOError:
            return
        except OSError:
            self.input_data = b""  # the command closed its input
        if not self.input_data:
            self.agent.driver.send(frames.ACK, self.session, bytes([frames.INPUT]))

    def close_input(self):
        if self.input is not None and self.input not in self.streams:
            os.close(self.input)
            self.input = None

    def ended(self, status):
        """It has ended. What processes write from now on that it left behind is not sent, or they could
        keep it from being over. A terminal hangs up on them by itself."""
        import fcntl
        import termios

        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code
        for descriptor in self.streams.keys() - {self.input}:
            size = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
            self.left[descriptor] = int.from_bytes(size, "little")

    def over(self):
        """Whether it ended and all that it wrote was sent and taken."""
        if self.status is None or self.unacknowledged:
            return False
        return not any([self.forward(descriptor) for descriptor in list(self.streams)])

    def end(self):
        """Closes what is left; kills it if it runs."""
        if self.status is None:
            try:
                os.killpg(self.pid, 9)
            except ProcessLookupError:
                os.kill(self.pid, 9)  # it has not become a group of its own yet
        for descriptor in {*self.streams, self.watch, self.input} - {None}:
            os.close(descriptor)


def execute(ends, terminal, folder, arguments, environment):
    """In the child: becomes the command, or says why not."""
    try:
        os.setsid()
        for number, end in enumerate(ends):
            os.dup2(end, number)
        if terminal:
            import fcntl
            import termios

            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        import _signal
        import resource

        # Python ignores these, and what it executes would too: `yes | head` complained.
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)
        # Registered memory is locked memory.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
        attempted = folder
        os.chdir(folder)
        attempted = arguments[0]
        os.execvpe(arguments[0], arguments, environment)
    except OSError as error:
        os.write(2, b"soft-roce: %s: %s\n" % (attempted, error.strerror.encode()))
        if attempted != folder:
            os._exit(127 if error.errno == 2 else 126)
    finally:
        os._exit(frames.STATUS_FAILED)


def resize(descriptor, size):
    """Tells a terminal its size, given as b"rows columns"."""
    import fcntl
    import termios

    rows, columns = (int(number).to_bytes(2, "little") for number in size.split())
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, rows + columns + bytes(4))


class Agent:
    """The driver's port, the commands that run, and the programs here that ask for something."""

    def __init__(self):
        self.settings = read_settings()
        self.driver = Port(os.open(find_port(), os.O_RDWR))
        self.commands = {}  # session: Command
        self.askers = {}  # session: Port
        self.last_session = 0
        self.door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.door.bind(f"{FOLDER}/agent")
        self.door.listen(64)

    def environment(self, given):
        """What every command finds in its environment."""
        settings = self.settings
        path = given.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").decode(errors="surrogateescape")
        values = {
            "PATH": f"{path}:/usr/local/sbin:/usr/sbin:/sbin:{settings['guest']}/bin",
            "SOFT_ROCE_HOST": settings["role"],
            "SOFT_ROCE_DEVICE": DEVICE,
            "SOFT_ROCE_ADDRESS": settings["address"],
            "SOFT_ROCE_GID": gid_index(),
        }
        if settings["peer"]:
            values["SOFT_ROCE_PEER"] = settings["peer"]
        return {os.fsencode(name): os.fsencode(value) for name, value in values.items()}

    def run(self):
        """Serves until the machine is switched off."""
        with open(f"{FOLDER}/up") as pipe:
            line = pipe.readline().strip()
        if line != "up":
            self.driver.send(frames.FAILED, 0, line.encode())
        else:
            self.driver.send(frames.READY, 0)
        while True:
            self.turn()

    def turn(self):
        """Waits for something to happen and deals with it."""
        owners, wanted = {}, {self.driver.descriptor: select.POLLIN}
        wanted[self.door.fileno()] = select.POLLIN
        for port in self.askers.values():
            wanted[port.descriptor] = select.POLLIN
        for command in self.commands.values():
            for descriptor, events in command.wanted():
                wanted[descriptor] = wanted.get(descriptor, 0) | events
                owners[descriptor] = command
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(SWEEP_MS))
        for descriptor in ready.keys() & owners.keys():
            command = owners[descriptor]
            if descriptor == command.input:
                command.feed()
            if descriptor in command.streams:
                command.forward(descriptor)
        self.hear_askers(ready)
        if self.door.fileno() in ready:
            self.admit()
        if self.driver.descriptor in ready:
            for frame in self.driver.receive() or []:
                self.obey(*frame)
        self.reap()

    def reap(self):
        """Collects whatever ended, orphans too, and reports commands that are over."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for command in self.commands.values():
                if command.pid == pid:
                    command.ended(status)
        for session, command in list(self.commands.items()):
            if command.over():
                self.driver.send(frames.EXIT, session, b"%d" % command.status)
                self.commands.pop(session).end()

    def admit(self):
        """A program of this host wants something from the driver."""
        descriptor, _ = self.door._accept()
        self.last_session += 1
        self.askers[self.last_session | frames.OPENED_BY_GUEST] = Port(descriptor)

    def hear_askers(self, descriptors):
        """Hands on what programs of this host ask for, and that they are gone."""
        for session, port in list(self.askers.items()):
            if port.descriptor not in descriptors:
                continue
            received = port.receive()
            if received is None:
                self.driver.send(frames.CLOSE, session)
                os.close(self.askers.pop(session).descriptor)
                continue
            for kind, _, payload in received:
                self.driver.send(kind, session, payload)

    def obey(self, kind, session, payload):
        """A frame from the driver."""
        if session in self.askers:
            try:
                self.askers[session].send(kind, session, payload)
            except OSError:
                pass  # it is gone, which hear_askers() will see
        elif kind == frames.EXECUTE:
            self.commands[session] = Command(self, session, payload)
        elif session in self.commands:
            command = self.commands[session]
            if kind == frames.ACK:
                command.unacknowledged.discard(payload[0])
            elif kind == frames.INPUT:
                command.feed(payload)
            elif kind == frames.RESIZE:
                resize(command.input, payload)
            elif kind == frames.CLOSE:
                self.commands.pop(session).end()


def find_port():
    """The device of the channel to the driver."""
    for name in os.listdir("/sys/class/virtio-ports"):
        with open(f"/sys/class/virtio-ports/{name}/name") as file:
            if file.read().strip() == "soft-roce":
                return f"/dev/{name}"
    raise FileNotFoundError("no virtio port named soft-roce")


def gid_index():
    """The entry of the GID table that holds the IPv4 address: what ibv_rc_pingpong calls -g."""
    folder = f"/sys/class/infiniband/{DEVICE}/ports/1/gids"
    for index in sorted(os.listdir(folder), key=int)[:16]:
        with open(f"{folder}/{index}") as file:
            if file.read().startswith("0000:0000:0000:0000:0000:ffff:"):
                return index
    return "0"


if __name__ == "__main__":
    Agent().run()
