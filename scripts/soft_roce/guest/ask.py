"""Asks this host's agent for something that concerns the other host or the cable.

    ask.py execute COMMAND...   runs it on the other host: its output, its exit status
    ask.py cable pull|plug
    ask.py kill-peer

The command on the other host is killed when this process ends.
"""

import os
import sys

import _socket

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import frames  # noqa: E402  (found by the path above)

KINDS = {"execute": frames.EXECUTE, "cable": frames.CABLE, "kill-peer": frames.KILL_PEER}


def main():
    agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    agent.connect("/run/soft-roce/agent")
    kind = KINDS[sys.argv[1]]
    payload = " ".join(sys.argv[2:]).encode()
    if kind == frames.EXECUTE:
        arguments = [os.fsencode(argument) for argument in sys.argv[2:]]
        payload = frames.pack_command(b"", os.fsencode(os.getcwd()), arguments, os.environb)
    agent.sendall(frames.pack(kind, 0, payload))
    if kind == frames.EXECUTE:
        agent.sendall(frames.pack(frames.INPUT, 0))  # it is at its end
    received = bytearray()
    while True:
        data = agent.recv(65536)
        if not data:
            return frames.STATUS_FAILED
        received += data
        for kind, _, payload in frames.take(received):
            if kind == frames.EXIT:
                return int(payload)
            write(1 if kind == frames.OUTPUT else 2, payload)
            agent.sendall(frames.pack(frames.ACK, 0, bytes([kind])))


def write(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main())
