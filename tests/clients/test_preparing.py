"""What fetches and builds what the tests need: interrupted, in half, beside others, with changes."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import time
from pathlib import Path

import pytest

from checkout import Checkout, await_end

# In place of Python: makes an environment, which has itself for its interpreter, and installs the peers there.
PYTHON = """
case "$1 $2" in
-c*) echo "/usr 3 $MINOR" ;;
"-m venv") echo made >>"$0.log"; mkdir -p "$3/bin" "$3/lib"; cp "$0" "$3/bin/python" ;;
"-m pip") touch "${0%/bin/python}/lib/ucx_perftest" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_environment_is_made_anew_in_half_or_of_another_python_or_place(checkout: Checkout) -> None:
    """And only then."""
    python = checkout.program("bin/python3", PYTHON)
    # Python was there, and pip not yet.
    checkout.program("target/peers/bin/python", "exit 1")
    moved = Checkout(checkout.folder / "moved")
    moved.program("bin/python3", PYTHON)
    for minor, made in (("11", 1), ("11", 1), ("13", 2)):
        done = checkout.run("peers", MINOR=minor)
        assert done.status == 0, done.output
        assert done.output.splitlines()[-1] == f"{checkout.folder}/target/peers/lib/ucx_perftest"
        assert Path(f"{python}.log").read_text() == "made\n" * made
    (checkout.folder / "target").rename(moved.folder / "target")
    assert moved.run("peers", MINOR="13").status == 0
    assert (moved.folder / "bin/python3.log").read_text() == "made\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("script", [["clients", "pytest"], ["peers"]])
def test_what_is_interrupted_ends_what_it_started(
    checkout: Checkout, script: list[str], number: signal.Signals
) -> None:
    started = checkout.folder / "started"
    waits = f'sh -c "echo \\$\\$ >{started}; exec sleep 1000"'
    checkout.program("bin/python3", f'case "$1 $2" in -c*) echo /usr 3 11 ;; *) {waits} ;; esac')
    command = [str(checkout.folder / "scripts" / script[0]), *script[1:]]
    process = subprocess.Popen(
        command, env=checkout.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (started.exists() and started.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
        process.wait()
    await_end(started.read_text().strip())


def test_one_at_a_time_prepares(checkout: Checkout) -> None:
    """And says what it waits for."""
    checkout.program("bin/python3", PYTHON)
    (checkout.folder / "target").mkdir()
    process = None
    with open(checkout.folder / "target/peers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [str(checkout.folder / "scripts/peers")],
            env={**checkout.environment(), "MINOR": "11"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert "waiting for another run" in process.stdout.readline()
        assert process.poll() is None
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


@pytest.mark.parametrize("user", ["0", "1000"])
def test_packages_are_installed_whatever_the_lists_say(checkout: Checkout, user: str) -> None:
    """By root, whose own the limits are, and behind whoever is installing already."""
    told = checkout.folder / "told"
    checkout.program("bin/id", f"echo {user}")
    checkout.program("bin/apt-get", f'echo "$@" >>{told}; case "$*" in *update*) exit 100 ;; esac')
    checkout.program("bin/sudo", f'echo "sudo $1 $2 $3" >>{told}; shift; exec "$@"')
    done = checkout.run("parts/install-packages", "one", "two")
    assert done.status == 0, done.output
    lines = told.read_text().splitlines()
    assert [line for line in lines if not line.startswith("sudo")] == [
        "-o DPkg::Lock::Timeout=300 update",
        "-o DPkg::Lock::Timeout=300 install -y --no-install-recommends one two",
    ]
    by_sudo = [line for line in lines if line.startswith("sudo")]
    assert by_sudo == ([] if user == "0" else ["sudo -n env DEBIAN_FRONTEND=noninteractive"] * 2)


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_proxy_reaches_apt_through_sudo(checkout: Checkout, user: str) -> None:
    told = checkout.folder / "told"
    checkout.program("bin/id", f"echo {user}")
    checkout.program("bin/apt-get", f'echo "$http_proxy $no_proxy" >>{told}')
    checkout.program("bin/sudo", 'shift; exec env -u http_proxy -u no_proxy "$@"')
    done = checkout.run("parts/install-packages", "one", http_proxy="http://proxy:1", no_proxy="localhost")
    assert done.status == 0, done.output
    assert told.read_text().splitlines() == ["http://proxy:1 localhost"] * 2
