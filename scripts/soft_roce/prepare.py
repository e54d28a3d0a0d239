"""Everything that a run needs, prepared once and found again in a blink."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import image
from .errors import SetupError
from .packages import StaleLists, Store, say

QEMU = "qemu-system-x86_64"
QEMU_IN_TREE = f"usr/bin/{QEMU}"
QEMU_PACKAGES = ["qemu-system-x86"]
GUEST_PACKAGES = [
    *("libibverbs1", "ibverbs-providers", "librdmacm1"),
    *("ibverbs-utils", "rdmacm-utils", "perftest", "iproute2"),
]
KERNEL_PACKAGE = "linux-image-amd64"
BUSYBOX_PACKAGE = "busybox-static"
INSTALLED = Path("/var/lib/dpkg/status")
# Names of files in the cache that say that KVM does not work here: see lab.py.
NO_KVM_PREFIX = "no-kvm-"
# The first time takes a minute or two, much more where the mirror is slow.
WAIT_SECONDS_MAX = 1800
SAID_AFTER_SECONDS = 2


@dataclass(frozen=True)
class Prepared:
    """What a machine is made of."""

    qemu: list[str]
    qemu_environment: dict[str, str]
    # Laid over the root of this machine to make the root of the guest.
    tools: Path
    image: image.Image


def cache_folder() -> Path:
    """Where downloads and images stay; the same for all projects of a user."""
    named = os.environ.get("SOFT_ROCE_CACHE")
    if named:
        return Path(named).absolute()
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "soft-roce"
    except RuntimeError as error:
        raise SetupError(f"{error}; SOFT_ROCE_CACHE names a folder for downloads") from error


def prepare(refresh: bool) -> Prepared:
    """Fetches and builds what is not there yet; with `refresh`, asks apt for newer packages."""
    if platform.machine() != "x86_64":
        raise SetupError(f"this is {platform.machine()}: only x86_64 is supported")
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            # Two runs at once, the first time: one prepares and the other waits for it.
            take(lock)
            return prepare_locked(cache, refresh)
    except OSError as error:
        raise SetupError(
            f"preparing failed: {error}; SOFT_ROCE_CACHE names another folder"
        ) from error


def take(lock: TextIO) -> None:
    """Takes the lock of the cache; says so where it has to wait, and gives up where the other run hangs."""
    for waited in range(WAIT_SECONDS_MAX):
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waited == SAID_AFTER_SECONDS:
                say("waiting for another run that prepares")
            time.sleep(1)
    raise SetupError(f"another run has been preparing for {WAIT_SECONDS_MAX} s: {lock.name} is locked")


def prepare_locked(cache: Path, refresh: bool) -> Prepared:
    """Reads what was prepared for this machine, or prepares it."""
    record = cache / f"prepared-{parts()}-{system()}.json"
    if refresh:
        # Whether KVM works is looked for as well.
        for file in cache.glob(f"{NO_KVM_PREFIX}*"):
            file.unlink(missing_ok=True)
    elif paths := recorded(record):
        return prepared_from(paths)
    try:
        paths = fetch(cache)
    except SetupError as error:
        paths = None if refresh else of_another_time(cache)
        if not paths:
            raise
        say(f"using what was prepared before the installed packages changed: {error}")
        return prepared_from(paths)
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps({name: str(path) for name, path in paths.items()}))
    partial.rename(record)
    say(f"prepared in {cache}")
    return prepared_from(paths)


def recorded(record: Path) -> dict[str, str] | None:
    """What was prepared, if it is all there still."""
    try:
        paths = json.loads(record.read_text())
        needed = [Path(paths[name]) for name in ("kernel", "initramfs", "tools")]
        if "qemu" in paths:
            needed.append(Path(paths["qemu"]) / QEMU_IN_TREE)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return paths if all(path.exists() for path in needed) else None


def of_another_time(cache: Path) -> dict[str, str] | None:
    """The newest of what these scripts have prepared for other packages, for a machine that cannot ask."""
    records = sorted(cache.glob(f"prepared-{parts()}-*.json"), key=lambda file: file.stat().st_mtime)
    for record in reversed(records):
        paths = recorded(record)
        if paths and ("qemu" in paths or shutil.which(QEMU)):
            return paths
    return None


def parts() -> str:
    """A digest of the parts of this script that decide what is fetched and what is built from it."""
    names = ("prepare.py", "packages.py", "image.py", "guest/init")
    return digest(*((Path(__file__).parent / name).read_bytes() for name in names))


def system() -> str:
    """A digest of what decides which packages are missing on this machine."""
    installed = INSTALLED.read_bytes() if INSTALLED.exists() else b""
    return digest(installed, f"{shutil.which(QEMU)}".encode())


def digest(*inputs: bytes) -> str:
    """Sixteen digits for some bytes."""
    return hashlib.sha256(b"".join(part + b"\0" for part in inputs)).hexdigest()[:16]


def fetch(cache: Path) -> dict[str, Path]:
    """Fetches all; once more where the system's lists turn out to be old."""
    store = Store(cache)
    store.check()
    try:
        return fetch_all(cache, store)
    except StaleLists:
        return fetch_all(cache, store)


def fetch_all(cache: Path, store: Store) -> dict[str, Path]:
    """The folders and files that a machine is made of."""
    kernel = store.kernel(KERNEL_PACKAGE)
    busybox = store.newest(BUSYBOX_PACKAGE)
    tools = store.missing(GUEST_PACKAGES)
    qemu = [] if shutil.which(QEMU) else store.missing(QEMU_PACKAGES)
    # All downloads in one go; unpacking finds them there.
    store.fetch([kernel, busybox, *tools, *qemu])
    tree = store.unpack("busybox", [busybox], "bin/busybox")
    built = image.build(cache, store.fetch([kernel])[0], tree)
    paths = {
        "kernel": built.kernel,
        "initramfs": built.initramfs,
        "tools": store.unpack("tools", tools),
    }
    if not shutil.which(QEMU):
        paths["qemu"] = store.unpack("qemu", qemu, QEMU_IN_TREE)
        if not (paths["qemu"] / QEMU_IN_TREE).exists():
            raise SetupError(f"no QEMU: {', '.join(QEMU_PACKAGES)} did not bring {QEMU}")
    return paths


def prepared_from(paths: dict[str, str | Path]) -> Prepared:
    """How QEMU is called, and the paths that it gets."""
    files = image.Image(Path(paths["kernel"]), Path(paths["initramfs"]))
    if "qemu" not in paths:
        return Prepared([shutil.which(QEMU) or QEMU], {}, Path(paths["tools"]), files)
    tree = Path(paths["qemu"])
    libraries = tree / "usr" / "lib" / "x86_64-linux-gnu"
    environment = {
        "LD_LIBRARY_PATH": str(libraries),
        "QEMU_MODULE_DIR": str(libraries / "qemu"),
    }
    command = [str(tree / QEMU_IN_TREE)]
    # A C library of its own goes with its own loader.
    loader = tree / "lib64" / "ld-linux-x86-64.so.2"
    if loader.exists():
        command = [str(loader), "--library-path", str(libraries), *command]
    for name in ("qemu", "seabios"):
        command += ["-L", str(tree / "usr" / "share" / name)]
    return Prepared(command, environment, Path(paths["tools"]), files)
