"""Files of a report are replaced all together or not at all, whatever fails or is killed meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from traceops.core.files import OWNER, write_all_whole, write_whole

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
def folder(tmp_path: Path) -> Path:
    for name, data in OLD.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "others.txt").write_bytes(b"not ours")
    return tmp_path


def held(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("others.txt") == b"not ours"
    return files


def test_a_set_is_replaced_and_what_it_has_no_more_goes(folder: Path) -> None:
    write_all_whole(folder, NEW, {"gone.csv", "never.csv"})
    assert held(folder) == NEW


def test_whatever_operation_fails_the_folder_is_as_before_and_the_file_is_named(folder: Path) -> None:
    failed = 0
    for at in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at)
            try:
                write_all_whole(folder, NEW, {"gone.csv"})
            except OSError as error:
                failed += 1
                named = error.filename
            else:
                named = None
        if faults.count < at:
            break
        if named is None:  # a link that cannot be made: the file is moved instead
            assert held(folder) == NEW
            for name in NEW:
                (folder / name).unlink()
            for name, data in OLD.items():
                (folder / name).write_bytes(data)
        else:
            assert held(folder) == OLD
            assert named in {str(folder / name) for name in {*OLD, *NEW}}
    assert failed >= 3 * len(NEW)
    assert held(folder) == NEW


def test_after_a_kill_every_file_is_whole_and_the_next_writer_clears_up(folder: Path) -> None:
    for at in range(1, 100):
        child = os.fork()
        if child == 0:
            with pytest.MonkeyPatch.context() as patch:
                Faults(patch, at, kill=True)
                write_all_whole(folder, NEW, {"gone.csv"})
            os._exit(0)
        _, status = os.waitpid(child, 0)
        found = {name: data for name, data in held(folder).items() if not name.endswith(".part")}
        assert all(data in (OLD.get(name), NEW.get(name)) for name, data in found.items())
        assert found.keys() >= OLD.keys() & NEW.keys()
        write_all_whole(folder, OLD, NEW.keys() - OLD.keys())
        assert held(folder) == OLD
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


def test_a_folder_in_the_place_of_a_file_is_left_alone(folder: Path) -> None:
    (folder / "more.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        write_all_whole(folder, NEW)
    (folder / "more.csv").rmdir()
    assert held(folder) == OLD


def test_a_file_that_cannot_be_written_is_named_as_the_user_knows_it(tmp_path: Path) -> None:
    """`memory --json m.json` said ".m.json.c6a21d5001640626.part: Permission denied"."""
    path = tmp_path / "gone" / "m.json"
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(path, b"{}")
    assert raised.value.filename == str(path)
