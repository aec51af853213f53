"""Nothing of the cache is believed that another user could have written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from traceops.core import files
from traceops.core.errors import UsageError
from traceops.core.files import TRUST, Unbelieved, make_own_folder, open_own, shared_with, write_own

STRANGER = 4_000_000_000  # no user of any machine


@pytest.fixture(autouse=True)
def _open_to_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(TRUST, raising=False)
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "summaries"


def kept(folder: Path) -> Path:
    path = folder / "0" / "entry"
    make_own_folder(path.parent, folder)
    write_own(path, b"figures")
    return path


def read(path: Path, folder: Path) -> bytes:
    with open_own(path, folder) as file:
        return file.read()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_what_is_kept_is_for_its_owner_alone_whatever_the_umask(folder: Path) -> None:
    path = kept(folder)
    assert read(path, folder) == b"figures"
    assert [mode(p) for p in (path, path.parent, folder)] == [0o600, 0o700, 0o700]


@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("which", ["file", "folder", "above"])
def test_what_others_can_write_is_not_believed(folder: Path, which: str, bits: int) -> None:
    path = kept(folder)
    {"file": path, "folder": path.parent, "above": folder}[which].chmod(bits if which == "file" else bits | 0o100)
    with pytest.raises(Unbelieved):
        read(path, folder)


def test_a_folder_that_was_open_to_others_is_closed_when_something_is_kept(folder: Path) -> None:
    """As versions before made it with a umask of 002."""
    path = kept(folder)
    for above in (folder, path.parent):
        above.chmod(0o775)
    make_own_folder(path.parent, folder)
    assert read(path, folder) == b"figures"
    assert mode(folder) == mode(path.parent) == 0o755


def test_another_user_s_file_and_folder_are_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(folder)
    monkeypatch.setattr(files, "_ROOT", STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(Unbelieved):
        read(path, folder)


def test_a_link_and_a_fifo_are_not_followed_and_not_waited_for(folder: Path, tmp_path: Path) -> None:
    path = kept(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        read(path, folder)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(Unbelieved):
        read(path, folder)
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "entry").write_bytes(b"figures")
    (folder / "0").symlink_to(tmp_path)
    with pytest.raises(Unbelieved):
        read(path, folder)


def test_who_shares_a_cache_names_who_is_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    monkeypatch.setenv(TRUST, f"root, {me}")
    assert shared_with() == {0, me}
    path = kept(folder)
    assert [mode(p) for p in (path, path.parent, folder)] == [0o644, 0o1777, 0o1777]
    monkeypatch.setattr(files, "_ROOT", STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert read(path, folder) == b"figures"  # of a user who is named
    monkeypatch.setenv(TRUST, "12345")
    with pytest.raises(Unbelieved):
        read(path, folder)
    monkeypatch.setenv(TRUST, "nobody-has-this-name")
    with pytest.raises(UsageError, match=TRUST):
        read(path, folder)
