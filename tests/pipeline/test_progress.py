"""The line while traces are read: what it says, and where it says nothing."""

import io

import pytest

from traceops.pipeline.mapping.ranks import Done, ProgressLine, progress_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def line(file, seconds, **options):
    """What reaches the file when the map calls at these moments."""
    clock = iter([0.0, *seconds])
    with ProgressLine(file, clock=lambda: next(clock), **options) as progress:
        for number, _ in enumerate(seconds, 1):
            progress(Done(number, 8, 10_000_000 * number, 80_000_000))
    return file.getvalue()


def test_it_says_how_far_how_fast_and_how_long(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    written = line(Terminal(), [0.2, 2.0])
    assert "2/8 ranks  20 MB  10 MB/s  0:06 left" in written
    assert "1/8" not in written  # what takes only a moment needs no line
    assert written.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("done", "seconds", "text"),
    [
        (Done(0, 4, 0, 80_000_000), 1, "reading traces  0/4 ranks"),
        (Done(3, 4, 0, 0), 3, "reading traces  3/4 ranks  0:01 left"),
        (Done(4, 4, 8_000_000, 8_000_000), 2, "reading traces  4/4 ranks  8 MB  4 MB/s"),
        (Done(1, 1024, 10**9, 1024 * 10**9), 20, "reading traces  1/1024 ranks  1,000 MB  50 MB/s  5:41:00 left"),
    ],
)
def test_texts(done, seconds, text):
    assert progress_text(done, seconds) == text
    assert len(text) < 80


def test_it_is_not_written_more_often_than_eyes_can_follow(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert line(Terminal(), [1.0, 1.01, 1.02, 1.2]).count("ranks") == 2


def test_nothing_in_a_pipe_or_where_nobody_wants_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert line(io.StringIO(), [2.0]) == ""
    assert line(Terminal(), [2.0], enabled=False) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert line(Terminal(), [2.0]) == ""
