"""The parts that must be exact: times, checksums, the joined stream."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceops.timeline.pieces import CannotWrite, PieceWriter, crc_of_both, join
from traceops.timeline.reader import TimelineHeader, place_files
from traceops.timeline.times import Shift, format_us, parse_us


@given(st.binary(), st.binary())
def test_the_checksum_of_two_texts_is_made_of_theirs(a: bytes, b: bytes) -> None:
    assert crc_of_both(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@given(st.integers(-(1 << 60), 1 << 60))
def test_times_come_back_to_the_ns(ns: int) -> None:
    assert parse_us(format_us(ns)) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"4361298533606.022", 4361298533606022), (b"1.5", 1500), (b"7", 7000), (b'"12.25"', 12250),
        (b"0.0004", 0), (b"0.0005", 1), (b"-1.001", -1001), (b"1e3", 1_000_000), (b"null", None), (b"true", None),
        (b'"nan"', None), (b"1e300", None), (b"", None), (b"99999999999999999999.000", None), (b"[1]", None),
        (b"1.2.345", None),
    ],
)  # fmt: skip
def test_times_as_files_have_them(text: bytes, ns: int | None) -> None:
    assert parse_us(text) == ns


@pytest.mark.parametrize("gzipped", [True, False])
def test_pieces_join_to_one_text(gzipped: bool, tmp_path: Path) -> None:
    texts = [b"a" * 700_000, b"", b"b\n" * 10, bytes(range(256)) * 3000]
    pieces = []
    for number, text in enumerate(texts):
        with PieceWriter(tmp_path / str(number), gzipped) as writer:
            for at in range(0, len(text), 99_999):
                writer.write(text[at : at + 99_999])
        pieces.append(writer.piece)
    join(pieces, tmp_path / "whole")
    raw = (tmp_path / "whole").read_bytes()
    assert (gzip.decompress(raw) if gzipped else raw) == b"".join(texts)
    assert zlib.decompressobj(31).decompress(raw) == b"".join(texts) if gzipped else True
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match=str(tmp_path)), PieceWriter(tmp_path / "folder" / "no" / "piece", True):
        pass


def test_a_file_without_a_zero_is_put_beside_the_others() -> None:
    year = 31 * 10**15
    headers = {
        0: TimelineHeader(year, year + 5, None),
        1: TimelineHeader(None, 7, None),
        2: TimelineHeader(year, year + 9, None),
        3: TimelineHeader(None, year + 1000, None),  # of the clocks' own time, as traces with all digits are
        4: TimelineHeader(None, None, None),
    }
    placements, borrowed = place_files(headers, {2: Shift(0)})
    assert borrowed == (1,)
    assert {r: placements[r].place_one(h.first_ns) for r, h in headers.items() if h.first_ns is not None} == {
        0: 5, 1: 7, 2: 9, 3: 1000,
    }  # fmt: skip
    fitted, borrowed = place_files(headers, {1: Shift(year + 100)})
    assert (fitted[1].place_one(7), borrowed) == (107, ())


def test_zeros_are_not_mixed_where_nobody_has_one() -> None:
    placements, borrowed = place_files(
        {0: TimelineHeader(None, 5_000_001, None), 1: TimelineHeader(None, 9_000_000, None)}, {}
    )
    assert borrowed == ()
    assert [placements[r].place_one(t) for r, t in ((0, 5_000_001), (1, 9_000_000))] == [1, 4_000_000]
