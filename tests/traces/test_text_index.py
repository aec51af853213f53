"""A text that is searched once for the words of all its readers: each gets the blocks that it would have found."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from traceops.traces.text_index import Words, backwards, blocks_with, edge_blocks, holds, indexed, spread_blocks
from traceops.traces.text_lines import blocks

RARE, BOTH, NEVER = Words(b"watchdog caught"), Words(b"[q]x", b"step 77 "), Words(b"not in this text")
LINES = "".join(
    f"2026-11-20 10:00:00 step {step} loss 2.1 {'watchdog caught' if step % 9000 == 5 else 'and it goes on'}\n"
    for step in range(40_000)
)
DRESSES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda text: text,
    "gzip": gzip.compress,
    "utf-16": lambda text: text.decode().encode("utf-16"),
    "json": lambda text: b"\n".join(json.dumps({"log": one}).encode() for one in text.decode().splitlines()) + b"\n",
    "no end": lambda text: text + b"watchdog caught",
    "one long line": lambda text: text.replace(b"\n", b" ") + b"\n" + text,
    "empty": lambda text: b"",
}


@pytest.fixture(params=DRESSES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    file = tmp_path / "job.log"
    file.write_bytes(DRESSES[request.param](LINES.encode()))
    return str(file)


@pytest.mark.parametrize("words", [RARE, BOTH, NEVER])
def test_each_reader_gets_the_blocks_that_hold_its_words(path: str, words: Words) -> None:
    wanted = [found for found in blocks(path) if any(word in found[1] for word in words.words)]
    assert list(blocks_with(path, words)) == wanted
    assert holds(path, words) is bool(wanted)


def test_all_blocks_are_those_of_the_text(path: str) -> None:
    read = list(blocks(path))
    assert [(block.number, block.data()) for block in indexed(path)] == read
    assert [block.behind for block in indexed(path)] == [number + data.count(b"\n") for number, data in read]
    assert [(one.number, one.data()) for one in edge_blocks(path, 1, 1)] == (
        read if len(read) < 2 else read[:: len(read) - 1]
    )
    assert [one.number for one in backwards(path)] == [number for number, _ in read[::-1][:16]]
    spread = [one.number for one in spread_blocks(path, 2)]
    assert spread == sorted(spread) and len(spread) <= len(read) and spread[:1] == [number for number, _ in read[:1]]


def test_a_block_can_be_read_after_the_others(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(LINES)
    held = list(indexed(str(tmp_path / "job.log")))
    assert b"".join(block.data() for block in held) == LINES.encode()


def test_a_text_that_grows_is_searched_again(tmp_path: Path) -> None:
    file = tmp_path / "job.log"
    file.write_text("step 1\n")
    assert not holds(str(file), RARE)
    file.write_text("step 1\nwatchdog caught\n")
    assert holds(str(file), RARE)


def test_words_that_are_asked_for_later_are_searched_for_too(tmp_path: Path) -> None:
    file = tmp_path / "job.log"
    file.write_text("step 1\nsomething new\n")
    assert not holds(str(file), RARE)
    assert holds(str(file), Words(b"something new"))
    assert holds(str(file), Words(b"something new"), most=1 << 20)
