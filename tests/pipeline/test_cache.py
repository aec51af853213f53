"""An unchanged trace is parsed once; what is kept of it reads back exactly, or is refused."""

import gzip
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from changed import replace
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import Struct, field
from numpy.typing import NDArray
from summary_folders import DATA, copied, report_text

import traceops
from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks, summary_file
from traceops.pipeline.mapping import summary_file as cache
from traceops.pipeline.mapping import summary_file as kept
from traceops.pipeline.mapping.ranks import MapOptions, summarize_all
from traceops.pipeline.mapping.summary_file import MAP_CODE, decode, encode
from traceops.traces.discover import discover


@pytest.fixture
def parsed(monkeypatch):
    """The ranks that were parsed, in order, in this process."""
    monkeypatch.setattr(ranks, "_POOL_WORTH_BYTES", 1 << 40)
    seen = []
    summarize = ranks.summarize
    monkeypatch.setattr(ranks, "summarize", lambda file, *options: seen.append(file.rank) or summarize(file, *options))
    return seen


def entries(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file())


def trace(folder, rank):
    return folder / f"rank_{rank}.pt.trace.json.gz"


def test_the_second_time_nothing_is_parsed_and_the_report_is_the_same(ddp, cache, parsed):
    fresh = report_text(ddp)
    parsed.clear()
    assert report_text(ddp, cache=True) == fresh
    assert parsed == [0, 1, 2, 3]
    assert report_text(ddp, cache=True) == fresh
    assert parsed == [0, 1, 2, 3]
    assert len(entries(cache)) == 4


def test_without_the_cache_it_is_neither_read_nor_written(ddp, cache, parsed):
    report_text(ddp, cache=False)
    assert not cache.exists()
    report_text(ddp, cache=True)
    parsed.clear()
    report_text(ddp, cache=False)
    assert parsed == [0, 1, 2, 3]
    assert main(["analyze", str(ddp), "-o", str(ddp / "out"), "--format", "json", "-q", "--no-cache"]) == 0
    assert parsed == [0, 1, 2, 3] * 2


def test_a_moved_folder_is_known_and_named_as_it_is_now(ddp, cache, parsed, tmp_path):
    analyze(ddp)
    moved = tmp_path / "moved"
    ddp.rename(moved)
    parsed.clear()
    assert report_text(moved, cache=True) == report_text(moved)
    assert parsed == [0, 1, 2, 3]  # without the cache only
    assert str(trace(moved, 2)) in report_text(moved, cache=True)


def test_equal_bytes_of_two_ranks_are_two_ranks(tmp_path, cache, parsed):
    source = copied("hta/ns", tmp_path)
    [path] = source.glob("*.json.gz")
    raw = json.loads(gzip.decompress(path.read_bytes()))
    raw.pop("distributedInfo", None)
    folder = tmp_path / "same"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank_{rank}.json").write_text(json.dumps(raw))
    for _ in range(2):
        summaries, _ = summarize_all(discover(str(folder)).windows[0].files, MapOptions(1))
        assert [(s.rank, Path(s.path).name) for s in summaries] == [(0, "rank_0.json"), (1, "rank_1.json")]
    assert parsed == [0, 1]


def test_a_changed_byte_is_another_trace_even_if_size_and_time_are_not(ddp, cache, parsed):
    path = trace(ddp, 1)
    plain = ddp / "rank_1.pt.trace.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    analyze(ddp)
    before = plain.stat()
    text = plain.read_bytes()
    plain.write_bytes(text.replace(b"ProfilerStep#5", b"ProfilerStep#9"))
    os.utime(plain, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert plain.stat().st_size == before.st_size
    parsed.clear()
    assert 9 in analyze(ddp).run.steps
    assert parsed == [1]


def test_other_code_another_version_and_other_steps_are_other_summaries(ddp, cache, parsed, monkeypatch):
    analyze(ddp)
    others = (summary_file, "code_fingerprint", lambda with_hta: "other"), (ranks, "__version__", "0.0.0")
    for module, name, value in others:
        parsed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            analyze(ddp)
        assert parsed == [0, 1, 2, 3]
    windows = [{"trace": trace(ddp, 0).name, "complete": False, "steps": [3]}]
    (ddp / "run.json").write_text(json.dumps({"ranks": [{"rank": 0, "windows": windows}]}))
    parsed.clear()
    assert analyze(ddp).ranks[0].steps == 1
    assert parsed == [0]


def test_where_the_code_cannot_be_read_nothing_is_taken_from_the_cache(ddp, cache, parsed, monkeypatch):
    monkeypatch.setattr(summary_file, "code_fingerprint", lambda with_hta: "")
    analyze(ddp)
    analyze(ddp)
    assert parsed == [0, 1, 2, 3] * 2


def test_the_fingerprint_covers_all_code_that_the_map_runs():
    code = (
        "import sys; from traceops.traces.discover import discover; from traceops.measure.summary import summarize; "
        "summarize(discover(sys.argv[1]).windows[0].files[0]); import traceops.pipeline.mapping.summary_file; "
        "print('\\n'.join(m.__file__ for n, m in sys.modules.items() if n.startswith('traceops.')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(DATA / "ddp4")], capture_output=True, text=True, check=True)
    package = Path(traceops.__file__).parent
    used = {Path(line).relative_to(package) for line in done.stdout.split()}
    covered = {Path(part) for part in MAP_CODE}
    beyond = {path for path in used if path not in covered and path.parents[0] not in covered}
    # The version is in the key by itself, and the packages' own files import nothing.
    assert {str(path) for path in beyond} <= {"version.py", "pipeline/__init__.py", "pipeline/mapping/__init__.py"}


def test_the_fingerprint_changes_with_the_code(tmp_path, monkeypatch):
    package = Path(shutil.copytree(Path(traceops.__file__).parent, tmp_path / "traceops"))
    monkeypatch.setattr(cache, "PACKAGE", package)
    before = cache.code_fingerprint.__wrapped__()
    with (package / "measure" / "ledger.py").open("a") as file:
        file.write("# changed\n")
    assert cache.code_fingerprint.__wrapped__() != before


def test_a_trace_that_was_another_while_it_was_read_is_not_kept(ddp, cache, monkeypatch):
    summarize = ranks.summarize

    def replaced(file, *options):
        path = Path(file.path)
        status, whole = path.stat(), path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
        summary = summarize(file, *options)
        path.write_bytes(whole)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return summary

    monkeypatch.setattr(ranks, "summarize", replaced)
    analyze(ddp)
    assert entries(cache) == []


def test_a_trace_that_grows_while_it_is_read_is_not_kept(ddp, cache, monkeypatch):
    summarize = ranks.summarize

    def grow(file, *options):
        if file.rank == 2:
            with Path(file.path).open("ab") as growing:
                growing.write(b"\0")
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "summarize", grow)
    analyze(ddp)
    assert len(entries(cache)) == 3


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "other entry"])
def test_a_damaged_entry_is_replaced(ddp, cache, parsed, damage):
    fresh = report_text(ddp)
    report_text(ddp, cache=True)
    first, second = entries(cache)[:2]
    whole = first.read_bytes()
    first.write_bytes({"empty": b"", "cut": whole[:-9], "text": b"text", "other entry": second.read_bytes()}[damage])
    parsed.clear()
    assert report_text(ddp, cache=True) == fresh
    assert len(parsed) == 1
    assert first.read_bytes() == whole
    assert report_text(ddp, cache=True) == fresh
    assert len(parsed) == 1


def test_a_folder_that_cannot_be_written_to_means_no_cache(ddp, tmp_path, monkeypatch, parsed):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "file" / "below"))
    fresh = report_text(ddp)
    assert report_text(ddp, cache=True) == fresh
    assert report_text(ddp, cache=True) == fresh
    assert parsed == [0, 1, 2, 3] * 3


def test_damage_that_names_the_file_is_not_kept(ddp, cache, monkeypatch):
    summarize = ranks.summarize

    def damaged(file, *options):
        summary = summarize(file, *options)
        return replace(summary, damage=(f"{file.path} is odd",)) if file.rank == 1 else summary

    monkeypatch.setattr(ranks, "summarize", damaged)
    analyze(ddp)
    assert len(entries(cache)) == 3


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path))
    assert kept.cache_folder() == tmp_path / "summaries"
    monkeypatch.delenv("TRACEOPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kept.cache_folder() == tmp_path / "xdg" / "traceops" / "summaries"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kept.cache_folder() == tmp_path / "home" / ".cache" / "traceops" / "summaries"
    monkeypatch.setenv("TRACEOPS_CACHE", "off")
    assert kept.cache_folder() is None


@pytest.mark.parametrize(("text", "bytes_"), [("500", 500), ("2k", 2048), ("3MB", 3 << 20), ("1G", 1 << 30)])
def test_sizes(monkeypatch, text, bytes_):
    monkeypatch.setenv("TRACEOPS_CACHE_SIZE", text)
    assert kept.most_bytes() == bytes_


def test_a_size_that_is_none_is_said_before_anything_is_read(monkeypatch, ddp, cache):
    monkeypatch.setenv("TRACEOPS_CACHE_SIZE", "large")
    with pytest.raises(UsageError, match="such as 500M"):
        analyze(ddp)


def test_the_least_recently_used_go_first_and_what_a_killed_process_left(tmp_path):
    for age in range(5):
        path = tmp_path / f"{age}.summary.msgpack.gz"
        path.write_bytes(bytes(100))
        os.utime(path, (time.time() - age, time.time() - age))
    for name, age in ((".new.part", 10), (".old.part", 10_000)):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    kept.trim(tmp_path, 300)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".new.part",
        *(f"{age}.summary.msgpack.gz" for age in range(3)),
    }


def test_an_entry_that_is_used_is_recent(ddp, cache):
    analyze(ddp)
    for path in entries(cache):
        os.utime(path, (1, 1))
    analyze(ddp)
    assert all(path.stat().st_mtime > 1 for path in entries(cache))


def test_many_stores_stay_within_the_size(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE_SIZE", "64K")
    header = ranks._header(discover(str(DATA / "ddp4")).windows[0].files[0], None, MapOptions())
    for number in range(3000):
        kept.store(tmp_path, replace(header, digest=str(number)), os.urandom(100))
    left = sum(path.stat().st_size for path in entries(tmp_path))
    assert 32 << 10 < left < 160 << 10


def test_processes_that_share_a_cache_agree(ddp, cache):
    """Readers, writers and one that damages entries at the same time: every report is the same."""
    fresh = report_text(ddp)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_analyze_often, args=(ddp, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(60):
        for path in entries(cache)[:2]:
            if not path.name.endswith(".part"):
                path.write_bytes(b"damaged")
        time.sleep(0.01)
    texts = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert texts == [{fresh}] * 3


def _analyze_often(folder, results):
    results.put({report_text(folder, cache=True) for _ in range(4)})


def test_an_entry_that_others_could_have_written_is_not_used_but_replaced(ddp, cache, parsed):
    fresh = report_text(ddp)
    report_text(ddp, cache=True)
    assert {path.stat().st_mode & 0o777 for path in entries(cache)} == {0o600}
    folders = {path for path in (cache / "summaries").rglob("*") if path.is_dir()} | {cache / "summaries"}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    first = entries(cache)[0]
    first.chmod(0o666)
    parsed.clear()
    assert report_text(ddp, cache=True) == fresh
    assert len(parsed) == 1 and first.stat().st_mode & 0o777 == 0o600


def test_a_fifo_in_the_place_of_an_entry_is_not_waited_for(ddp, cache, parsed):
    fresh = report_text(ddp)
    report_text(ddp, cache=True)
    first = entries(cache)[0]
    first.unlink()
    os.mkfifo(first, 0o600)
    parsed.clear()
    assert report_text(ddp, cache=True) == fresh
    assert len(parsed) == 1 and first.is_file()


def test_nothing_of_the_cache_is_executed(ddp, cache, tmp_path, monkeypatch):
    """Marshalled code in every place where compiled templates were looked for, as whoever writes there could put it."""
    import hashlib
    import marshal
    from importlib.util import MAGIC_NUMBER

    from jinja2.bccache import bc_magic

    from traceops.render.writers import html as page

    mark = f"open({str(tmp_path / 'executed')!r}, 'w')"
    planted = f"def root(context, *rest):\n    {mark}\n    yield 'mine'\n"
    planted += "blocks, name, debug_info = {}, 'planted', ''\n"
    code = marshal.dumps(compile(planted, "planted", "exec"))
    (cache / "templates").mkdir(parents=True)
    environment = page.environment()
    settings = (environment.autoescape, environment.trim_blocks, environment.lstrip_blocks)
    for name in environment.list_templates(extensions=["j2"]):
        source, file, _ = environment.loader.get_source(environment, name)
        key = hashlib.sha1(name.encode("utf-8") + b"|" + file.encode("utf-8")).hexdigest()
        of = repr((hashlib.sha1(source.encode("utf-8")).hexdigest(), *settings)).encode()
        digest = hashlib.sha256(MAGIC_NUMBER + bc_magic + of + code).digest()
        (cache / "templates" / key).write_bytes(digest + code)
    monkeypatch.setattr(page, "environment", page.environment.__wrapped__)  # as in a new process
    assert main(["analyze", str(ddp), "-o", str(tmp_path / "out"), "-q"]) == 0
    assert not (tmp_path / "executed").exists()
    assert "step time" in (tmp_path / "out" / "summary.html").read_text().lower()


# What the codec writes it reads back, and whatever else it is given is a ValueError.


class Call(Struct, frozen=True):
    op: str
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None


class Everything(Struct, frozen=True):
    times: NDArray[np.int64]
    codes: NDArray[np.uint8]
    shares: NDArray[np.float64]
    calls: tuple[Call | None, ...] = ()
    names: tuple[tuple[str, float], ...] = ()
    kind: Literal["a", "b"] = "a"
    columns: dict[str, list[Any]] | None = None
    buckets: dict[str, NDArray[np.int64]] = field(default_factory=dict)


NONE = np.zeros(0, np.int64)
CALLS = (Call("all_reduce", (0, 1), 7), None, Call("broadcast"))


def everything(times=NONE, **fields):
    return Everything(times, np.arange(3, dtype=np.uint8), np.array([0.1, np.nan]), **fields)


@given(arrays.arrays(np.int64, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)))
def test_every_array_of_integers_comes_back(times):
    again = decode(encode(everything(times)), Everything, {}).times
    assert (again.dtype, again.shape) == (times.dtype, times.shape)
    assert (again == times).all()
    assert again.flags.writeable


@given(arrays.arrays(np.int64, arrays.array_shapes(max_dims=3, min_side=0)), st.integers(0, 63), st.booleans())
def test_the_compiled_passes_write_and_read_what_numpy_does(times, bits, growing):
    value = everything((times >> bits).cumsum(axis=0) if growing else times >> bits)
    compiled = encode(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary_file, "native", None)
        assert encode(value) == compiled
        plain = decode(compiled, Everything, {}).times
    assert (decode(compiled, Everything, {}).times == plain).all()
    assert (plain == value.times).all()


def test_growing_times_take_little_room():
    times = 1_790_000_000_000_000_000 + np.cumsum(np.arange(1000, dtype=np.int64) % 90)
    assert len(encode(everything(times))) < 1000 * 1.5


def test_all_kinds_of_values_come_back():
    value = everything(
        calls=CALLS,
        names=(("ä\n", 0.5), ("", -0.0)),
        kind="b",
        columns={"a": [1, 2.5, None, "x", True]},
        buckets={"comm": np.array([[1, 2], [3, 4]])},
    )
    again = decode(encode(value), Everything, {})
    for name in ("calls", "names", "kind", "columns"):
        assert repr(getattr(again, name)) == repr(getattr(value, name))
    assert (again.buckets["comm"] == value.buckets["comm"]).all()
    assert np.array_equal(again.shares, value.shares, equal_nan=True)


def test_equal_parts_are_one_object():
    data = encode(everything(calls=CALLS, names=(("some name", 1.0),)))
    seen = {}
    one, two = (decode(data, Everything, seen, frozenset({Call})) for _ in range(2))
    assert one.calls[0] is two.calls[0]
    assert one.names[0][0] is two.names[0][0]
    assert decode(data, Everything, {}).calls[0] is not one.calls[0]


def test_half_a_surrogate_pair_in_a_name_is_replaced():
    assert decode(encode(everything(names=(("rank_\udcff", 1.0),))), Everything, {}).names == (("rank_?", 1.0),)


def test_what_has_no_word_in_a_file_is_a_mistake_that_shows():
    with pytest.raises(TypeError, match="object"):
        encode(everything(columns={"a": [object()]}))


def packed(**changed):
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(encode(everything(calls=CALLS))), **changed})


@pytest.mark.parametrize(
    "times",
    [
        [[3], "<i8", None, b"\0" * 16],
        [[2], "<i8", None, b"\0" * 24],
        [[-1], "<i8", None, b""],
        [[1 << 60, 0], "<i8", [0], b""],
        [[(1 << 64) - 1, 0], "<i8", None, b""],
        [[1 << 40], "|i1", [0], b""],
        [[1, 1 << 40], "|i1", [0], b""],
        [[], "|i1", [0], b""],
        [[2], "<f8", None, b"\0" * 16],
        [[2], "|O", None, b"\0" * 16],
        [[2], "<i8", ["x"], b"\0" * 8],
        [[2], "<i8", [(1 << 64) - 1], b"\0" * 8],
        [[2], "<i8", None, "text"],
        "text",
        None,
        [],
    ],
)
def test_an_array_that_lies_of_itself_is_refused(times):
    with pytest.raises(ValueError):
        decode(packed(times=times), Everything, {})


@pytest.mark.parametrize(
    "changed",
    [
        {"calls": [{"op": 5}]},
        {"calls": [{"op": "x", "ranks": [True]}]},
        {"calls": [{}]},
        {"calls": 3},
        {"kind": "c"},
        {"names": [["x"]]},
        {"columns": [1]},
        {"buckets": {"a": [1]}},
        {"buckets": {5: None}},
    ],
)
def test_values_of_the_wrong_type_are_refused(changed):
    with pytest.raises(ValueError):
        decode(packed(**changed), Everything, {})


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data):
    with pytest.raises(ValueError):
        decode(data, Everything, {})
