"""Debian packages: found by apt, downloaded once, unpacked into a cache, never installed.

What is already installed on this machine is used as it is; only what is missing is fetched. So a
tree of unpacked packages, laid over the root of this machine, looks like this machine with these
packages installed. Works for any user: apt then keeps its lists in the cache too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import SetupError

# Downloads, unpacked trees and the image together, with room for a second version of each.
SPACE_BYTES_MIN = 500 << 20
APT_SECONDS_MAX = 600
# Hooks that containers add are for the system's own apt, and fail for other users.
APT_CONFIGURATION = """\
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
APT::Sandbox::User "root";
Debug::NoLocking "true";
"""


class StaleLists(Exception):
    """The system's lists name packages that are gone; newer lists are there now: ask again."""


def say(text: str) -> None:
    """One line about what takes a while, or went wrong; the status tells the latter as well."""
    with contextlib.suppress(OSError):
        os.write(2, f"soft-roce: {text}\n".encode())


class Store:
    """The cache folder: downloaded packages and trees unpacked from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.downloads = folder / "packages"
        self._own_lists = False
        # What was compared with apt's lists.
        self._sound: set[Path] = set()

    def check(self) -> None:
        """Fails early, with a reason, where packages cannot be had."""
        for program in ("apt-get", "apt-cache", "dpkg-deb", "tar"):
            if not shutil.which(program):
                raise SetupError(
                    f"{program} is not here: packages come from Debian. On another system run this"
                    " in a container of Debian 12 that has python3: see docs/soft-roce.md"
                )
        self.downloads.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < SPACE_BYTES_MIN:
            raise SetupError(
                f"no space: {self.folder} has {free >> 20} MiB free and {SPACE_BYTES_MIN >> 20} MiB"
                " are needed; SOFT_ROCE_CACHE names another folder"
            )

    def missing(self, names: list[str]) -> list[tuple[str, str]]:
        """Name and version of each package that installing these would bring."""
        output = self._ask(
            ["apt-get", "-s", "install", "--no-install-recommends", *names],
            f"apt cannot find {', '.join(names)}",
        )
        found = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", output, re.MULTILINE)
        return sorted((name, version) for name, version in found)

    def newest(self, name: str) -> tuple[str, str]:
        """A package's name and its newest version, whether it is installed or not."""
        output = self._ask(["apt-cache", "show", "--no-all-versions", name], f"apt has no {name}")
        version = re.search(r"^Version: (\S+)$", output, re.MULTILINE)
        if not version:
            raise SetupError(f"apt has no {name}")
        return name, version[1]

    def kernel(self, meta_package: str) -> tuple[str, str]:
        """The kernel that a meta package stands for today."""
        output = self._ask(
            ["apt-cache", "depends", meta_package],
            f"no kernel image: apt has no {meta_package} (it is Debian's; elsewhere"
            " run this in a container of Debian 12)",
        )
        name = re.search(r"Depends: (linux-image-\S+)", output)
        if not name:
            raise SetupError(f"no kernel image: {meta_package} names none:\n{output}")
        return self.newest(name[1])

    def fetch(self, packages: list[tuple[str, str]]) -> list[Path]:
        """Downloads what is not in the cache yet: the paths of the packages."""
        self._remove_damaged(packages)
        absent = [package for package in packages if not self._find(*package)]
        if absent:
            say(f"downloading {', '.join(dict.fromkeys(name for name, _ in absent))}")
            wanted = sorted({f"{name}={version}" for name, version in absent})
            status, output = self._run(["apt-get", "-q", "download", *wanted])
            if status and not self._own_lists:
                self._update()
                raise StaleLists
            if status:
                raise SetupError(f"downloading failed:\n{tail(output)}")
        files = [self._find(*package) for package in packages]
        for file, (name, version) in zip(files, packages):
            if not file:
                raise SetupError(f"apt said that it downloaded {name} {version}, but did not")
        return files

    def unpack(self, kind: str, packages: list[tuple[str, str]], proof: str = ".") -> Path:
        """A tree with the contents of these packages, made once, and anew if `proof` is gone from it."""
        names = "".join(f"{name}={version}\n" for name, version in packages)
        tree = self.folder / f"{kind}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        if (tree / proof).exists():
            return tree
        shutil.rmtree(tree, ignore_errors=True)
        files = self.fetch(packages)
        partial = self.folder / f"{kind}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        # Debian's /bin, /sbin and /lib are links into /usr; packages of old still name the links.
        for name in ("bin", "sbin", "lib", "lib64"):
            (partial / "usr" / name).mkdir(parents=True)
            (partial / name).symlink_to(f"usr/{name}")
        for file in files:
            unpack_one(file, partial)
        partial.rename(tree)
        return tree

    def _find(self, name: str, version: str) -> Path | None:
        stem = f"{name.split(':')[0]}_{version.replace(':', '%3a')}"
        for file in self.downloads.glob(f"{glob_quoted(stem)}_*.deb"):
            return file
        return None

    def _remove_damaged(self, packages: list[tuple[str, str]]) -> None:
        """Removes from the cache what is not as apt's lists say, such as half a download. What they do
        not say, unpacking tells."""
        files = {file: package for package in packages if (file := self._find(*package))}
        unseen = {file: files[file] for file in files.keys() - self._sound}
        if not unseen:
            return
        asked = [f"{name}={version}" for name, version in unseen.values()]
        _, output = self._run(["apt-cache", "show", *asked])
        sums = set(re.findall(r"^SHA256: (\S+)$", output, re.MULTILINE))
        named = set(re.findall(r"^Filename: .*?([^/_\s]+)_[^/\s]+\.deb$", output, re.MULTILINE))
        for file, (name, _) in unseen.items():
            is_known = name.split(":")[0] in named
            if is_known and hashlib.sha256(file.read_bytes()).hexdigest() not in sums:
                say(f"{file.name} is damaged: it is fetched again")
                file.unlink()
            else:
                self._sound.add(file)

    def _ask(self, command: list[str], complaint: str) -> str:
        """What apt says; with lists of our own if those of the system do not do."""
        status, output = self._run(command)
        if status and not self._own_lists:
            self._update()
            status, output = self._run(command)
        if status:
            raise SetupError(f"{complaint}:\n{tail(output)}")
        return output

    def _update(self) -> None:
        """Fetches lists of packages into the cache. One of many sources may fail: what is asked
        for next tells whether it mattered."""
        say("fetching apt's lists of packages")
        self._own_lists = True
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.folder / "apt" / name).mkdir(parents=True, exist_ok=True)
        self._run(["apt-get", "-q", "update"])

    def _run(self, command: list[str]) -> tuple[int, str]:
        options = self.folder / "apt.conf"
        options.write_text(APT_CONFIGURATION)
        command = [command[0], "-c", str(options), *command[1:]]
        if self._own_lists:
            folder = self.folder / "apt"
            command[1:1] = [
                *("-o", f"Dir::State={folder}/state", "-o", f"Dir::Cache={folder}/cache"),
                *("-o", "Dir::State::status=/var/lib/dpkg/status"),
            ]
        try:
            done = subprocess.run(
                command,
                cwd=self.downloads,
                env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=APT_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            return 124, f"{command[0]} was stopped after {APT_SECONDS_MAX} s"
        return done.returncode, done.stdout


def unpack_one(package: Path, tree: Path) -> None:
    """Unpacks one package through links that stand in the tree."""
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE
    ) as archive:
        done = subprocess.run(
            ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", tree],
            stdin=archive.stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    if archive.returncode or done.returncode:
        raise unpacking_error(package, tail(done.stderr))


def unpacking_error(package: Path, reason: str) -> SetupError:
    """The error of a package that was not unpacked. If it cannot be read at all, it is removed: it would
    fail in every run."""
    try:
        command = ["dpkg-deb", "--fsys-tarfile", package]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, **quiet)
    except subprocess.CalledProcessError:
        package.unlink()
        reason = f"it is damaged, and is removed: run this again to have it fetched\n{reason}"
    return SetupError(f"unpacking {package.name} failed: {reason}")


def glob_quoted(text: str) -> str:
    """Text that a glob takes as it is."""
    return re.sub(r"([*?[])", r"[\1]", text)


def tail(text: str) -> str:
    """The last lines of a program's output."""
    return "\n".join(text.strip().splitlines()[-6:])
