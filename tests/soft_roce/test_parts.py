"""What the parts of scripts/soft-roce do with what is missing or damaged, without a machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from lab import SCRIPT

sys.path.append(str(SCRIPT.parent))

from soft_roce import here, image, lab, machine, prepare  # noqa: E402
from soft_roce.errors import SetupError  # noqa: E402
from soft_roce.machine import Machine, Shape  # noqa: E402
from soft_roce.packages import Store, unpacking_error  # noqa: E402

GID = "0000:0000:0000:0000:0000:ffff:0a09:0001"


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device that has no port, and behind it one that is active."""
    monkeypatch.setattr(here, "DEVICES", tmp_path / "devices")
    (tmp_path / "devices/a0").mkdir(parents=True)
    port = tmp_path / "devices/b0/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "gids/0").write_text(GID + "\n")
    return tmp_path


def test_a_device_without_a_port_is_passed_over(device: Path) -> None:
    assert here.environment()["SOFT_ROCE_DEVICE"] == "b0"
    (device / "devices/b0/ports/1/state").unlink()
    with pytest.raises(SetupError, match="none of a0, b0 has an active port"):
        here.run(["true"], 10)


def test_what_cannot_be_run_here_is_named(
    device: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = device / "program"
    program.write_text("neither a program nor a script\n")
    assert here.run([str(device / "none")], 10) == 127
    assert here.run([str(program)], 10) == 126
    program.chmod(0o755)
    assert here.run([str(program)], 10) == 126
    said = capfd.readouterr().err
    for reason in ("No such file or directory", "Permission denied", "Exec format error"):
        assert reason in said, said


def test_modules_are_those_that_the_kernel_has() -> None:
    """What is built into it needs no loading, and its checksums have one name or another."""
    others = [name for name in image.MODULES if name not in image.CHECKSUMS]
    needs = {name: ["common"] for name in [*others, "crc32c_cryptoapi"]}
    del needs["overlay"]
    order = image.load_order({**needs, "common": []}, {"overlay"})
    assert order[0] == "common" and "crc32c_cryptoapi" in order and "overlay" not in order
    assert order.index("crc32c_cryptoapi") < order.index("rdma_rxe")
    with pytest.raises(SetupError, match="the kernel has no module overlay"):
        image.load_order({**needs, "common": []}, set())


def test_what_was_prepared_is_used_while_all_of_it_is_there(tmp_path: Path) -> None:
    names = {name: str(tmp_path / name) for name in ("kernel", "initramfs", "tools", "qemu")}
    record = tmp_path / "record"
    assert prepare.recorded(record) is None
    record.write_text(json.dumps(names))
    qemu = tmp_path / "qemu" / prepare.QEMU_IN_TREE
    qemu.parent.mkdir(parents=True)
    files = [*(tmp_path / name for name in ("kernel", "initramfs", "tools")), qemu]
    for file in files:
        file.touch()
    assert prepare.recorded(record) == names
    for file in files:
        file.unlink()
        assert prepare.recorded(record) is None, file
        file.touch()
    record.write_text(record.read_text()[:20])
    assert prepare.recorded(record) is None


def test_what_killed_runs_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that only has such a name stays, however old; a pipe is not waited for."""
    monkeypatch.setattr(lab, "FOLDERS_IN", tmp_path)
    names = ("killed", "alive", "other", "linked")
    killed, alive, other, linked = (tmp_path / f"{lab.FOLDER_PREFIX}{name}" for name in names)
    for folder in (killed, alive, other):
        folder.mkdir()
        (folder / "file").touch()
        os.utime(folder, (0, 0))
    for folder in (killed, alive):
        (folder / lab.MARKER).touch()
    linked.symlink_to(killed)
    os.mkfifo(tmp_path / f"{lab.FOLDER_PREFIX}pipe")
    owner = os.open(alive, os.O_RDONLY)
    fcntl.flock(owner, fcntl.LOCK_EX)
    folder, lock = lab.claim_folder()
    os.close(owner)
    assert not killed.exists()
    assert (alive / "file").exists() and (other / "file").exists() and linked.is_symlink()
    os.close(lock)
    next_one, lock = lab.claim_folder()
    os.close(lock)
    assert not alive.exists() and not folder.exists() and next_one.is_dir()


def test_a_monitor_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is silent, and one that is gone: the command was not run, and its output is no pipe that broke."""
    monkeypatch.setattr(machine, "MONITOR_SECONDS_MAX", 0.1)
    monkeypatch.setattr(Machine, "ended", lambda _: False)
    silent = Machine("a", "tcg", prepare.Prepared([], {}, Path(), None), Shape(1, 1, None))
    with pytest.raises(SetupError, match="QEMU's monitor does not take set_link: timed out"):
        silent.set_link(True)
    gone = Machine("a", "tcg", prepare.Prepared([], {}, Path(), None), Shape(1, 1, None))
    gone._monitor_end.close()
    with pytest.raises(SetupError, match="QEMU's monitor does not take set_link: .*Broken pipe"):
        gone.set_link(True)
    silent.kill()
    gone.kill()


def prepared_for(system: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Prepares for a machine with such packages, while apt finds what there is."""
    paths = {name: str(cache / f"{name}-{system}") for name in ("kernel", "initramfs", "tools", "qemu")}
    (cache / f"qemu-{system}" / prepare.QEMU_IN_TREE).mkdir(parents=True)
    for name in ("kernel", "initramfs", "tools"):
        Path(paths[name]).touch()
    monkeypatch.setattr(prepare, "system", lambda: system)
    monkeypatch.setattr(prepare, "fetch", lambda _: paths)
    prepare.prepare_locked(cache, refresh=False)
    return paths


def test_without_apt_what_was_prepared_for_other_packages_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The newest that is whole; but not where newer packages are asked for."""

    def offline(_: Path) -> None:
        raise SetupError("apt cannot be asked")

    for age, system in ((30, "old"), (20, "newer"), (10, "broken")):
        prepared_for(system, tmp_path, monkeypatch)
        record = next(tmp_path.glob(f"prepared-*-{system}.json"))
        os.utime(record, (record.stat().st_mtime - age,) * 2)
    (tmp_path / "tools-broken").unlink()
    monkeypatch.setattr(prepare, "system", lambda: "today")
    monkeypatch.setattr(prepare, "fetch", offline)
    assert prepare.prepare_locked(tmp_path, refresh=False).tools == tmp_path / "tools-newer"
    assert "apt cannot be asked" in capfd.readouterr().err
    (tmp_path / "no-kvm-here").touch()
    with pytest.raises(SetupError, match="apt cannot be asked"):
        prepare.prepare_locked(tmp_path, refresh=True)
    assert not (tmp_path / "no-kvm-here").exists()


def test_who_prepares_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "WAIT_SECONDS_MAX", 1)
    monkeypatch.setattr(prepare, "SAID_AFTER_SECONDS", 0)
    monkeypatch.setattr(prepare, "cache_folder", lambda: tmp_path)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match="another run has been preparing for 1 s"):
            prepare.prepare(refresh=False)
    assert "waiting for another run" in capfd.readouterr().err


def stub(folder: Path, name: str, text: str) -> None:
    """A program that does what a line of shell says."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_damaged_package_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one, which the lists tell; and one that they do not know, which unpacking tells."""
    whole = hashlib.sha256(b"whole\n").hexdigest()
    stub(tmp_path, "apt-cache", f"echo Filename: pool/b/b_1_all.deb; echo SHA256: {whole}")
    stub(tmp_path, "apt-get", "echo whole >b_1_all.deb; echo fetched >>../fetched")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    store = Store(tmp_path)
    store.downloads.mkdir()
    (store.downloads / "b_1_all.deb").write_text("who")
    (store.downloads / "c_1_all.deb").write_text("unknown")
    fetched = store.fetch([("b", "1"), ("c", "1")])
    assert [file.read_text() for file in fetched] == ["whole\n", "unknown"]
    store.fetch([("b", "1")])
    Store(tmp_path).fetch([("b", "1")])
    assert (tmp_path / "fetched").read_text() == "fetched\n"
    stub(tmp_path, "dpkg-deb", "exit 0")
    assert "no space" in str(unpacking_error(fetched[1], "no space")) and fetched[1].exists()
    stub(tmp_path, "dpkg-deb", "exit 2")
    assert "is removed" in str(unpacking_error(fetched[1], "end of file"))
    assert not fetched[1].exists()


def test_a_tree_from_which_its_program_is_gone_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path, "apt-cache", "exit 1")
    stub(tmp_path, "dpkg-deb", f"touch {tmp_path}/program; cd {tmp_path}; exec tar -c program")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    store = Store(tmp_path)
    store.downloads.mkdir()
    (store.downloads / "b_1_all.deb").touch()
    tree = store.unpack("kind", [("b", "1")], "program")
    (tree / "program").unlink()
    assert store.unpack("kind", [("b", "1")], "program") == tree
    assert (tree / "program").exists()
