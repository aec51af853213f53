"""A run that could not be started, because its folder cannot be written, leaves nothing behind."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.core.run_lock import hold
from traceops.launch import session

OPTIONS = ("run", "--nproc", "2", "--out")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where run.json is written, and the disk is full behind it; there is a script."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)

    def full(out: Path) -> None:
        (out / f".reserve.{session.host()}").write_bytes(b"")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session, "Reserve", full)
    return tmp_path


@pytest.mark.torch
def test_a_full_disk_leaves_no_folder(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "profile/mine", "--", "train.py"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in full_disk.iterdir()] == ["train.py"]


@pytest.mark.torch
def test_what_others_have_in_the_folder_stays(full_disk: Path) -> None:
    (full_disk / "mine" / "logs").mkdir(parents=True)
    (full_disk / "mine" / "logs" / "a.log").write_text("a")
    assert main([*OPTIONS, "mine", "--", "train.py"]) == 2
    assert sorted(path.relative_to(full_disk).as_posix() for path in (full_disk / "mine").rglob("*")) == [
        "mine/logs", "mine/logs/a.log",
    ]  # fmt: skip


def test_a_folder_of_one_s_own_that_is_empty_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    hold(tmp_path / "there").take_back()
    hold(tmp_path / "new" / "er").take_back()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_hold_a_lock_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("traceops.core.run_lock.os.open", full)
    with pytest.raises(UsageError, match="No space left"):
        hold(tmp_path / "new" / "er")
    assert not list(tmp_path.iterdir())
