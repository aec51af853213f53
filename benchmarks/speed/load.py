"""Loading a trace: traceops against HTA, JSON decoders and plain unzipping, on the same files in the same run.

    pip install -e '.[hta,bench]'
    python -m benchmarks.speed.load TRACE.json.gz ... [--runs 3] [--only NAME ...]

Each loader runs in a process of its own, in turn, forwards and backwards. Time is without imports. Memory is the
most that the process had resident, less the same of one that only imports. JSON decoders get bytes unzipped with
isal, as traceops does; they end with Python objects, HTA and traceops with columns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20
_Load = Callable[[str], object]


@dataclass(frozen=True)
class Loaded:
    """One load: wall and CPU seconds, and the most the process had resident (MB)."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def _traceops() -> _Load:
    from traceops.traces.kineto import load_trace

    return load_trace


def _hta() -> _Load:
    import logging
    import warnings

    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    warnings.simplefilter("ignore")
    from hta.common.trace import Trace

    logging.disable(logging.CRITICAL)

    def load(path: str) -> object:
        trace = Trace(trace_files={0: path}, trace_dir=str(Path(path).parent))
        trace.parse_traces(use_multiprocessing=False)
        return trace

    return load


def _json() -> _Load:
    from isal import igzip

    def load(path: str) -> object:
        with igzip.open(path) as file:
            return json.load(file)

    return load


def _orjson() -> _Load:
    import orjson

    return _decoder(orjson.loads)


def _msgspec() -> _Load:
    import msgspec

    return _decoder(msgspec.json.decode)


def _decoder(decode: Callable[[bytes], object]) -> _Load:
    from isal import igzip

    def load(path: str) -> object:
        with igzip.open(path) as file:
            return decode(file.read())

    return load


def _isal() -> _Load:
    from isal import isal_zlib

    return _unzipper(lambda: isal_zlib.decompressobj(31).decompress)


def _zlib() -> _Load:
    import zlib

    return _unzipper(lambda: zlib.decompressobj(31).decompress)


def _unzipper(new: Callable[[], Callable[[bytes], bytes]]) -> _Load:
    """Zipped bytes in, 64 KB at a time, and what comes out is dropped."""

    def load(path: str) -> object:
        unzip = new()
        with Path(path).open("rb") as file:
            return sum(len(unzip(chunk)) for chunk in iter(lambda: file.read(1 << 16), b""))

    return load


def _gzip() -> _Load:
    import gzip

    def load(path: str) -> object:
        with gzip.open(path) as file:
            return sum(map(len, iter(lambda: file.read(_CHUNK), b"")))

    return load


# What it is called, how it imports what it needs, and what its environment has.
LOADERS: dict[str, tuple[Callable[[], _Load], dict[str, str]]] = {
    "traceops": (_traceops, {}), "traceops, pure Python": (_traceops, {"TRACEOPS_NATIVE": "0"}), "HTA": (_hta, {}),
    "json.load": (_json, {}), "orjson.loads": (_orjson, {}), "msgspec.json.decode": (_msgspec, {}),
    "unzip only, isal": (_isal, {}), "unzip only, zlib": (_zlib, {}), "unzip only, gzip.open": (_gzip, {}),
}  # fmt: skip


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=LOADERS, default=list(LOADERS), metavar="NAME")
    args = parser.parse_args()
    for trace in args.traces:
        json_mb = _isal()(trace) / 1e6  # type: ignore[operator]
        print(f"{Path(trace).name}: {json_mb:.0f} MB of JSON, {Path(trace).stat().st_size / 1e6:.1f} MB zipped; "
              f"median of {args.runs}\n")  # fmt: skip
        idle = {name: run(name).peak_mb for name in args.only}
        loads: dict[str, list[Loaded]] = {name: [] for name in args.only}
        for turn in range(args.runs):
            for name in args.only if turn % 2 == 0 else args.only[::-1]:
                loads[name].append(run(name, trace))
        print_table(loads, idle, json_mb)
    return 0


def run(name: str, *trace: str) -> Loaded:
    """Load the trace in a process of its own; without one only import."""
    # NumPy's BLAS threads, which none of them uses, would spin for a while in the time of the load.
    env = {**os.environ, "OMP_NUM_THREADS": "1", **LOADERS[name][1]}
    command = [sys.executable, "-m", "benchmarks.speed.load", "--child", name, *trace]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed on {trace}:\n{done.stderr[-3000:]}")
    return Loaded(**json.loads(done.stdout.splitlines()[-1]))


def child(name: str, *trace: str) -> int:
    """Import, load, and print what it took."""
    load = LOADERS[name][0]()
    wall, cpu = time.perf_counter(), time.process_time()
    held = [load(path) for path in trace]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # The kernel's own maximum: getrusage's begins at that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak_mb = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    del held
    print(json.dumps({"seconds": wall, "cpu_seconds": cpu, "peak_mb": peak_mb}))
    return 0


def print_table(loads: dict[str, list[Loaded]], idle: dict[str, float], json_mb: float) -> None:
    """Markdown, medians; ratios are to the first loader's."""
    seconds = {name: statistics.median(load.seconds for load in own) for name, own in loads.items()}
    cpu = {name: statistics.median(load.cpu_seconds for load in own) for name, own in loads.items()}
    peak = {name: statistics.median(load.peak_mb for load in own) - idle[name] for name, own in loads.items()}
    first = next(iter(loads))
    print(f"| | s | CPU s | MB/s of JSON | peak MB | {first}'s time × | {first}'s memory × |")
    print("|---" * 7 + "|")
    for name in loads:
        print(
            f"| {name} | {seconds[name]:.2f} | {cpu[name]:.2f} | {json_mb / seconds[name]:.0f} | {peak[name]:.0f} | "
            f"{seconds[name] / seconds[first]:.2f} | {peak[name] / peak[first]:.2f} |"
        )
    print()


if __name__ == "__main__":
    sys.exit(main())
