"""A hostile variant of a real file for each of our readers, and the command that reads it.

`python tests/hostile_variants.py 10000` tries so many by hand and prints what came of them; arguments behind it are
the first seed and the readers to try. test_hostile_input.py tries a few.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from mutation import mutated_json, mutated_text, written

from traceops.answers.asked import QUESTIONS
from traceops.cli import main

DATA = Path(__file__).parent / "data"
PAGE = 4 << 20  # bytes that the output may have besides: a page's styles, scripts and charts
TIMES_INPUT = 50
LONGEST_S = 60  # of CPU time

Reader = Callable[[Path, random.Random], list[str]]  # writes a variant into a folder, returns the command to read it


def attempt(name: str, seed: int, folder: Path) -> str:
    """What is wrong with how the reader took this variant; empty where nothing is. `folder` is empty."""
    given, out = folder / "given", folder / "out"
    given.mkdir()
    command = READERS[name](given, random.Random(f"{name} {seed}"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), _inside(folder):
        code = main([*command, *(() if command[0] == "show" else ("-o", str(out)))])
    text = said.getvalue()
    if code not in (0, 1, 2, 3, 4):
        return f"exit code {code}: {text[-3000:]}"
    size = _size(given)
    result = (_size(out) if out.exists() else 0) + len(text)
    if result > TIMES_INPUT * size + PAGE:
        return f"{result} bytes of output for {size} of input"
    if "please report this" in text:
        return text[-3000:]
    if "\x1b" in text:
        return "an escape reached the terminal"
    return ""


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """contextlib.chdir of Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _of(patterns: tuple[str, ...], most: int = 60_000) -> Callable[[], list[Path]]:
    @functools.cache
    def files() -> list[Path]:
        found = [path for pattern in patterns for path in sorted(DATA.glob(pattern))]
        return [path for path in found if path.stat().st_size <= most and path.name != "README.md"]

    return files


@functools.cache
def _json(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def _variant_of_text(file: Path, rng: random.Random) -> bytes:
    return mutated_text(file.read_text(errors="replace"), rng).encode(errors="surrogatepass")


_REPORTS = _of(("reports/*.report.gz",))
_LOGS = _of(("hang_logs/*.txt",))
_STACKS = _of(("hang_logs/stacks/*",))
_FABRIC = _of(("nccl_logs/*.txt", "topology/*.txt", "topology/*.xml", "doctor/*.xml"), 200_000)


def _report(given: Path, rng: random.Random) -> list[str]:
    base, head = rng.sample(_REPORTS(), 2)
    (given / "base").mkdir()
    (given / "base" / "report.json").write_bytes(gzip.decompress(base.read_bytes()))
    (given / "head.report.json").write_bytes(written(mutated_json(_json(head), rng)))
    sides = [str(given / "base"), str(given / "head.report.json")]
    return ["compare", *(sides if rng.random() < 0.5 else sides[::-1]), "--force", "--plotlyjs", "cdn"]


def _show(given: Path, rng: random.Random) -> list[str]:
    """A report folder whose report.json or one of whose tables is hostile, and a question to it."""
    example = DATA.parents[1] / "reports" / "example"
    files = ["report.json", *(f"{name}.csv" for name in ("kernels", "arrivals", "lateness", "critical_path"))]
    hostile = rng.choice([files[0], rng.choice(files[1:])])
    for name in files:
        (given / name).write_bytes((example / name).read_bytes())
    if hostile == "report.json":
        (given / hostile).write_bytes(written(mutated_json(_json(example / hostile), rng)))
    else:
        (given / hostile).write_bytes(_variant_of_text(example / hostile, rng))
    name = rng.choice(QUESTIONS).name
    question = [name, "TO-S001"] if name == "finding" else [name]
    return ["show", str(given), *question, *(("--json",) if rng.random() < 0.3 else ())]


def _settings(given: Path, rng: random.Random) -> list[str]:
    whole = (
        "[compare]\nconfidence = 0.95\npower = 0.8\nlaunch_noise_pct = 3\n[compare.thresholds]\nstep_time = 5\n"
        'kernels = false\n[[compare.waivers]]\nmetric = "step_time"\nreason = "new loss"\nuntil = 2030-01-01\n'
        "limit_pct = 9.5\n"
    )
    (given / "traceops.toml").write_bytes(mutated_text(whole, rng).encode(errors="surrogatepass"))
    for name, report in zip(("base", "head"), _REPORTS()[:2], strict=True):
        (given / name).mkdir()
        (given / name / "report.json").write_bytes(gzip.decompress(report.read_bytes()))
    sides = [str(given / "base"), str(given / "head")]
    return ["compare", *sides, "--config", str(given / "traceops.toml"), "--force", "--format", "json"]


def _small_trace(rank: int) -> dict[str, Any]:
    events = []
    for step in (1, 2, 3):
        at = 1_000_000 + 1000 * step
        comm = {"stream": 7, "correlation": 50 + step, "Collective name": "allreduce", "In msg nelems": 8,
                "dtype": "Float", "Process Group Ranks": "[0, 1]", "Seq": step}  # fmt: skip
        x = {"ph": "X", "pid": 1, "tid": 1, "dur": 2}
        events += [
            {**x, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 999},
            {**x, "cat": "cpu_op", "name": "aten::mm", "ts": at + 3, "dur": 9, "args": {"Input Dims": [[2], [3]]}},
            {**x, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "args": {"correlation": step}},
            {**x, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 9, "args": {"correlation": 50 + step}},
            {**x, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 20, "dur": 400 + rank,
             "args": {"stream": 7, "correlation": step}},
            {**x, "cat": "kernel", "name": "ncclKernel", "pid": 0, "tid": 7, "ts": at + 600, "dur": 300, "args": comm},
        ]  # fmt: skip
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    info = {"rank": rank, "world_size": 2, "backend": "nccl", "pg_config": groups, "nccl_version": "2.27.3"}
    return {"distributedInfo": info, "deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": events}


def _trace(given: Path, rng: random.Random) -> list[str]:
    for rank in (0, 1):
        trace = _small_trace(rank)
        (given / f"rank_{rank}.json").write_bytes(written(mutated_json(trace, rng) if rank else trace))
    if rng.random() < 0.3:  # numbers that no JSON is written with
        text = written(_small_trace(1)).decode()
        numbers = list(re.finditer(r"(?<=[: ])\d+", text))
        for number in sorted(rng.sample(numbers, rng.choice((1, 1, 5, 40))), key=lambda one: -one.start()):
            odd = rng.choice(
                ("1e999", "-1e999", "1e-999", "0", "-0.0", "9e18", "1e19", "0.1e1", "1E2", "00", "+1", "1.")
            )
            text = text[: number.start()] + odd + text[number.end() :]
        (given / "rank_1.json").write_text(text)
    return ["analyze", str(given), "--plotlyjs", "cdn", "--jobs", "1", "--no-cache"]


def _manifest(given: Path, rng: random.Random) -> list[str]:
    for rank in (0, 1):
        (given / f"rank_{rank}.json").write_bytes(written(_small_trace(rank)))
    whole = _json(DATA / "runs" / "zero3" / "run.json")
    (given / "run.json").write_bytes(written(mutated_json(whole, rng)))
    if rng.random() < 0.3:
        (given / "logs").mkdir()
        shutil.copy(rng.choice(_LOGS()), given / "logs" / "rank_0.stderr.log")
        return ["diagnose", str(given)]
    return ["analyze", str(given), "--plotlyjs", "cdn", "--jobs", "1", "--no-cache"]


@functools.cache
def _packed_summary() -> tuple[Any, Any]:
    """Header and body of a summary, as msgpack has them."""
    from traceops.measure.summary import summarize
    from traceops.pipeline.mapping.summary_file import pack
    from traceops.traces.discover import discover
    from traceops.traces.windows import MAGIC, SummaryHeader

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rank_0.json").write_bytes(written(_small_trace(0)))
        (file,) = discover(folder).windows[0].files
        header = SummaryHeader("0", "c", file.path, "d", 0, "metadata", 0, 2, 1, None)
        data = pack(header, summarize(file))
    start = len(MAGIC) + 4
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    return msgspec.msgpack.decode(data[start:end]), data[end:]


def _summary(given: Path, rng: random.Random) -> list[str]:
    from traceops.traces.windows import MAGIC

    header, body = _packed_summary()
    if rng.random() < 0.3:
        header = mutated_json(header, rng)
    else:
        body = _mutated_body(body, rng)
    try:
        packed = msgspec.msgpack.encode(header)
    except (ValueError, OverflowError, TypeError):
        packed = b"\xc1"
    data = MAGIC + len(packed).to_bytes(4, "little") + packed + body
    (given / "rank_0.summary.msgpack.gz").write_bytes(gzip.compress(data, 1, mtime=0))
    (given / "rank_1.json").write_bytes(written(_small_trace(1)))
    return ["analyze", str(given), "--format", "json,html", "--plotlyjs", "cdn", "--jobs", "1", "--no-cache"]


def _mutated_body(body: bytes, rng: random.Random) -> bytes:
    try:
        return msgspec.msgpack.encode(mutated_json(msgspec.msgpack.decode(body), rng))
    except (ValueError, OverflowError, TypeError, RecursionError):
        changed = bytearray(body)
        for _ in range(rng.choice((1, 3, 9))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)


def _log(given: Path, rng: random.Random) -> list[str]:
    for number in range(rng.choice((1, 1, 2))):
        (given / rng.choice((f"log{number}.txt", f"rank_{number}.log"))).write_bytes(
            _variant_of_text(rng.choice(_LOGS()), rng)
        )
    return ["diagnose", str(given)]


def _stack(given: Path, rng: random.Random) -> list[str]:
    for rank in range(2):
        file = rng.choice(_STACKS())
        (given / f"stacks_rank_{rank}.txt").write_bytes(_variant_of_text(file, rng))
    return ["diagnose", str(given)]


@functools.cache
def _dumps() -> list[list[Any]]:
    """Real flight-recorder dumps, by job."""
    jobs: dict[str, list[Any]] = collections.defaultdict(list)
    for name in ("hang_skip", "hang_mismatch"):
        with tarfile.open(DATA / "hangs" / f"{name}.tar.gz") as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member) if "fr_" in member.name else None
                if file is not None:
                    dump = pickle.loads(file.read())
                    dump["entries"] = dump["entries"][-12:]
                    jobs[name].append(dump)
    return list(jobs.values())


def _dump(given: Path, rng: random.Random) -> list[str]:
    dumps, as_json = rng.choice(_dumps()), rng.random() < 0.3
    which = rng.randrange(len(dumps))
    for rank, dump in enumerate(dumps):
        changed = mutated_json(dump, rng) if rank == which else dump
        if as_json:
            (given / f"fr_{rank}.json").write_bytes(written(changed))
        else:
            data = pickle.dumps(changed, protocol=2)
            cut = rng.randrange(len(data)) if rank == which and rng.random() < 0.1 else len(data)
            (given / f"fr_{rank}").write_bytes(data[:cut])
    if rng.random() < 0.3:
        row = {"rank": 0, "pid": 1, "state": "S", "step": 3, "phase": "step", "heartbeat_age_s": 3.5}
        stall = {"kind": "step", "stalled_s": 60, "limit_s": 30, "noticed_ns": 1, "host": "a", "ranks": [row]}
        (given / "hang.0.json").write_bytes(written(mutated_json(stall, rng)))
        group = {"rank": 0, "world_size": 4, "groups": {"0": {"description": "default_pg", "ranks": [0, 1, 2, 3]}}}
        (given / "groups_0.json").write_bytes(written(mutated_json(group, rng)))
    return ["diagnose", str(given)]


def _fabric(given: Path, rng: random.Random) -> list[str]:
    file = rng.choice(_FABRIC())
    (given / file.name).write_bytes(_variant_of_text(file, rng))
    return ["doctor", "--from", str(given / file.name)]


@functools.cache
def _checkup() -> Any:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        matrix, log = DATA / "topology" / "h200x4.txt", DATA / "nccl_logs" / "p2p.txt"
        main(["doctor", "--no-tests", "--format", "json", "-q", "-o", folder])
        checkup = json.loads(Path(folder, "doctor.json").read_text())
        main(["doctor", "--from", str(matrix), str(log), "--format", "json", "-q", "-o", folder])
        other = Path(folder, "doctor.json")
        if other.is_file():
            checkup = {
                **checkup,
                **{k: v for k, v in json.loads(other.read_text()).items() if v and not checkup.get(k)},
            }
    row = {
        "backend": "nccl",
        "op": "all_reduce",
        "gpus": [0, 1, 2, 3],
        "bytes": 1_000_003,
        "time_us": 50.0,
        "busbw_gbs": 30.0,
    }
    if not checkup.get("measured"):
        checkup["measured"] = [
            row,
            {**row, "bytes": 2**28, "busbw_gbs": 300.0},
            {**row, "op": "send_recv", "gpus": [0, 1]},
        ]
    return checkup


def _doctor(given: Path, rng: random.Random) -> list[str]:
    (given / "doctor.json").write_bytes(written(mutated_json(_checkup(), rng)))
    return ["doctor", "--from", str(given / "doctor.json")]


def _view(given: Path, rng: random.Random) -> list[str]:
    _trace(given, rng)
    return ["view", str(given), *(("--around", "TO-S001") if rng.random() < 0.3 else ())]


def _run(given: Path, rng: random.Random) -> list[str]:
    """A whole run folder with traces, one of whose files is hostile, beside another run or alone."""
    source = rng.choice(sorted((DATA / "memory" / "runs").iterdir()))
    places = [given / "one", given / "two"] if rng.random() < 0.5 else [given]
    for place in places:
        shutil.copytree(source, place, dirs_exist_ok=True)
        for rank in (0, 1):
            (place / f"rank_{rank}.json").write_bytes(written(_small_trace(rank)))
    files = [path for path in sorted(places[0].rglob("*.json*")) if not path.name.startswith("rank_")]
    hostile = rng.choice([places[0] / "run.json", rng.choice(files)])
    if hostile.name == "run.json":
        hostile.write_bytes(written(mutated_json(_json(hostile), rng)))
    else:
        hostile.write_bytes(_variant_of_text(hostile, rng))
    return ["analyze", str(given), "--format", "json,html", "--plotlyjs", "cdn", "--jobs", "1", "--no-cache"]


def _nccl_tests(given: Path, rng: random.Random) -> list[str]:
    file = rng.choice(_of(("nccl_tests/*.txt",))())
    text = file.read_text()
    if rng.random() < 0.5:
        numbers = list(re.finditer(r"\b\d+\.\d+\b", text))
        for number in sorted(rng.sample(numbers, 3), key=lambda one: -one.start()):
            text = text[: number.start()] + rng.choice(("inf", "-inf", "nan", "0.00", "1e999")) + text[number.end() :]
    else:
        text = mutated_text(text, rng)
    (given / "all_reduce.txt").write_bytes(text.encode(errors="surrogatepass"))
    for rank in (0, 1):
        (given / f"rank_{rank}.json").write_bytes(written(_small_trace(rank)))
    if rng.random() < 0.5:
        return ["doctor", "--from", str(given / "all_reduce.txt")]
    return ["analyze", str(given), "--plotlyjs", "cdn", "--jobs", "1", "--no-cache"]


READERS: dict[str, Reader] = {
    "report": _report, "settings": _settings, "trace": _trace, "manifest": _manifest, "summary": _summary, "log": _log,
    "stack": _stack, "dump": _dump, "fabric": _fabric, "doctor": _doctor,
    "show": _show, "view": _view, "run": _run, "nccl_tests": _nccl_tests,
}  # fmt: skip


def _by_hand(count: int, first: int, only: list[str]) -> None:
    """Try `count` variants over all readers, each with a bound, and print what is wrong and the figures."""
    names = only or list(READERS)
    took: dict[str, list[float]] = collections.defaultdict(list)
    wrong = 0

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {LONGEST_S} s of CPU time")

    signal.signal(signal.SIGPROF, give_up)
    os.environ["TRACEOPS_CACHE"] = "off"
    for number in range(count):
        name, seed = names[number % len(names)], first + number // len(names)
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
            problem = attempt(name, seed, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0)
            took[name].append(time.process_time() - began)
        if problem:
            wrong += 1
            print(f"--- {name} {seed}: {problem}", flush=True)
    print(f"{count} variants, {wrong} wrong")
    for name, seconds in took.items():
        seconds.sort()
        print(
            f"{name:10} {len(seconds):6} cases  median {seconds[len(seconds) // 2]:.3f} s  longest {seconds[-1]:.2f} s"
        )


if __name__ == "__main__":
    _by_hand(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, sys.argv[3:])
