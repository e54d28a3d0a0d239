"""scripts/install: what it puts where, seen by the tools that look for it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import ROOT, Outcome, environment, run

VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
# What discovery offers; the manual page has a paragraph for each.
ENDPOINTS = ("FI_EP_RDM", "FI_EP_MSG", "FI_EP_DGRAM", "FI_EP_SOCK_STREAM", "FI_EP_SOCK_DGRAM")


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
        pytest.skip("fi_info is not there (scripts/clients)")
    env = environment()
    del env["FI_PROVIDER_PATH"]
    outcome = run(["bash", "-c", command], env, 60)
    assert outcome.status == 0 and "provider: kestrel" in outcome.text(), outcome.output
    assert (prefix / "lib/libfabric/libkestrel-fi.so").is_file()


def test_pkg_config_describes_it(installed: tuple[Path, str]) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not there")
    prefix, _ = installed
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    asked = {"--modversion": VERSION, "--variable=providerdir": str(prefix / "lib/libfabric")}
    for question, answer in asked.items():
        outcome = run(["pkg-config", question, "kestrel-fi"], env, 60)
        assert outcome.status == 0, outcome.output
        assert outcome.output.strip().replace("\\ ", " ") == answer


def test_the_manual_page_is_of_this_version(installed: tuple[Path, str]) -> None:
    """Rendered without a complaint where man is there; as it is otherwise."""
    page = installed[0] / "share/man/man7/fi_kestrel.7"
    text = page.read_text()
    if shutil.which("man") is not None:
        env = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C", "MANPAGER": "cat"}
        outcome = run(["man", "--warnings", "-l", str(page)], env, 60)
        assert outcome.status == 0 and "warning" not in outcome.output, outcome.output
        text = re.sub(r".\x08", "", outcome.output)
    for word in (*ENDPOINTS, "FI_MULTICAST", "FI_TRIGGER", "FI_RMA_PMEM", "FI_KESTREL_TRANSPORT", "RDMA"):
        assert word in text, f"{word} is missing:\n{text}"


def test_what_was_installed_is_removed(installed: tuple[Path, str]) -> None:
    prefix, _ = installed
    install(prefix.parent, "--prefix", "here", "--uninstall")
    assert [path for path in prefix.rglob("*") if path.is_file()] == []
