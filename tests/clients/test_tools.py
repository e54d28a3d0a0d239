"""libfabric's own tools: what they see of kestrel, and messages of every size."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from client import MPICH, ROOT, Outcome, environment, need, run, unavailable

# What fi_pingpong sends with "-S all": powers of two and one and a half of them, up to 6 MiB, or as
# many as a datagram holds.
SIZES = [0, *sorted({1, *(1 << power for power in range(23)), *(3 << power for power in range(22))})]
# How it writes them.
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def check_pingpong(outcome: Outcome, longest: int, iterations: str) -> None:
    """Every size was sent as often as asked for, and answered, on kestrel."""
    text = outcome.check(1)
    rows = re.findall(r"^([\d.]+)([km]?) +(\w+) +=(\w+) ", text, re.MULTILINE)
    sizes = [int(float(number) * UNITS[unit]) for number, unit, _, _ in rows]
    assert sizes == [size for size in SIZES if size <= longest], text
    count = iterations.replace("000", "k")
    assert all((sent, answered) == (count, count) for _, _, sent, answered in rows), text


def tool(name: str) -> str:
    """The path of one of libfabric's tools."""
    path = shutil.which(name)
    if path is None:
        unavailable(f"{name} is not there (scripts/clients)")
    return path


def described() -> list[dict[str, str]]:
    """What fi_info shows of kestrel: an entry for each info, with the fields of each section."""
    outcome = run([tool("fi_info"), "-p", "kestrel", "-v"], environment(), 60)
    assert outcome.status == 0, outcome.text()
    found: list[dict[str, str]] = []
    section = ""
    for line in outcome.text().splitlines():
        name, colon, value = line.strip().partition(":")
        if line == "---":
            found.append({})
        elif colon and value:
            # What stands beside the sections is the info's own.
            own = len(line) - len(line.lstrip()) == 4
            found[-1][f"{'fi_info' if own else section}.{name}"] = value.strip()
        else:
            section = name
    assert found, outcome.output
    return found


def expected() -> list[dict[str, str]]:
    """The same as discovery has it."""
    command = ["cargo", "run", "--release", "--quiet", "-p", "kestrel-fi", "--example", "described"]
    outcome = run(command, environment(), 1200, ROOT)
    assert outcome.status == 0, outcome.output
    infos = outcome.text().split("---\n")[1:]
    return [dict(line.split(": ", 1) for line in info.splitlines() if ": " in line) for info in infos]


# Capabilities that libfabric 1.17 has no name for.
UNNAMED = {"FI_AV_USER_ID"}
# Fields that libfabric 2 does not show any more, or by another name.
HIDDEN = {"fi_rx_attr.total_buffered_recv"}
RENAMED = {f"fi_domain_attr.{kind}_progress": "fi_domain_attr.progress" for kind in ("control", "data")}


# Who asks for what, and whether shared memory alone is found: what reaches this host is not for who takes what fits
# from any provider, which may be a job of several hosts.
FOR_ALL = "FI_MSG|FI_LOCAL_COMM|FI_REMOTE_COMM"
ASKED = [
    ([], {}, True),
    (["-c", "FI_MSG"], {}, False),
    (["-c", FOR_ALL], {}, False),
    (["-c", FOR_ALL], {"FI_PROVIDER": "^tcp"}, False),
    (["-c", FOR_ALL], {"FI_PROVIDER": "tcp,kestrel"}, True),
    (["-c", FOR_ALL], {"FI_KESTREL_TRANSPORT": "shm"}, True),
    (["-c", FOR_ALL, "-p", "kestrel"], {}, True),
    (["-c", FOR_ALL, "-f", "kestrel"], {}, True),
    (["-c", FOR_ALL, "-d", "kestrel-shm"], {}, True),
    (["-c", "FI_MSG|FI_LOCAL_COMM"], {}, True),
]


@pytest.mark.parametrize(("words", "settings", "is_found"), ASKED)
def test_shared_memory_alone_is_for_who_asks_for_it(words: list[str], settings: dict[str, str], is_found: bool) -> None:
    """Its own log says why it is not found."""
    if any(Path("/sys/class/infiniband").glob("*")) and words:
        pytest.skip("a device is here, beside which it is left out")
    env = environment(**settings)
    if "FI_PROVIDER" not in settings:
        env.pop("FI_PROVIDER", None)
    outcome = run([tool("fi_info"), *words], env, 60)
    assert ("domain: kestrel-shm" in outcome.text()) == is_found, outcome.output
    assert is_found or "fabric_attr->prov_name" in outcome.output, outcome.output


@pytest.mark.parametrize(("providers", "is_ours"), [("^sockets", False), ("kestrel", True)])
def test_mpich_is_put_on_shared_memory_alone_if_told_to(providers: str, is_ours: bool) -> None:
    """It asks without hints, rates what it is told of, and takes the best."""
    need(MPICH)
    if any(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("a device is here, which any job may be put on")
    mpi = replace(MPICH, variables={**MPICH.variables, "FI_PROVIDER": providers, "MPIR_CVAR_DEBUG_SUMMARY": "1"})
    outcome = mpi.start(1, [mpi.python(), "-c", "from mpi4py import MPI"], 120)
    assert outcome.status == 0, outcome.output
    chosen = set(re.findall(r"(?m)libfabric provider: (\S+)", outcome.output))
    assert chosen and (chosen == {"kestrel"}) == is_ours, outcome.output


def test_fi_info_tells_what_discovery_finds() -> None:
    """Every number, every name and every capability of every info, in the same order."""
    shown, found = described(), expected()
    kinds = {info["fi_ep_attr.type"] for info in found}
    assert kinds == {"FI_EP_RDM", "FI_EP_MSG", "FI_EP_DGRAM"}
    assert any(info["fi_domain_attr.name"] == "kestrel-shm" for info in found)
    assert len(shown) == len(found)
    for told, info in zip(shown, found):
        assert len(info) > 40, info
        for field, value in info.items():
            if field not in told:
                if field in HIDDEN:
                    continue
                field = RENAMED.get(field, field)
            if not field.endswith(".caps"):
                assert told[field] == value, field
                continue
            listed = set(re.findall(r"FI_\w+", told[field]))
            assert set(value.split(", ")) - UNNAMED == listed - UNNAMED, field


def test_fi_info_lists_the_parameters() -> None:
    """All that the manual page has from the same table, with their help."""
    command = ["cargo", "run", "--release", "--quiet", "-p", "kestrel-fi", "--example", "manual"]
    page = run(command, environment(), 1200, ROOT)
    assert page.status == 0, page.output
    parameters = set(re.findall(r"FI_KESTREL_[A-Z_]+", page.output))
    assert len(parameters) >= 20, parameters
    outcome = run([tool("fi_info"), "-e"], environment(), 60)
    assert outcome.status == 0, outcome.text()
    listed = re.findall(r"^# (FI_KESTREL_[A-Z_]+): \w+\n# (.+)", outcome.text(), re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(parameters)
    assert all(re.search(r"\w+ \w+", text) for _, text in listed), listed


KINDS = ["tagged", "msg", "connected", "datagrams"]


@pytest.mark.parametrize("kind", KINDS)
def test_fi_pingpong(kind: str, scale: str, tmp_path: Path) -> None:
    """All sizes, and every byte is checked. Datagrams have those of one packet."""
    iterations = {"quick": "10", "default": "30", "full": "1000"}[scale]
    # Another checkout's are other ones, and none is among those that the kernel gives.
    port = str(20000 + os.getpid() % 2500 * 4 + KINDS.index(kind))
    endpoints = {"connected": ["-e", "msg"], "datagrams": ["-e", "dgram"]}
    how = endpoints.get(kind, ["-e", "rdm", "-m", kind])
    common = [tool("fi_pingpong"), "-p", "kestrel", *how]
    common += ["-I", iterations, "-S", "all", "-c"]
    env = environment()
    # A pipe would be full before anybody reads it, since it logs.
    printed = tmp_path / "server"
    with printed.open("w") as file:
        server = subprocess.Popen([*common, "-B", port], env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        # The client tries to connect for a while, so that the server may start slowly.
        for _ in range(20):
            outcome = run([*common, "-P", port, "127.0.0.1"], env, 600)
            if "onnection refused" not in outcome.output:
                break
            time.sleep(0.5)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=60 if outcome.status == 0 else 2)
    finally:
        status = server.poll()
        server.kill()
        server.wait()
    longest = SIZES[-1]
    if kind == "datagrams":
        first = next(info for info in described() if info["fi_ep_attr.type"] == "FI_EP_DGRAM")
        longest = int(first["fi_ep_attr.max_msg_size"])
    for side in (outcome, Outcome(status, printed.read_text(errors="replace"))):
        check_pingpong(side, longest, iterations)
