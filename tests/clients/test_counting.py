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
