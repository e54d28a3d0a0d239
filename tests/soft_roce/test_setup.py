"""What is missing is named, with what to do about it, and nothing boots then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import SCRIPT, needs_guest, run

DEVICES = Path("/sys/class/infiniband")


def refused(tmp_path: Path, programs: dict[str, str], *arguments: str) -> str:
    """What is said where there are only these programs, given as shell scripts; status 125."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    cache = tmp_path / "cache"
    env = {**os.environ, "PATH": str(folder), "SOFT_ROCE_CACHE": str(cache)}
    done = run(*arguments, "--", "true", env=env)
    assert done.returncode == 125, done.stderr
    assert not list(cache.glob("prepared-*"))
    return done.stderr


@needs_guest
def test_without_apt_the_error_names_it(tmp_path: Path) -> None:
    assert "apt-get is not here" in refused(tmp_path, {})


@needs_guest
def test_without_a_kernel_image_the_error_says_so(tmp_path: Path) -> None:
    programs = dict.fromkeys(("apt-get", "dpkg-deb", "tar"), "exit 0")
    programs["apt-cache"] = "echo 'E: No packages found'; exit 100"
    said = refused(tmp_path, programs)
    assert "no kernel image" in said and "No packages found" in said


@needs_guest
def test_a_qemu_that_fails_is_quoted(tmp_path: Path, ready: None) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "qemu-system-x86_64").write_text("#!/bin/sh\necho 'no such machine' >&2\nexit 1\n")
    (folder / "qemu-system-x86_64").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = run("--accel", "tcg", "--", "true", env=env)
    assert done.returncode == 125
    assert "host a did not boot" in done.stderr and "no such machine" in done.stderr


@needs_guest
def test_what_the_system_refuses_is_said(ready: None) -> None:
    """Here descriptors, of which QEMU and the sockets to it need some more."""
    command = ["sh", "-c", 'ulimit -n 8; exec "$@"', "sh", sys.executable, str(SCRIPT)]
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 125, done.stderr
    assert "soft-roce: it could not be run: [Errno 24] Too many open files" in done.stderr
    assert "Traceback" not in done.stderr


@needs_guest
def test_without_space_the_error_says_where(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=16m tmpfs "{small}" || exit 77; exec "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), "--", "true"],
        env={**os.environ, "SOFT_ROCE_CACHE": str(small)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert done.returncode == 125
    assert f"no space: {small}" in done.stderr and "SOFT_ROCE_CACHE" in done.stderr


@pytest.mark.skipif(DEVICES.is_dir() and any(DEVICES.iterdir()), reason="there is a device here")
def test_here_without_a_device_says_how_to_make_one() -> None:
    done = run("--here", "--", "true")
    assert done.returncode == 125
    assert "modprobe rdma_rxe" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--loss", "1%"], ["--here", "--two"], ["--writable", "/no/such"], ["--unknown"]),
        *(["--timeout", "-1"], ["--timeout", "nan"], ["--timeout", "inf"]),
        *(["--cpus", "0"], ["--cpus", "-1"], ["--memory", "0"]),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str]) -> None:
    done = run(*arguments, "--", "true")
    assert done.returncode == 2
    assert "soft-roce: error:" in done.stderr
