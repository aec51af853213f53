"""A folder has one writer at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceops.core.files import LOCK, Locked, locked_folder


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
