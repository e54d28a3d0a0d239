"""libfabric's own tools: what they see of kestrel, and messages of every size."""

import shutil
import subprocess

import pytest

from client import environment, run


def tool(name: str) -> str:
    """The path of one of libfabric's tools."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not there (scripts/clients)")
    return path


def test_fi_info_describes_kestrel() -> None:
    outcome = run([tool("fi_info"), "-p", "kestrel", "-v"], environment(), 60)
    assert outcome.status == 0, outcome.text()
    for word in ("FI_MSG", "FI_TAGGED", "FI_RMA", "FI_ATOMIC", "FI_EP_RDM", "FI_EP_DGRAM", "kestrel-shm"):
        assert word in outcome.output, f"{word} is missing:\n{outcome.text()}"


def test_fi_info_lists_the_parameters() -> None:
    outcome = run([tool("fi_info"), "-e"], environment(), 60)
    assert outcome.status == 0, outcome.text()
    for name in ("FI_KESTREL_CORES", "FI_KESTREL_UNEXPECTED_BUDGET", "FI_KESTREL_CHUNK_SIZE"):
        assert name in outcome.output, f"{name} is missing"


@pytest.mark.parametrize("kind", ["tagged", "msg", "connected", "datagrams"])
def test_fi_pingpong(kind: str, scale: str) -> None:
    """All sizes, and every byte is checked. Datagrams have those of one packet."""
    iterations = {"quick": "10", "default": "30", "full": "1000"}[scale]
    port = {"tagged": "47811", "msg": "47812", "connected": "47813", "datagrams": "47814"}[kind]
    endpoints = {"connected": ["-e", "msg"], "datagrams": ["-e", "dgram"]}
    how = endpoints.get(kind, ["-e", "rdm", "-m", kind])
    common = [tool("fi_pingpong"), "-p", "kestrel", *how]
    common += ["-I", iterations, "-S", "all", "-c"]
    env = environment()
    server = subprocess.Popen(
        [*common, "-B", port], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        # The client tries to connect for a while, so that the server may start slowly.
        for _ in range(20):
            outcome = run([*common, "-P", port, "127.0.0.1"], env, 600)
            if "onnection refused" not in outcome.output:
                break
        output, _ = server.communicate(timeout=60)
    finally:
        server.kill()
        server.wait()
    text = outcome.check(1)
    assert server.returncode == 0, output[-4000:]
    assert ("4k" if kind == "datagrams" else "1m") in text, text
    assert "4m" not in text.splitlines()[0], text
