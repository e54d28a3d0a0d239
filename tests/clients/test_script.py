"""scripts/test: what it makes of steps that go wrong, in a checkout of its own where nothing is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkout import Checkout, await_end


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("name", ["with space", "quo'te", "a:b", "a$b", "back\\slash"])
def test_a_path_that_builds_do_not_take_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    done = Checkout(tmp_path / name).test("fmt")
    assert done.status == 1 and "move this checkout" in done.output, done.output
    assert not (tmp_path / name / "target").exists()


def test_builds_go_where_the_tests_look(checkout: Checkout) -> None:
    checkout.program("bin/cargo", 'case "$*" in *check*) test "$CARGO_TARGET_DIR" = "$PWD/target" ;; esac')
    done = checkout.test("fmt", CARGO_TARGET_DIR="/elsewhere")
    assert done.status == 0, done.output


def test_what_a_step_leaves_behind_is_ended(checkout: Checkout) -> None:
    number = checkout.folder / "number"
    checkout.program("bin/cargo", f'case "$*" in *check*) setsid sleep 1000 & echo $! >{number} ;; esac')
    done = checkout.test("fmt")
    assert done.status == 0 and "1 passed, 0 failed, 0 skipped" in done.output, done.output
    await_end(number.read_text().strip())


def test_a_step_that_was_killed_is_not_said_to_have_been_slow(checkout: Checkout) -> None:
    checkout.program("bin/cargo", 'case "$*" in *check*) kill -9 $PPID; kill -9 $$ ;; esac')
    done = checkout.test("fmt")
    assert "0 passed, 1 failed, 0 skipped" in done.output, done.output
    assert "killed after" in done.output and "stopped after" not in done.output, done.output


# Each by what a script of this name ends with: what cannot be fetched is skipped, unless it is required; what
# does not build fails.
LACKING = [
    *(("clients", "clients", 1), ("fabtests", "clients", 1), ("soft-roce", "clients", 1)),
    *(("fabtests", "fabtests", 1), ("door", "fabtests", 1), ("fabtests", "fabtests", 3), ("door", "fabtests", 3)),
]


@pytest.mark.parametrize(("step", "script", "status"), LACKING)
@pytest.mark.parametrize("required", [False, True])
def test_what_is_lacking_is_skipped_or_fails(
    checkout: Checkout, step: str, script: str, status: int, required: bool
) -> None:
    for name in ("clients", "fabtests", "soft-roce", "peers"):
        checkout.program(f"scripts/{name}", f"echo MISSING: not there; exit {status if name == script else 0}")
    if script != "clients":
        checkout.program("target/clients/pytest/prepared", "")
    more = {"KESTREL_TEST_REQUIRE": "1"} if required else {}
    done = checkout.test("fmt", step, **more)
    fails = required or status == 3
    assert done.output.endswith(f"\n1 passed, {fails:d} failed, {not fails:d} skipped\n"), done.output
    assert done.status == fails and "not there" in done.output, done.output


@pytest.mark.parametrize("step", ["clients", "fabtests", "soft-roce", "perf"])
def test_what_was_built_before_is_not_tested(checkout: Checkout, step: str) -> None:
    """Where it cannot be built any more; all else that the step needs is there."""
    for script in ("clients", "fabtests", "soft-roce", "peers"):
        checkout.program(f"scripts/{script}", "exit 0")
    checkout.program("target/clients/pytest/bin/python", "echo == 9 passed in 1.00s ==")
    checkout.program("target/clients/pytest/prepared", "")
    done = checkout.test(step)
    if step != "perf":
        assert "9 passed, 0 failed, 0 skipped" in done.output, done.output
    checkout.program("bin/cargo", 'case "$*" in *build*) echo "could not compile"; exit 101 ;; esac')
    done = checkout.test(step)
    assert done.output.endswith("\n0 passed, 1 failed, 0 skipped\n"), done.output
    assert "| could not compile" in done.output, done.output
