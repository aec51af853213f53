"""What becomes of the bytes that a program writes: lines, progress bars, and lines without an end."""

import random

import pytest

from traceops.launch.forward import PIECE_BYTES, TerminalRows

UP = b"\x1b[A"
OUTER, INNER = b"outer 50%|##", b"inner 33%|#"
# As tqdm writes two bars, one below the other: down, the lower one, and up again.
NESTED = b"\router  0%|\n\rinner  0%|" + UP + b"\n\r" + INNER + UP + b"\r" + OUTER


def final(data, sizes=None):
    """What is passed on of `data` when it comes in pieces of these sizes."""
    rows, at, passed = TerminalRows(), 0, b""
    draw = random.Random(7)
    while at < len(data):
        size = draw.randint(*sizes) if sizes else len(data)
        passed += rows.feed(data[at : at + size], 0.0)
        at += size
    return passed + rows.end()


@pytest.mark.parametrize("sizes", [None, (1, 1), (1, 4), (5, 9)])
@pytest.mark.parametrize(
    ("data", "passed"),
    [
        (b"a\nb\n", b"a\nb\n"),
        (b"a\r\n\r\nb\r\n", b"a\n\nb\n"),
        (b"no end", b"no end"),
        (b"\n\n", b"\n\n"),
        ("é€𝄞\n".encode() * 3, "é€𝄞\n".encode() * 3),
        (b"\xff\xfe\x80\n", b"\xff\xfe\x80\n"),
        (b"\x1b[32mgreen\x1b[0m\n", b"\x1b[32mgreen\x1b[0m\n"),
        (b"\r 10%|\r 50%|\r100%|\n", b"100%|\n"),
        (b"before\n\r 10%|\r100%|\nafter\n", b"before\n100%|\nafter\n"),
        (b"\r 10%|\r      \r", b""),  # tqdm(leave=False)
        (b"\r 10%|\r      \rtold\n\r 20%|\n", b"told\n 20%|\n"),  # tqdm.write
        (NESTED + b"\n\r" + b" " * 30 + b"\r" + UP + b"\r100%|\n", b"100%|\n"),
        (NESTED + b"\n\n", OUTER + b"\n" + INNER + b"\n"),
        (b"\x1b[2K\r 10%|\x1b[2K\r 60%|\x1b[2K\rlast\n", b"last\n"),
    ],
)  # fmt: skip
def test_lines_pass_and_of_a_bar_the_last_state(data, passed, sizes):
    assert final(data, sizes) == passed


def test_a_bar_can_be_seen_before_it_is_final():
    rows = TerminalRows()
    assert rows.feed(NESTED, 0.0) == b"" and rows.draws and rows.live == OUTER
    rows.feed(b"\n\r" + INNER + b"\x1b[1mx" + UP, 0.0)
    assert rows.live == INNER + b"x"
    assert rows.settle(10.0, partial=True) == b"", "the program may go back to its bars after any time"
    assert rows.end() == OUTER + b"\n" + INNER + b"\x1b[1mx"


def test_a_bar_is_final_once_the_program_stays_below_it():
    rows = TerminalRows()
    assert rows.feed(b"\r100%|\n", 1.0) == b"" == rows.settle(1.2, partial=True)
    assert rows.settle(2.0, partial=True) == b"100%|\n" and not rows.draws


def test_a_line_without_its_end_is_shown_after_a_while_where_nobody_sees_it_grow():
    rows = TerminalRows()
    assert rows.feed(b"..", 1.0) == b"" == rows.settle(1.5, partial=True) == rows.settle(9.0, partial=False)
    assert rows.settle(9.0, partial=True) == b".."
    assert rows.feed(b".\n", 9.5) == b".\n"


@pytest.mark.parametrize("before", [b"", b"\r 10%|\n"], ids=["plain", "below a bar"])
def test_a_line_of_megabytes_passes_in_pieces_and_is_not_kept(before):
    """20 MB without a newline took 56 s: everything that had come was searched again with each piece."""
    rows = TerminalRows()
    text = "é".encode() * (PIECE_BYTES // 2 + 3)
    rows.feed(before, 0.0)
    passed = b""
    for piece in (text[at : at + 1000] for at in range(0, len(text), 1000)):
        passed += rows.feed(piece, 0.0)
        assert sum(len(row.text) for row in rows._rows) < PIECE_BYTES + len(before)
    assert passed.endswith("é".encode()), "cut between two characters"
    assert passed + rows.end() == before.lstrip(b"\r") + text


def test_bars_that_go_down_and_never_up_are_not_kept():
    rows = TerminalRows()
    passed = rows.feed(b"".join(b"\rbar %d\n" % number for number in range(1000)), 0.0)
    assert len(rows._rows) < 20
    assert passed + rows.end() == b"".join(b"bar %d\n" % number for number in range(1000))
