"""Hosts that tests share: nothing of one test is there for the next, on either of them."""

from __future__ import annotations

import pytest

from hosts import run, run_script
from lab import needs_guest, printed_by

pytestmark = [pytest.mark.usefixtures("ready"), needs_guest]


def test_what_a_command_leaves_is_gone_from_both_hosts() -> None:
    """What was there before stays."""
    left = "/tmp/left /tmp/left-folder/file /dev/shm/left"
    make = f"mkdir /tmp/left-folder; touch {left}; sleep 1000 &"
    run_script(f"{{ {make} }} >/dev/null 2>&1; on-peer sh -c '{{ {make} }} >/dev/null 2>&1'")
    look = f"ls -d {left} /tmp/left-folder /tmp /run/soft-roce; pgrep -x sleep"
    seen = printed_by(run(["sh", "-c", f"{{ {look}; on-peer sh -c '{look}'; }} 2>/dev/null; true"]))
    assert seen == "/run/soft-roce\n/tmp\n" * 2, seen
