"""Kernel and initramfs: Debian's kernel, the modules that soft-RoCE needs, busybox, and guest/init."""

from __future__ import annotations

import hashlib
import lzma
import re
import shutil
import stat
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import SetupError
from .packages import say, unpacking_error

BUILDER = Path(__file__)
INIT = BUILDER.parent / "guest" / "init"
# rdma_rxe asks for its checksum by the algorithm's name, which no dependency shows. Up to Linux 6.14 the first
# two have it, and the others since.
CHECKSUMS = ("crc32_generic", "crc32c_generic", "crc32_cryptoapi", "crc32c_cryptoapi")
# In the order in which they are loaded; what they need is found out and comes first.
MODULES = (
    *("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *CHECKSUMS,
    *("ib_uverbs", "rdma_rxe", "rdma_cm", "rdma_ucm"),
    *("dummy", "veth", "virtio_net", "sch_netem", "sch_prio", "cls_u32"),
)
# The ELF note that names the entry point of machines without firmware (XEN_ELFNOTE_PHYS32_ENTRY).
PVH_ENTRY = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")
FOLDERS = ("bin", "dev", "proc", "sys", "modules", "host", "tools", "writes", "new")


@dataclass(frozen=True)
class Image:
    """What QEMU boots: an uncompressed kernel (ELF, entered by PVH), or else a bzImage."""

    kernel: Path
    initramfs: Path


def build(cache: Path, kernel_package: Path, busybox_tree: Path) -> Image:
    """The image of these inputs, from the cache if it was built before."""
    key = hashlib.sha256()
    for part in (kernel_package.name, busybox_tree.name, INIT.read_text(), BUILDER.read_text()):
        key.update(part.encode() + b"\0")
    folder = cache / f"image-{key.hexdigest()[:16]}"
    image = Image(folder / "kernel", folder / "initramfs")
    if image.kernel.exists() and image.initramfs.exists():
        return image
    shutil.rmtree(folder, ignore_errors=True)
    say(f"building the image from {kernel_package.name.split('_')[0]}")
    partial = cache / "image.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        kernel, modules = pick(kernel_package)
    except tarfile.TarError as error:
        raise unpacking_error(kernel_package, str(error)) from error
    (partial / image.kernel.name).write_bytes(unpacked(kernel))
    busybox = (busybox_tree / "bin" / "busybox").read_bytes()
    (partial / image.initramfs.name).write_bytes(archive(busybox, modules))
    partial.rename(folder)
    return image


def pick(package: Path) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The kernel of a package, and the modules in the order in which they are to be loaded."""
    needs: dict[str, list[str]] = {}
    built_in: set[str] = set()
    kernel = b""
    for name, read in members(package):
        if name.startswith("vmlinuz"):
            kernel = read()
        elif name == "modules.builtin":
            built_in = {module_name(Path(line).name) for line in read().decode().splitlines()}
        elif ".ko" in name:
            needs[module_name(name)] = dependencies(module(name, read()))
    if not kernel:
        raise SetupError(f"no kernel image in {package.name}")
    order = load_order(needs, built_in)
    contents = {}
    for name, read in members(package):
        if ".ko" in name and module_name(name) in order:
            contents[module_name(name)] = module(name, read())
    return kernel, [(name, contents[name]) for name in order]


def unpacked(kernel: bytes) -> bytes:
    """The kernel without what unpacks it, which takes an emulated machine a third of its boot; as it
    is, where that is none that we can unpack, or none that QEMU can enter directly."""
    # Documentation/x86/boot.rst: the setup code's sectors, the "HdrS" header, the payload's place.
    sectors = kernel[0x1F1] or 4
    (place,) = struct.unpack_from("<I", kernel, 0x248)
    payload = kernel[(sectors + 1) * 512 + place :]
    if kernel[0x202:0x206] != b"HdrS" or not payload.startswith(b"\xfd7zXZ\0"):
        return kernel
    elf = lzma.LZMADecompressor().decompress(payload)
    return elf if PVH_ENTRY.search(elf) else kernel


def members(package: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name and reader of each file of a package, as they come."""
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
    ) as unpacked:
        with tarfile.open(fileobj=unpacked.stdout, mode="r|") as files:
            for file in files:
                if file.isfile():
                    yield file.name.rsplit("/", 1)[-1], files.extractfile(file).read
    if unpacked.returncode:
        raise unpacking_error(package, f"dpkg-deb ended with {unpacked.returncode}")


def module_name(file: str) -> str:
    """The name that other modules call it by."""
    return file.split(".ko")[0].replace("-", "_")


def module(file: str, data: bytes) -> bytes:
    """A module's bytes, unpacked: newer kernels ship them compressed."""
    return lzma.decompress(data) if file.endswith(".xz") else data


def dependencies(data: bytes) -> list[str]:
    """The modules that a module names in its own description."""
    found = re.search(rb"\0depends=([^\0]*)\0", data)
    names = found[1].decode().split(",") if found else []
    return [name.replace("-", "_") for name in names if name]


def load_order(needs: dict[str, list[str]], built_in: set[str]) -> list[str]:
    """Every module after those that it needs, without those that are part of the kernel."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in built_in:
            return
        if name not in needs:
            raise SetupError(
                f"the kernel has no module {name}, which soft-RoCE needs; that of Debian 12 has all"
            )
        for other in needs[name]:
            add(other)
        if name not in order:
            order.append(name)

    for name in MODULES:
        if name in needs or name not in CHECKSUMS:
            add(name)
    return order


def archive(busybox: bytes, modules: list[tuple[str, bytes]]) -> bytes:
    """An initramfs in cpio's "newc" format, uncompressed, since unpacking costs more than reading."""
    entries = [(name, stat.S_IFDIR | 0o755, b"", (0, 0)) for name in FOLDERS]
    entries.append(("dev/console", stat.S_IFCHR | 0o600, b"", (5, 1)))
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, busybox, (0, 0)))
    entries.append(("init", stat.S_IFREG | 0o755, INIT.read_bytes(), (0, 0)))
    for index, (name, data) in enumerate(modules):
        entries.append((f"modules/{index:02}-{name}.ko", stat.S_IFREG | 0o644, data, (0, 0)))
    entries.append(("TRAILER!!!", 0, b"", (0, 0)))
    return b"".join(entry(number, *fields) for number, fields in enumerate(entries, start=1))


def entry(number: int, name: str, mode: int, data: bytes, device: tuple[int, int]) -> bytes:
    """One file of the archive: a header of hexadecimal fields, name and data, padded to 4 bytes."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
