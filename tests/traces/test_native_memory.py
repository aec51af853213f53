"""The compiled scanner stays within its memory: under sanitizers, without memory, and however Python calls it."""

import array
import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest
from trace_text import event

from traceops.traces.event_columns import NARROW, WIDE, dtype_of, native_columns

ROOT = Path(__file__).resolve().parents[2]
CORPUS = sorted(path for path in (ROOT / "tests/data/fuzz").iterdir() if path.suffix != ".md")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# As other machines compile it: without vectors, and a byte at a time with no integers of 128 bits.
MACHINES = {"this": (), "words": ("-U__SSE2__",), "bytes": ("-U__SSE2__", "-U__BYTE_ORDER__", "-U__SIZEOF_INT128__")}

compiled = pytest.mark.skipif(native_columns(False) is None, reason="the compiled scanner was not built")


def compile_c(output, *arguments):
    """Whether the C compiler made it, and what it said."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    if shutil.which(compiler[0]) is None:
        pytest.skip("there is no C compiler")
    done = subprocess.run([*compiler, "-std=c11", *arguments, "-o", output, "-lm"], capture_output=True, text=True)
    return done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory):
    """The compiler's flags for address and undefined behaviour, if programs made with them run."""
    folder = tmp_path_factory.mktemp("trial")
    (folder / "trial.c").write_text("int main(void) { return 0; }\n")
    made, _ = compile_c(folder / "trial", *SANITIZERS, folder / "trial.c")
    if not made or subprocess.run([folder / "trial"], capture_output=True).returncode:
        pytest.skip("this compiler has no sanitizers that work here")
    return SANITIZERS


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_corpus_failing_allocations_and_mutations_under_sanitizers(sanitizers, tmp_path, machine):
    sources = (ROOT / "fuzz/scan_events.c", ROOT / "fuzz/replay.c")
    made, said = compile_c(tmp_path / "replay", *sanitizers, *MACHINES[machine], *sources)
    assert made, said
    command = [tmp_path / "replay", "-n", "60000", "-d", ROOT / "fuzz/json.dict", *CORPUS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    crash = tmp_path / "crash-input"
    assert done.returncode == 0, (crash.read_bytes() if crash.exists() else b"", done.stderr[-8000:])
    assert f"{len(CORPUS)} files" in done.stdout


TEXT = ", ".join(
    event(name=f"n{i}", args=f'{{"Collective name": "c", "Input Dims": [[{i}]]}}') for i in range(300)
).encode()
ODD_TEXT = TEXT + b', {"ph": "X", "name": 5}'


def a_row(**changed):
    return {name: np.zeros(3, dtype_of(name)) for name in (*WIDE, *NARROW)} | changed


def finished(columns):
    return {name: np.frombuffer(buffer, dtype_of(name)) for name, buffer in columns.finish().items()}


WRONG = {
    "take(text)": (TypeError, lambda c: c.take(TEXT.decode())),
    "take(bytearray)": (TypeError, lambda c: c.take(bytearray(TEXT))),  # another thread could resize it
    "take(memoryview)": (TypeError, lambda c: c.take(memoryview(TEXT))),  # no zero behind it
    "take()": (TypeError, lambda c: c.take()),
    "number of no column": (ValueError, lambda c: c.number("dur", "x")),
    "number of no text": (TypeError, lambda c: c.number("name", 5)),
    "number of half a character": (UnicodeEncodeError, lambda c: c.number("name", "\ud800")),
    "strings of no column": (ValueError, lambda c: c.strings("ts")),
    "strings of a zero": (ValueError, lambda c: c.strings("name\0")),
    "extend(list)": (TypeError, lambda c: c.extend([a_row()])),
    "extend without a column": (KeyError, lambda c: c.extend({"index": np.zeros(3, np.int64)})),
    "extend with a list": (TypeError, lambda c: c.extend(a_row(ts=[1, 2, 3]))),
    "extend with floats": (ValueError, lambda c: c.extend(a_row(ts=np.zeros(3)))),
    "extend with narrow numbers": (ValueError, lambda c: c.extend(a_row(dur=np.zeros(6, np.int32)))),
    "extend with wide numbers": (ValueError, lambda c: c.extend(a_row(shape=np.zeros(3, np.int64)))),
    "extend with bytes": (ValueError, lambda c: c.extend(a_row(ts=b"0" * 24))),
    "extend in another order of bytes": (ValueError, lambda c: c.extend(a_row(ts=np.zeros(3, ">i8")))),
    "extend with gaps": (ValueError, lambda c: c.extend(a_row(ts=np.zeros(6, np.int64)[::2]))),
    "extend with another length": (ValueError, lambda c: c.extend(a_row(shape=np.zeros(4, np.int32)))),
    "a block from nothing": (TypeError, lambda c: type(next(iter(native_columns(False).finish().values())))()),
    "rows set": (AttributeError, lambda c: setattr(c, "rows", 10**9)),
}


@compiled
@pytest.mark.parametrize("kind, call", WRONG.values(), ids=WRONG)
def test_wrong_calls_are_refused_and_change_nothing(kind, call):
    columns = native_columns(False)
    columns.take(TEXT)
    with pytest.raises(kind):
        call(columns)
    assert columns.rows == 300
    assert finished(columns)["ts"].tolist() == [1500] * 300


@compiled
def test_refused_columns_are_let_go():
    held = array.array("q", [1, 2, 3])
    columns = native_columns(False)
    for wrong in (a_row(index=held, shape=np.zeros(4, np.int32)), a_row(index=held, cat=None)):
        with pytest.raises((TypeError, ValueError)):
            columns.extend(wrong)
        held.append(4)  # a BufferError if a view of it is left
        held.pop()
    columns.extend(a_row(index=held))
    held.append(4)
    assert finished(columns)["index"].tolist() == [1, 2, 3]


@compiled
def test_columns_can_be_finished_empty_twice_and_used_again():
    columns = native_columns(False)
    for _ in range(2):
        assert {len(buffer) for buffer in finished(columns).values()} == {0}
    columns.extend({name: values[:0] for name, values in a_row().items()})
    columns.take(TEXT)
    first = finished(columns)
    assert {len(buffer) for buffer in finished(columns).values()} == {0}
    assert columns.take(TEXT) == (len(TEXT), 0)
    columns.extend(a_row())
    second = finished(columns)
    assert (len(first["ts"]), len(second["ts"])) == (300, 303)
    assert columns.strings("name") == tuple(f"n{i}" for i in range(300))  # they keep their numbers
    assert second["name"].tolist() == [*range(300), 0, 0, 0]


@compiled
def test_columns_outlive_what_made_them():
    columns = native_columns(False)
    columns.take(TEXT)
    buffers = columns.finish()
    ts, view = np.frombuffer(buffers["ts"], np.int64), memoryview(buffers["dur"])
    del columns, buffers
    gc.collect()
    native_columns(False).take(TEXT)  # would take the memory, were it free
    ts += 1
    assert ts.tolist() == [1501] * 300
    assert view.cast("q").tolist() == [2250] * 300


class Reentrant(dict):
    """Columns that use their reader while they are read."""

    def __getitem__(self, name):
        for method, *arguments in (("take", TEXT), ("extend", a_row()), ("number", "name", "x"), ("strings", "name"),
                                   ("collectives",), ("finish",)):  # fmt: skip
            with pytest.raises(RuntimeError):
                getattr(READER, method)(*arguments)
        return super().__getitem__(name)


READER = native_columns(False)


@compiled
def test_no_method_runs_inside_another():
    READER.take(TEXT)
    READER.extend(Reentrant(a_row()))
    assert len(finished(READER)["ts"]) == 303


@compiled
def test_two_threads_at_once_are_refused_not_mixed():
    text, refused = b",".join([TEXT] * 100), 0
    for _ in range(100):
        columns = native_columns(False)
        reader = threading.Thread(target=columns.take, args=(text,))
        reader.start()
        while reader.is_alive():
            try:
                columns.number("cat", "another")
                columns.strings("shape")
            except RuntimeError:
                refused += 1
        reader.join()
        assert len(finished(columns)["ts"]) == 30_000
        if refused:
            break
    assert refused, "reading held the interpreter's lock"


def use(columns):
    columns.take(ODD_TEXT)
    columns.collectives()
    columns.number("name", "another")
    columns.extend(a_row())
    for _, call in WRONG.values():
        try:
            call(columns)
        except (TypeError, ValueError, KeyError, AttributeError):
            pass
        else:
            raise AssertionError("a wrong call was not refused")
    columns.strings("name"), columns.strings("shape")
    finished(columns)
    columns.take(ODD_TEXT)  # and left unfinished


@compiled
def test_calls_leave_no_objects_behind():
    for _ in range(5):  # until caches are full
        use(native_columns(False))
    references, blocks = sys.getrefcount(ODD_TEXT), sys.getallocatedblocks()
    for _ in range(200):
        use(native_columns(False))
    gc.collect()
    assert sys.getrefcount(ODD_TEXT) == references
    assert sys.getallocatedblocks() - blocks < 100  # one left behind a round would be 200


def in_new_process(program):
    """What it prints, with the C library's usual memory: conftest.py has it keep what is freed, and none would lack."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent, env=kept | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
def test_memory_is_given_back():
    """What malloc gave is not among Python's objects; this counts what the process holds."""
    grown = in_new_process(
        "import psutil, test_native_memory as t\n"
        "def held(times):\n"
        "    for _ in range(times): t.use(t.native_columns(False))\n"
        "    return psutil.Process().memory_info().rss\n"
        "before = held(100)\n"
        "print(held(1000) - before)"
    )
    assert int(grown) < 700_000  # a narrow column, the smallest thing, left behind each time would be 1.2 MB


@compiled
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_without_memory_there_is_a_memory_error_and_the_rows_before_it():
    read = in_new_process(
        "import resource, test_native_memory as t\n"
        'text = b\',\'.join([b\'{"ph":"X","cat":"","ts":1,"dur":1}\'] * 500_000)\n'
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "columns = t.native_columns(False)\n"
        "columns.take(t.TEXT)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), -1))\n"
        "try: columns.take(text)\n"
        "except MemoryError: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "rows, found = columns.rows, t.finished(columns)\n"
        "print(300 < rows < 500_300, {len(c) for c in found.values()} == {rows}, set(found['ts'][300:].tolist()))"
    )
    assert read == "True True {1000}"
