"""The same rows whether the file is plain, gzip, misnamed, in several members, padded or remote."""

import bz2
import gzip
import itertools
import lzma
import sys
import zlib
from pathlib import Path

import pytest
from json_reference import loaded_rows, read_bytes

from traceops.core.errors import InputError
from traceops.traces.kineto import load_trace
from traceops.traces.packed import AT_LEAST, MOST_TIMES
from traceops.traces.source import filesystem
from traceops.traces.text_lines import blocks, damage

pytestmark = pytest.mark.usefixtures("either_scanner")

AMD = next((Path(__file__).resolve().parents[1] / "data/hta/amd").glob("*.gz"))


@pytest.fixture(scope="module")
def text():
    return read_bytes(AMD)


def members(data, *cuts):
    edges = [0, *cuts, len(data)]
    return b"".join(gzip.compress(data[a:b]) for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: text,
        gzip.compress,
        lambda text: gzip.compress(text, 0),
        lambda text: members(text, 10, 5000, 5000, 60000),
        lambda text: gzip.compress(text) + b"\0" * 700,
        lambda text: b"\xef\xbb\xbf" + text,
    ],
    ids=["plain", "gzip", "stored", "members", "padded", "byte order mark"],
)
@pytest.mark.parametrize("name", ["rank_0.json", "rank_0.json.gz", "trace"])
@pytest.mark.parametrize("chunk", [1, 999, None])
def test_packing_and_name_do_not_matter(load, text, pack, name, chunk):
    expected, trace = load(text), load(pack(text), chunk, name)
    assert trace.damage == ()
    assert loaded_rows(trace.events) == loaded_rows(expected.events)
    assert len(expected.events) == 112


def test_size_is_the_size_of_the_file_on_disk():
    assert load_trace(str(AMD)).size_bytes == AMD.stat().st_size


def test_a_small_file_that_unpacks_to_much_is_read_in_small_pieces_and_not_all(load, monkeypatch):
    from traceops.traces import source

    sizes = []
    original = source.chunks
    monkeypatch.setattr(
        "traceops.traces.kineto.chunks", lambda file: (sizes.append(len(c)) or c for c in original(file))
    )
    load(gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000 + b"]}"))
    assert AT_LEAST < sum(sizes) < 50_000_000
    assert max(sizes) <= 4 << 20


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress], ids=["gzip", "xz", "bzip2"])
def test_what_holds_far_more_than_its_size_is_read_in_part_and_that_is_said(tmp_path, pack):
    """46 kB of xz held 300 MB of lines."""
    log = tmp_path / "train.log.packed"
    log.write_bytes(pack(b"[rank0]: RuntimeError: odd\n" * 1_000_000))
    most = AT_LEAST + MOST_TIMES * log.stat().st_size
    assert sum(len(block) for _, block in blocks(str(log))) == pytest.approx(most, abs=100)
    assert "only 200 times its packed size are unpacked" in damage(str(log))
    log.write_bytes(pack(b"x" * (AT_LEAST - 100)))
    assert damage(str(log)) is None


@pytest.mark.parametrize("cut", [1, 2, 5, 9, 10, 11, 300, 3000, 6000, -9, -8, -5, -1])
def test_a_cut_gzip_gives_the_events_before_the_cut(load, text, cut):
    packed = gzip.compress(text, mtime=0)
    whole, trace = loaded_rows(load(text).events), load(packed[:cut])
    rows = loaded_rows(trace.events)
    base = load(text).events.ts[0] - trace.events.ts[0] if rows else 0  # the zero may stand behind the cut
    assert [row[:3] for row in rows] == [row[:3] for row in whole[: len(rows)]]
    assert [row[3] + base for row in rows] == [row[3] for row in whole[: len(rows)]]
    assert trace.damage
    readable = zlib.decompressobj(31).decompress(packed[:cut])
    assert len(rows) >= readable.count(b'"ph": "X"') - 3  # the last may be cut, one is the profiler's own


def test_flipped_bits_in_gzip_are_said(load, text):
    packed = bytearray(gzip.compress(text, mtime=0))
    for at in (30, len(packed) // 2, len(packed) - 6):
        broken = bytes(packed[:at]) + bytes([packed[at] ^ 0xFF]) + bytes(packed[at + 1 :])
        assert load(broken).damage


def test_other_bytes_behind_gzip_are_said_and_the_events_kept(load, text):
    trace = load(gzip.compress(text) + b"hello")
    assert len(trace.events) == 112
    assert trace.damage == ("other bytes follow the end of the gzip stream",)


def test_the_error_names_a_file_that_cannot_be_opened(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=path.name):
            load_trace(str(path))


def test_remote_files_are_read_through_fsspec(text):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://run/rank_0.json.gz", "wb") as file:
        file.write(gzip.compress(text))
    assert len(load_trace("memory://run/rank_0.json.gz").events) == 112
    with pytest.raises(InputError, match="rank_9"):
        load_trace("memory://run/rank_9.json.gz")


@pytest.mark.parametrize(
    ("path", "asks"), [("s3://bucket/run", "fsspec s3fs (traceops's extra [s3])"), ("https://host/run", "aiohttp")]
)
def test_what_a_store_needs_is_a_command_that_can_be_pasted(monkeypatch, path, asks):
    """It was "pip install fsspec aiohttp, s3fs or gcsfs"."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError) as raised:
        filesystem(path)
    assert asks in str(raised.value)
