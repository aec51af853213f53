"""CPU time and memory of files that are made to take long: ``python -m benchmarks.harm.sizes``.

Each case is one text, or one event of a trace, over and over until the file has so many MB (`--mb`); `traces of 3 kB`
is a folder of so many MB. It may take 10 s of CPU time for each 10 MB, after the 10 s that every command has, and
300 MB and ten times its size of memory. `{i}` in a text counts, `{r}` is a rank of eight, `{c}` is a letter. 1 where a
command takes more, or ends in a traceback. `--lanes N` measures N side by side, each pinned to a core of its own, and
`--budget S` begins none after so many seconds; `--jobs` is that of `analyze`.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks import ROOT
from benchmarks.harm.cases import read_toml

TABLE = Path(__file__).with_name("sizes.toml")
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data, ".gz": gzip.compress, ".xz": lambda data: lzma.compress(data, preset=1), ".bz2": bz2.compress
}  # fmt: skip
MANY = "traces of 3 kB"
_FIRST_S, _PER_10_MB_S = 10.0, 10.0
_FIRST_MB, _TIMES = 300, 10
_EXIT_CODES = (0, 1, 2, 3, 4)


def cases() -> Iterator[tuple[str, str, list[str], str]]:
    """Name, text, command and the file's name of each."""
    tables = read_toml(TABLE)
    for kind, command, file in (
        ("log", ["diagnose"], "train.log"),
        ("packed", ["diagnose"], "train.log"),
        ("stack", ["diagnose"], "pyspy_rank_0.txt"),
        ("fabric", ["doctor", "--from"], "nccl.log"),
        ("trace", ["analyze", "--jobs", "1"], "rank_0.pt.trace.json"),
    ):
        for name, text in tables.get(kind, {}).items():
            for end in PACKED if kind == "packed" else [""]:
                yield f"{kind} {name}{end}", text, command, file + end
    yield MANY, "", ["analyze", "--jobs", "1"], "rank_{rank}.pt.trace.json"


def filled(text: str, size: int) -> bytes:
    """The text so often that it has the size."""
    parts: list[str] = []
    made = 0
    for i in count():
        part = text.replace("{i}", str(i)).replace("{r}", str(i % 8)).replace("{c}", chr(97 + i % 26))
        parts.append(part)
        made += len(part)
        if made >= size:
            return "".join(parts).encode()
    raise AssertionError


def trace(text: str, size: int) -> bytes:
    """A trace of two steps around the events."""
    mark = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": 500_000}
    steps = [json.dumps({**mark, "name": f"ProfilerStep#{n}", "ts": 1_000_000 + 500_000 * n}) for n in (1, 2)]
    events = filled(text.strip() + ",\n", size).decode()
    return ('{"traceEvents": [\n' + events + ",\n".join(steps) + "]}").encode()


def small_trace(rank: int, ranks: int) -> bytes:
    """A trace of 3 kB: three steps of three kernels, the last of which is a collective."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        begin = 1_000_000 + 10_000 * step
        mark = {"name": f"ProfilerStep#{step + 1}", "cat": "user_annotation", "pid": 1, "tid": 1}
        events.append({"ph": "X", **mark, "ts": begin, "dur": 10_000})
        for place, kernel in enumerate(("gemm_0", "gemm_1", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")):
            at, args = begin + 100 + 900 * place, {"correlation": 10 * step + place}
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 5}
            events.append({"ph": "X", **call, "ts": at, "args": args})
            stream = 20 if place == 2 else 7
            on_device = {"cat": "kernel", "name": kernel, "pid": 0, "tid": stream, "dur": 800}
            late = rank % 7 if place == 2 else 0
            events.append({"ph": "X", **on_device, "ts": at + 20 + late, "args": {**args, "stream": stream}})
    info = {"rank": rank, "world_size": ranks, "backend": "nccl"}
    return json.dumps({"distributedInfo": info, "traceEvents": events}).encode()


def contents(name: str, text: str, file: str, size: int) -> dict[str, bytes]:
    """The files of a case, not packed."""
    if name == MANY:
        ranks = max(2, size // len(small_trace(0, 2)))
        return {file.format(rank=rank): small_trace(rank, ranks) for rank in range(ranks)}
    return {file: trace(text, size) if name.startswith("trace") else filled(text, size)}


def write(given: Path, name: str, text: str, size: int) -> float:
    """Write the files of a case, packed where the name says so; returns the MB before packing."""
    packing = given.suffix if given.suffix in PACKED else ""
    files = contents(name, text, given.name, size)
    for own, plain in files.items():
        given.with_name(own).write_bytes(PACKED[packing](plain))
    return sum(map(len, files.values())) / 1e6


def measured(
    name: str, text: str, command: list[str], file: str, size: int, core: int | None = None
) -> tuple[str, dict[str, Any]]:
    """What is wrong, and the figures. core: to which the command is pinned."""
    with tempfile.TemporaryDirectory() as place:
        given = Path(place, "given", file)
        given.parent.mkdir()
        # In a process of its own: the command's peak memory begins at that of the process that starts it.
        with ProcessPoolExecutor(1, get_context("spawn")) as writer:
            mb = writer.submit(write, given, name, text, size).result()
        words = [sys.executable, "-m", "traceops", *command, str(given.parent if "--from" not in command else given)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TRACEOPS_CACHE": "off"}
        out = str(Path(place, "out"))
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        begun = time.monotonic()
        process = subprocess.Popen(
            [*pinned, *words, "-o", out], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        said = process.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(process.pid, 0)
        elapsed = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
    figures = {
        "mb": round(mb, 2), "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "elapsed_s": round(elapsed, 2), "memory_mb": used.ru_maxrss // 1024, "code": process.returncode,
    }  # fmt: skip
    problems = []
    if figures["cpu_s"] > _FIRST_S + _PER_10_MB_S * mb / 10:
        problems.append("too long")
    if figures["memory_mb"] > _FIRST_MB + _TIMES * mb:
        problems.append("too much memory")
    if process.returncode not in _EXIT_CODES or "please report" in said:
        problems.append(f"ended with {process.returncode}: {said[-300:]}")
    return "; ".join(problems), figures


def main() -> int:
    """Measure them and say which is over a bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=2.0)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--slice", default="0/1", metavar="K/N")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--budget", type=float, metavar="S")
    parser.add_argument("--jobs", default="1")
    args = parser.parse_args()
    kth, of = map(int, args.slice.split("/"))
    chosen = [case for case in cases() if args.only in case[0]][kth::of]
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: args.lanes]:
        cores.put(core)
    begun = time.monotonic()

    def one(case: tuple[str, str, list[str], str]) -> tuple[str, dict[str, Any]] | None:
        if args.budget is not None and time.monotonic() - begun > args.budget:
            return None
        name, text, command, file = case
        command = [*command[:-1], args.jobs] if "--jobs" in command else command
        core = cores.get() if args.lanes > 1 else None
        problem, figures = measured(name, text, command, file, int(args.mb * 1e6), core)
        if core is not None:
            cores.put(core)
        seconds = f"{figures['cpu_s']:7} s of CPU {figures['elapsed_s']:7} s elapsed"
        print(f"{name:44} {figures['mb']:6} MB {seconds} {figures['memory_mb']:5} MB  {problem}", flush=True)
        return problem, figures

    with ThreadPoolExecutor(args.lanes) as lanes:
        found = [told for told in lanes.map(one, chosen) if told is not None]
    wrong = sum(bool(problem) for problem, _ in found)
    longest, most = (max((told[name] for _, told in found), default=0) for name in ("cpu_s", "memory_mb"))
    strict = sum(told["cpu_s"] > told["mb"] for _, told in found)
    print(f"{len(found)} of {len(chosen)} sizes, {wrong} over a bound, {strict} over a strict 10 s for 10 MB")
    print(f"longest {longest} s, most memory {most} MB")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
