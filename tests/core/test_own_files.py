"""Files of ours: where the cache lies, whom it believes, one writer at a time, and reports replaced all together."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from traceops.core import files
from traceops.core.errors import UsageError
from traceops.core.files import (
    LOCK,
    OWNER,
    TRUST,
    Locked,
    Unbelieved,
    cache_folder,
    locked_folder,
    make_own_folder,
    open_own,
    shared_with,
    write_all_whole,
    write_own,
    write_whole,
)

STRANGER = 4_000_000_000  # no user of any machine


@pytest.fixture
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


@pytest.mark.usefixtures("_open_to_all")
def test_what_is_kept_is_for_its_owner_alone_whatever_the_umask(folder: Path) -> None:
    path = kept(folder)
    assert read(path, folder) == b"figures"
    assert [mode(p) for p in (path, path.parent, folder)] == [0o600, 0o700, 0o700]


@pytest.mark.usefixtures("_open_to_all")
@pytest.mark.parametrize("bits", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("which", ["file", "folder", "above"])
def test_what_others_can_write_is_not_believed(folder: Path, which: str, bits: int) -> None:
    path = kept(folder)
    {"file": path, "folder": path.parent, "above": folder}[which].chmod(bits if which == "file" else bits | 0o100)
    with pytest.raises(Unbelieved):
        read(path, folder)


@pytest.mark.usefixtures("_open_to_all")
def test_a_folder_that_was_open_to_others_is_closed_when_something_is_kept(folder: Path) -> None:
    """As versions before made it with a umask of 002."""
    path = kept(folder)
    for above in (folder, path.parent):
        above.chmod(0o775)
    make_own_folder(path.parent, folder)
    assert read(path, folder) == b"figures"
    assert mode(folder) == mode(path.parent) == 0o755


@pytest.mark.usefixtures("_open_to_all")
def test_another_user_s_file_and_folder_are_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(folder)
    monkeypatch.setattr(files, "_ROOT", STRANGER)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(Unbelieved):
        read(path, folder)


@pytest.mark.usefixtures("_open_to_all")
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


@pytest.mark.usefixtures("_open_to_all")
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


# The cache is where the user wants it, and never in a place that depends on where the command runs.


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEOPS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("_home")
def test_the_users_choice_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("x") == tmp_path / ".cache" / "traceops" / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("x") == tmp_path / "xdg" / "traceops" / "x"
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "own"))
    assert cache_folder("x") == tmp_path / "own" / "x"
    monkeypatch.setenv("TRACEOPS_CACHE", "off")
    assert cache_folder("x") is None


@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("home", ["relative", "~nobody-has-this-name/x"])
def test_without_a_home_there_is_none(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert cache_folder("x") is None


# A folder has one writer at a time.


def test_the_second_writer_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path),
        pytest.raises(Locked, match=rf"{tmp_path} is being written by process {os.getpid()} on "),
        locked_folder(tmp_path, wait_s=0),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_of_a_process_that_died_holds_nobody(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        held = locked_folder(tmp_path)
        held.__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / LOCK).exists()
    with locked_folder(tmp_path, wait_s=0):
        pass
    assert not list(tmp_path.iterdir())


def test_a_writer_waits_for_another_and_both_have_their_turn(tmp_path: Path) -> None:
    """Increments of a number in a file by several processes are lost where two write at once."""
    (tmp_path / "n").write_text("0")
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            for _ in range(20):
                with locked_folder(tmp_path, wait_s=60):
                    number = int((tmp_path / "n").read_text())
                    os.sched_yield()
                    (tmp_path / "n").write_text(str(number + 1))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert (tmp_path / "n").read_text() == "80"


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / LOCK).symlink_to(precious)
    with pytest.raises(OSError), locked_folder(tmp_path):
        pass
    assert precious.read_text() == "keep"


# Files of a report are replaced all together or not at all, whatever fails or is killed meanwhile.


OLD = {"report.json": b"old", "summary.html": b"old page", "gone.csv": b"old rows"}
NEW = {"report.json": b"new", "summary.html": b"new page", "more.csv": b"new rows"}
OPERATIONS = ("open", "replace", "rename", "link", "fdopen")


class Faults:
    """Counts calls of the file system's operations, and has the n-th fail as on a full disk, or end the process."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, *, kill: bool = False) -> None:
        self.count, self.at, self._kill = 0, at, kill
        for name in OPERATIONS:
            patch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                if self._kill:
                    os._exit(9)
                raise OSError(errno.ENOSPC, "No space left on device", str(args[0]))
            return real(*args, **options)

        return call


@pytest.fixture
def report_folder(tmp_path: Path) -> Path:
    for name, data in OLD.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "others.txt").write_bytes(b"not ours")
    return tmp_path


def held(report_folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in report_folder.iterdir()}
    assert files.pop("others.txt") == b"not ours"
    return files


def test_a_set_is_replaced_and_what_it_has_no_more_goes(report_folder: Path) -> None:
    write_all_whole(report_folder, NEW, {"gone.csv", "never.csv"})
    assert held(report_folder) == NEW


def test_whatever_operation_fails_the_folder_is_as_before_and_the_file_is_named(report_folder: Path) -> None:
    failed = 0
    for at in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at)
            try:
                write_all_whole(report_folder, NEW, {"gone.csv"})
            except OSError as error:
                failed += 1
                named = error.filename
            else:
                named = None
        if faults.count < at:
            break
        if named is None:  # a link that cannot be made: the file is moved instead
            assert held(report_folder) == NEW
            for name in NEW:
                (report_folder / name).unlink()
            for name, data in OLD.items():
                (report_folder / name).write_bytes(data)
        else:
            assert held(report_folder) == OLD
            assert named in {str(report_folder / name) for name in {*OLD, *NEW}}
    assert failed >= 3 * len(NEW)
    assert held(report_folder) == NEW


def test_after_a_kill_every_file_is_whole_and_the_next_writer_clears_up(report_folder: Path) -> None:
    for at in range(1, 100):
        child = os.fork()
        if child == 0:
            with pytest.MonkeyPatch.context() as patch:
                Faults(patch, at, kill=True)
                write_all_whole(report_folder, NEW, {"gone.csv"})
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found = {name: data for name, data in held(report_folder).items() if not name.endswith(".part")}
        assert all(data in (OLD.get(name), NEW.get(name)) for name, data in found.items())
        assert found.keys() >= OLD.keys() & NEW.keys()
        write_all_whole(report_folder, OLD, NEW.keys() - OLD.keys())
        assert held(report_folder) == OLD
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert at > 3 * len(NEW)


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"keep")
    (tmp_path / "out").mkdir()
    for name in ("a", "b"):
        (tmp_path / "out" / name).symlink_to(precious)
    write_whole(tmp_path / "out" / "a", b"new")
    write_all_whole(tmp_path / "out", {"b": b"new"})
    assert precious.read_bytes() == b"keep"
    assert not (tmp_path / "out" / "a").is_symlink() and (tmp_path / "out" / "b").read_bytes() == b"new"


def test_a_private_file_is_its_owner_s_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_whole(tmp_path / "own", b"x", mode=OWNER)
        write_whole(tmp_path / "shared", b"x")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "shared")]
    assert modes == [0o600, 0o666]


def test_a_folder_in_the_place_of_a_file_is_left_alone(report_folder: Path) -> None:
    (report_folder / "more.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        write_all_whole(report_folder, NEW)
    (report_folder / "more.csv").rmdir()
    assert held(report_folder) == OLD


def test_a_file_that_cannot_be_written_is_named_as_the_user_knows_it(tmp_path: Path) -> None:
    """`memory --json m.json` said ".m.json.c6a21d5001640626.part: Permission denied"."""
    path = tmp_path / "gone" / "m.json"
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(path, b"{}")
    assert raised.value.filename == str(path)
