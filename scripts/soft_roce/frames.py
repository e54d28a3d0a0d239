"""Frames between the driver, the agents in the guests, and the commands that ask an agent.

A frame is kind (1 byte), session (4), length (4), payload. A session is one command that runs, or
one request. Each frame of data is answered by ACK before the next of its stream is sent: so a slow
reader slows its writer and nothing piles up in between.

The guest imports this file under emulation, where each import costs a tenth of a second: no imports.
"""

READY = 1  # agent to driver: the host is up
FAILED = 2  # agent to driver: the host could not be set up; why
EXECUTE = 3  # runs a command; payload by pack_command()
INPUT = 4  # data for its standard input; empty at the end
OUTPUT = 5  # data of its standard output
ERRORS = 6  # data of its standard error
ACK = 7  # payload: one byte, the kind of the frame that was taken
EXIT = 8  # payload: the exit status in decimal; the session is over
CLOSE = 9  # nobody waits any more: kill the command
RESIZE = 10  # payload: "rows columns" of the terminal
CABLE = 11  # guest to driver; payload: "pull" or "plug"
KILL_PEER = 12  # guest to driver: end the other host at once

HEADER_SIZE = 9
DATA_SIZE_MAX = 32768
# Sessions that a guest opens have this bit, so that driver and agent can both count from 1.
OPENED_BY_GUEST = 1 << 31
# The exit status that says that the command was not run to its end.
STATUS_FAILED = 125


def pack(kind, session, payload=b""):
    """One frame, ready to be sent."""
    return (
        bytes([kind]) + session.to_bytes(4, "little") + len(payload).to_bytes(4, "little") + payload
    )


def take(buffer):
    """Removes the whole frames from a bytearray: a list of (kind, session, payload)."""
    frames, at = [], 0
    while len(buffer) - at >= HEADER_SIZE:
        size = int.from_bytes(buffer[at + 5 : at + 9], "little")
        end = at + HEADER_SIZE + size
        if end > len(buffer):
            break
        session = int.from_bytes(buffer[at + 1 : at + 5], "little")
        frames.append((buffer[at], session, bytes(buffer[at + HEADER_SIZE : end])))
        at = end
    del buffer[:at]
    return frames


def pack_command(terminal, folder, arguments, environment):
    """What EXECUTE carries; terminal is "rows columns", or empty for pipes. All are bytes."""
    assignments = [name + b"=" + value for name, value in environment.items()]
    return b"\0".join([terminal, folder, b"%d" % len(arguments), *arguments, *assignments])


def unpack_command(payload):
    """What pack_command() was given."""
    terminal, folder, count, *rest = payload.split(b"\0")
    arguments, assignments = rest[: int(count)], rest[int(count) :]
    environment = dict(assignment.split(b"=", 1) for assignment in assignments)
    return terminal, folder, arguments, environment
