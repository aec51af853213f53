"""Reading text quickly: many words searched at once, and ahead of time, give the same answers."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from traceops.hangs.readers.messages import WORDS
from traceops.traces.source import AT_LEAST, MOST_TIMES, Damaged, read_ahead
from traceops.traces.text_index import Words, backwards, blocks_with, edge_blocks, holds, indexed, spread_blocks
from traceops.traces.text_lines import WordSearch, blocks, damage, holds_any

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


# Many words are searched for at once: the same answer as one by one.


HEALTHY = b"".join(
    b"Epoch [2/2], Step [%d/12942], Loss: 2.1197, Perplexity: 8.3289, exit 0, 100%%|\n" % step for step in range(50)
)
NEEDLES = WORDS.words
SEARCH = WordSearch(NEEDLES)


def test_no_word_is_in_a_healthy_block():
    assert not any(word in HEALTHY for word in NEEDLES)
    assert not SEARCH.any_in(HEALTHY) and not holds_any(HEALTHY, NEEDLES)


@pytest.mark.parametrize("before", range(5))
def test_each_word_is_found_at_each_place(before):
    missed = [word for word in NEEDLES if not SEARCH.any_in(b"." * before + word)]
    assert missed == [] and all(holds_any(HEALTHY + b"x" * before + word + HEALTHY, NEEDLES) for word in NEEDLES)


def test_a_word_that_is_cut_is_none():
    for word in NEEDLES:
        for cut in (word[1:], word[:-1]):
            assert SEARCH.any_in(HEALTHY + cut + b"\n") is any(other in cut for other in NEEDLES)


@pytest.mark.parametrize("block", [b"", b"a", b"ab", b"abc", b"abcd", "Störung\U0001f525".encode()])
def test_short_blocks_and_short_words(block):
    words = (b"bc", b"abcd", "Störung".encode(), *(b"never %d" % number for number in range(30)))
    assert holds_any(block, words) is any(word in block for word in words)


# Reading ahead changes when things are read, never what, and leaves no thread behind.


def test_items_come_in_order_and_the_error_where_it_was():
    def items():
        yield from range(100)
        raise Damaged("cut off")

    got = read_ahead(items())
    assert [next(got) for _ in range(100)] == list(range(100))
    with pytest.raises(Damaged, match="cut off"):
        next(got)
    assert list(read_ahead(iter([]))) == []


def test_giving_up_ends_the_thread_and_the_reading():
    read = []

    def endless():
        while True:
            read.append(0)
            yield b"x"

    before = threading.active_count()
    ahead = read_ahead(endless())
    assert next(ahead) == b"x"
    ahead.close()
    assert threading.active_count() == before
    assert len(read) < 100


def test_it_reads_while_the_consumer_is_at_work():
    second_read = threading.Event()

    def items():
        yield 1
        second_read.set()
        yield 2

    ahead = read_ahead(items())
    assert next(ahead) == 1
    assert second_read.wait(60)  # though nobody has asked for the second
    assert list(ahead) == [2]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress], ids=["gzip", "xz", "bzip2"])
def test_what_holds_far_more_than_its_size_is_read_in_part_and_that_is_said(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """46 kB of xz held 300 MB of lines."""
    log = tmp_path / "train.log.packed"
    log.write_bytes(pack(b"[rank0]: RuntimeError: odd\n" * 1_000_000))
    most = AT_LEAST + MOST_TIMES * log.stat().st_size
    assert sum(len(block) for _, block in blocks(str(log))) == pytest.approx(most, abs=100)
    assert "only 200 times its packed size are unpacked" in damage(str(log))
    log.write_bytes(pack(b"x" * (AT_LEAST - 100)))
    assert damage(str(log)) is None
