"""scripts/install: what it puts where, seen by the tools that look for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from client import ROOT, Outcome, environment, run, unavailable

VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
# What discovery offers; the manual page has a paragraph for each.
ENDPOINTS = ("FI_EP_RDM", "FI_EP_MSG", "FI_EP_DGRAM", "FI_EP_SOCK_STREAM", "FI_EP_SOCK_DGRAM")

# Where programs are, without cargo.
SYSTEM = "/usr/bin:/bin"


def install(folder: Path, *arguments: str) -> Outcome:
    """Runs the script from a folder that is not its own."""
    outcome = run([str(ROOT / "scripts/install"), *arguments], dict(os.environ), 1200, folder)
    assert outcome.status == 0, outcome.output
    return outcome


@pytest.fixture(scope="module")
def caller() -> Iterator[Path]:
    """A folder that the script is called from, with a space in its name."""
    with tempfile.TemporaryDirectory(prefix="in stall", dir=ROOT / "target") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def installed(caller: Path) -> tuple[Path, str]:
    """The prefix, which was given as seen from the caller, and what was printed."""
    outcome = install(caller, "--prefix", "here")
    assert not (ROOT / "here").exists()
    return caller / "here", outcome.output


def test_the_printed_line_finds_the_provider(installed: tuple[Path, str]) -> None:
    prefix, printed = installed
    export = next(line for line in printed.splitlines() if line.startswith("export "))
    command = f"{export}; exec fi_info -p kestrel"
    if shutil.which("fi_info") is None:
        unavailable("fi_info is not there (scripts/clients)")
    env = environment()
    del env["FI_PROVIDER_PATH"]
    outcome = run(["bash", "-c", command], env, 60)
    assert outcome.status == 0 and "provider: kestrel" in outcome.text(), outcome.output
    assert (prefix / "lib/libfabric/libkestrel-fi.so").is_file()


def test_pkg_config_describes_it(installed: tuple[Path, str]) -> None:
    if shutil.which("pkg-config") is None:
        unavailable("pkg-config is not there (scripts/clients)")
    prefix, _ = installed
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    asked = {"--modversion": VERSION, "--variable=providerdir": str(prefix / "lib/libfabric")}
    for question, answer in asked.items():
        outcome = run(["pkg-config", question, "kestrel-fi"], env, 60)
        assert outcome.status == 0, outcome.output
        assert outcome.output.strip().replace("\\ ", " ") == answer


def test_the_manual_page_is_of_this_version(installed: tuple[Path, str]) -> None:
    """Rendered without a complaint."""
    if shutil.which("man") is None:
        unavailable("man is not there (scripts/clients)")
    page = installed[0] / "share/man/man7/fi_kestrel.7"
    env = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C", "MANPAGER": "cat"}
    outcome = run(["man", "--warnings", "-l", str(page)], env, 60)
    assert outcome.status == 0 and "warning" not in outcome.output, outcome.output
    text = re.sub(r".\x08", "", outcome.output)
    for word in (*ENDPOINTS, "FI_MULTICAST", "FI_TRIGGER", "FI_RMA_PMEM", "FI_KESTREL_TRANSPORT", "RDMA"):
        assert word in text, f"{word} is missing:\n{text}"


def test_what_was_installed_is_removed(caller: Path) -> None:
    prefix = caller / "removed"
    install(caller, "--prefix", "removed")
    assert (prefix / "lib/libfabric/libkestrel-fi.so").is_file()
    install(caller, "--prefix", "removed", "--uninstall")
    assert [path for path in prefix.rglob("*") if path.is_file()] == []


@dataclass
class Staged:
    """A root of its own, in which libfabric looks for providers beside its library, and what cargo would
    have built. There is no cargo, and nothing of the host's is looked at or changed."""

    folder: Path

    def __post_init__(self) -> None:
        self.target, self.root = self.folder / "target", self.folder / "root"
        (self.target / "release/examples").mkdir(parents=True)
        (self.target / "release/libkestrel_fi.so").write_text("the library")
        self.program(self.target / "release/examples/manual", "echo the page")
        # What the dynamic linker knows is a link, as in Debian; the library names the other folder.
        libraries, links = self.folder / "libraries", self.folder / "links"
        libraries.mkdir()
        links.mkdir()
        (libraries / "libfabric.so.1.20").write_text(f"\0{libraries}/libfabric\0")
        (links / "libfabric.so.1").symlink_to(libraries / "libfabric.so.1.20")
        (self.folder / "bin").mkdir()
        self.providers = libraries / "libfabric"
        self.knows(f"\tlibfabric.so.1 (libc6,x86-64) => {links}/libfabric.so.1")

    def program(self, path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def knows(self, line: str) -> None:
        """What the dynamic linker finds."""
        self.program(self.folder / "bin/ldconfig", f"cat <<'END'\n{line}\nEND")

    def run(self, *arguments: str, **variables: str) -> Outcome:
        """Runs the script from the folder that DESTDIR is seen from."""
        env = {
            **variables,
            "PATH": f"{self.folder}/bin:{SYSTEM}",
            "HOME": str(self.folder),
            "CARGO_TARGET_DIR": str(self.target),
            "DESTDIR": "root",
        }
        return run([str(ROOT / "scripts/install"), *arguments], env, 60, self.folder)

    def files(self) -> set[str]:
        """What lies in the root, as seen from there."""
        found = (path for path in self.root.rglob("*") if not path.is_dir())
        return {f"/{path.relative_to(self.root)}" for path in found}

    def installed(self) -> set[str]:
        """What the script installs without a prefix."""
        return {
            f"{self.providers}/libkestrel-fi.so",
            "/usr/local/share/man/man7/fi_kestrel.7",
            "/usr/local/lib/pkgconfig/kestrel-fi.pc",
        }


@pytest.fixture
def staged() -> Iterator[Staged]:
    if shutil.which("cargo", path=f"{SYSTEM}:/usr/sbin:/sbin") is not None:
        pytest.skip("cargo is among the system's own programs")
    (ROOT / "target").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sta ged", dir=ROOT / "target") as folder:
        yield Staged(Path(folder).resolve())


def test_it_goes_where_libfabric_looks(staged: Staged) -> None:
    """Under DESTDIR, which the paths that are told do not begin with; what was built, without cargo."""
    outcome = staged.run()
    assert outcome.status == 0, outcome.output
    assert staged.files() == staged.installed()
    library = staged.root / str(staged.providers)[1:] / "libkestrel-fi.so"
    assert library.read_text() == "the library" and os.access(library, os.X_OK)
    assert (staged.root / "usr/local/share/man/man7/fi_kestrel.7").read_text() == "the page\n"
    description = (staged.root / "usr/local/lib/pkgconfig/kestrel-fi.pc").read_text()
    assert f"providerdir={staged.providers}\n" in description
    assert "cargo is not found: installing what was built on" in outcome.output
    assert "export" not in outcome.output, "libfabric needs no line"


def test_what_lies_where_libfabric_looked_is_removed(staged: Staged) -> None:
    """Also when there is no libfabric any more; what others have put beside it stays."""
    assert staged.run().status == 0
    other = staged.root / str(staged.providers)[1:] / "libother-fi.so"
    other.write_text("another one")
    staged.knows("")
    outcome = staged.run("--uninstall")
    assert outcome.status == 0, outcome.output
    assert staged.files() == {f"{staged.providers}/libother-fi.so"}
    assert outcome.output.count("removed ") == 3
    outcome = staged.run("--uninstall")
    assert (outcome.status, outcome.output) == (0, "nothing of kestrel is installed\n")


def test_under_sudo_what_the_user_has_built_is_installed(staged: Staged) -> None:
    """Root's own cargo may be too old, and what it writes would be root's."""
    staged.program(staged.folder / "bin/cargo", "exit 1")
    outcome = staged.run(SUDO_USER="somebody")
    assert outcome.status == 0, outcome.output
    assert "under sudo: installing what was built on" in outcome.output
    assert staged.files() == staged.installed()
    (staged.target / "release/examples/manual").unlink()
    outcome = staged.run(SUDO_USER="somebody")
    assert outcome.status == 1 and "without sudo, call this first: cargo build" in outcome.output
    outcome = staged.run()
    assert outcome.status == 1 and "cargo could not build it, see above (it needs Rust 1." in outcome.output


def test_what_cargo_puts_elsewhere_is_not_taken_for_installed(staged: Staged) -> None:
    staged.program(staged.folder / "bin/cargo", "exit 0")
    (staged.target / "release/libkestrel_fi.so").unlink()
    outcome = staged.run()
    assert outcome.status == 1 and "CARGO_BUILD_TARGET" in outcome.output, outcome.output
    assert staged.files() == set()


def refused(staged: Staged, reason: str) -> None:
    """Nothing was installed, and a line says how to do without."""
    before = staged.files()
    outcome = staged.run()
    assert outcome.status == 1, outcome.output
    assert f"# nothing is installed: {reason}" in outcome.output
    export = next(line for line in outcome.output.splitlines() if line.startswith("export "))
    assert shlex.split(export) == ["export", f"FI_PROVIDER_PATH={staged.target}/release"]
    assert staged.files() == before


def test_a_folder_that_cannot_be_written_to_is_refused(staged: Staged) -> None:
    """Not even by root: there is a file in its place."""
    place = staged.root / str(staged.providers)[1:]
    place.parent.mkdir(parents=True)
    place.write_text("no folder")
    refused(staged, f"{place} cannot be written to")


def test_without_libfabric_there_is_no_folder(staged: Staged) -> None:
    staged.knows("\tlibother.so.1 (libc6,x86-64) => /nowhere/libother.so.1")
    refused(staged, "no libfabric that says where it looks for providers is installed")


def test_what_was_not_built_needs_cargo(staged: Staged) -> None:
    (staged.target / "release/examples/manual").unlink()
    outcome = staged.run()
    assert outcome.status == 1 and staged.files() == set(), outcome.output
    assert "call this first: cargo build --release -p kestrel-fi" in outcome.output
