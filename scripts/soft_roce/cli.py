"""The options of scripts/soft-roce, and its exit status."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from . import frames, here
from .command import Command
from .errors import SetupError
from .lab import Lab, Plan
from .machine import Shape
from .packages import say
from .prepare import prepare

USAGE = "scripts/soft-roce [OPTION]... [--] [COMMAND [ARGUMENT]...]"
DESCRIPTION = """\
Runs COMMAND, or a shell, in a virtual machine whose kernel has the soft-RoCE device rxe0. The guest
sees this machine's files; what it writes is gone afterwards. Folder, environment, standard streams
and exit status are handed through.
"""
EPILOGUE = """\
exit status: the command's own; 124 if it was stopped at the limit; 125 if it could not be run, with
the reason; 126 or 127 if there is no such program; 128 + N if signal N ended it or this script.

in the guest: SOFT_ROCE_DEVICE, SOFT_ROCE_ADDRESS, SOFT_ROCE_GID (the index of the address), and with
--two SOFT_ROCE_PEER and SOFT_ROCE_HOST (a or b). With --two also these commands:
  on-peer COMMAND...      runs a command on the other host
  cable pull | plug       takes and gives the carrier
  cable netem [WHAT]...   loss, delay and the rest of tc-netem(8) from now on
  kill-peer               ends the other host, as a power cut does

SOFT_ROCE_HERE=1 is --here. SOFT_ROCE_CACHE names the folder for downloads and the image
(~/.cache/soft-roce). The manual is docs/soft-roce.md.
"""
COMMAND_SECONDS_MAX = 600.0
# A year. Some calls of the system do not take much more.
TIMEOUT_SECONDS_MAX = 366 * 86400.0
STATUS_BROKEN_PIPE = 128 + signal.SIGPIPE


class Interrupted(Exception):
    """A signal that asks this script to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, checked against each other."""
    parser = argparse.ArgumentParser(
        prog="soft-roce",
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--two", action="store_true", help="two hosts, joined by a virtual cable")
    option("--loss", metavar="P", help="of what each host sends, this share is lost, such as 1%%")
    option("--delay", metavar="T", help="what each host sends arrives that much later, such as 1ms")
    option(
        "--timeout",
        metavar="S",
        type=float,
        help=f"stop the command after so many seconds; 0 is never (default {COMMAND_SECONDS_MAX:g},"
        " for a shell 0)",
    )
    option("--writable", metavar="DIR", type=Path, help="what the guest writes there is kept")
    option("--cpus", metavar="N", type=int, help="of each host (default 2, with --two 1)")
    option("--memory", metavar="MIB", type=int, default=2048, help="of each host (default 2048)")
    option(
        "--accel",
        choices=("auto", "kvm", "tcg"),
        default="auto",
        help="auto is KVM where it works, else emulation",
    )
    option("--here", action="store_true", help="on this machine and its RDMA device; no guest")
    option("--prepare", action="store_true", help="download and build what is missing, no more")
    option("--refresh", action="store_true", help="look for newer packages, and try KVM again")
    option("--verbose", action="store_true", help="say how long booting took, and on what")
    option("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if (options.loss or options.delay) and not options.two:
        parser.error("--loss and --delay are of the cable: they need --two")
    options.here = options.here or os.environ.get("SOFT_ROCE_HERE") == "1"
    if options.here and not options.prepare and (options.two or not options.command):
        parser.error("--here takes a command, and has no second host")
    if options.timeout is not None and not 0 <= options.timeout <= TIMEOUT_SECONDS_MAX:
        parser.error(f"--timeout: {options.timeout:g} is not from 0 to {TIMEOUT_SECONDS_MAX:.0f}")
    if options.cpus is not None and options.cpus < 1:
        parser.error(f"--cpus: {options.cpus} is less than 1")
    if options.memory < 1:
        parser.error(f"--memory: {options.memory} is less than 1")
    if options.timeout is None:
        options.timeout = COMMAND_SECONDS_MAX if options.command else 0
    if options.writable and not options.writable.is_dir():
        parser.error(f"--writable: {options.writable} is no folder")
    return options


def main(arguments: list[str]) -> int:
    """Does what the arguments say; the exit status."""
    options = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        if options.here:
            # Nothing of what --prepare fetches is needed here.
            return 0 if options.prepare else here.run(options.command, options.timeout)
        prepared = prepare(options.refresh)
        return 0 if options.prepare else run(options, prepared)
    except SetupError as error:
        say(str(error))
        return frames.STATUS_FAILED
    except BrokenPipeError:
        return STATUS_BROKEN_PIPE  # of the standard streams: the others' are SetupErrors
    except OSError as error:
        say(f"it could not be run: {error}")
        return frames.STATUS_FAILED
    except Interrupted as interrupted:
        return 128 + interrupted.number


def interrupt(number: int, _) -> None:
    """Ends this script; only once, so that a second signal does not disturb cleaning up."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def run(options: argparse.Namespace, prepared) -> int:
    """Boots the hosts and runs the command, or a shell on this terminal."""
    terminal = not options.command
    if terminal and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SetupError("a shell needs a terminal; give a command")
    processors = options.cpus or (1 if options.two else 2)
    writable = options.writable.resolve() if options.writable else None
    netem = " ".join(
        f"{name} {value}" for name in ("loss", "delay") if (value := getattr(options, name))
    )
    shape = Shape(processors, options.memory, writable)
    plan = Plan(options.two, options.accel, shape, netem, options.verbose or terminal)
    with Lab(prepared, plan) as lab:
        lab.boot()
        shell = [os.environ.get("SHELL", "/bin/sh")]
        return Command(lab, options.command or shell, terminal).wait(options.timeout)
