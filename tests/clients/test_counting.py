"""What scripts/test counts: no test that did not run is one that passed, and no failure hides another."""

from __future__ import annotations

import subprocess
from pathlib import Path

from client import ROOT

# As cargo prints it with --show-output: one case that two modules play, and one that fails after it has said
# that it was skipped.
CARGO = """
---- exclusive::cancel::a_receive stdout ----
no device
SKIPPED a_receive: there is no device

---- exclusive::cancel::a_send stdout ----
SKIPPED a_send: there is no device

---- here::tests::an_address stdout ----
SKIPPED: no network namespace

---- shared::cancel::a_receive stdout ----
SKIPPED a_receive: there is no device
SKIPPED a_receive: there is no device, once more

successes:
    exclusive::cancel::a_receive

failures:

---- hostile::a_peer stdout ----
SKIPPED a_peer: it is gone

failures:
    hostile::a_peer

test result: FAILED. 6 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""


def closed(folder: Path, log: str, function: str) -> str:
    """What scripts/test prints of a step whose log is this."""
    (folder / "step.log").write_text(log)
    script = f"""
    cd {ROOT}; source scripts/parts/counting
    logs={folder} passed=0 failed=0 skipped=0 failures=()
    {function}
    printf 'FAILED %s\\n' "${{failures[@]}}"; echo "sum $passed $failed $skipped"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_each_test_that_was_skipped_is_counted(tmp_path: Path) -> None:
    printed = closed(tmp_path, CARGO, "close_tests step 0 1")
    assert "sum 2 1 6\n" in printed, printed
    names = "exclusive::cancel::a_receive, exclusive::cancel::a_send, shared::cancel::a_receive"
    assert f"SKIPPED {names}: there is no device\n" in printed, printed
    assert "SKIPPED here::tests::an_address: no network namespace\n" in printed, printed


CRASHED = """
error: test failed, to rerun pass `-p kestrel-tests --test hostile`
Caused by:
  process didn't exit successfully: `/a/target/debug/deps/hostile-00112233445566aa --show-output` (exit status: 101)
error: test failed, to rerun pass `-p kestrel-shm --lib`
Caused by:
  process didn't exit successfully: `/a/target/debug/deps/kestrel_shm-0011223344556677 --show-output` (signal: 11, SIGSEGV: invalid memory reference)
error: 2 targets failed:
"""


def test_a_program_that_crashed_counts_beside_a_test_that_failed(tmp_path: Path) -> None:
    printed = closed(tmp_path, "test hostile::a_peer ... FAILED\n" + CARGO + CRASHED, "close_tests step 0 1")
    assert "sum 2 2 6\n" in printed, printed
    crash = "kestrel_shm (signal: 11, SIGSEGV: invalid memory reference)"
    assert f"FAILED step: hostile::a_peer {crash}\n" in printed, printed


# With a zero that a program printed.
PYTEST = """
=========================== short test summary info ============================
FAILED clients/test_tools.py::test_fi_pingpong[msg] - AssertionError: it ended\0
ERROR clients/test_install.py::test_pkg_config - Failed: no folder
ERROR fabtests/test_fabtests.py - Failed: not there
SKIPPED mpich: mpich is not there
SKIPPED mpich: mpich is not there
======== 1 failed, 5 passed, 2 skipped, 2 errors in 3.10s (0:00:03) ========
"""


def test_what_pytest_could_not_begin_is_named(tmp_path: Path) -> None:
    printed = closed(tmp_path, PYTEST, "status=1; close_pytest step 0")
    assert "sum 5 3 2\n" in printed, printed
    assert "SKIPPED mpich, mpich: mpich is not there\n" in printed, printed
    failed = "clients/test_tools.py::test_fi_pingpong[msg] clients/test_install.py::test_pkg_config"
    assert f"FAILED step: {failed} fabtests/test_fabtests.py\n" in printed, printed


def test_a_step_that_is_skipped_keeps_its_log(tmp_path: Path) -> None:
    printed = closed(tmp_path, "why it is not there\n", f"skip_step step 'see {tmp_path}/step.log'")
    assert "sum 0 0 1\n" in printed, printed
    assert (tmp_path / "step.log").read_text().startswith("why it is not there\nSKIPPED step: see ")
