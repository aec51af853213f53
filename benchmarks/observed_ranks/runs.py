"""Runs the programs of `truth` by themselves and under `traceops run`: several ranks, on one GPU.

    python -m benchmarks.observed_ranks.runs --work DIR --until S [NAME[.alone|.traced] …]

Each rank has a launcher of its own, as on machines of one GPU each; NCCL_HOSTID tells NCCL that they are. By itself a
program is timed by benchmarks/observed/site, and CUPTI alone records seven of its steps. DIR/NAME.HOW/ has what came
of a run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import ROOT
from benchmarks.observed_ranks.truth import CUPTI_FROM, RUNS, STEPS, Run

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 75.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    for run, how in chosen(args.names):
        left = args.until - (time.monotonic() - began)
        if left < 0.7 * run.seconds:
            print(f"{run.name}.{how}: no time left", flush=True)
            continue
        start = time.monotonic()
        codes = one(run, how, args.work.resolve() / f"{run.name}.{how}", min(_LIMIT_S, left))
        now = time.monotonic()
        print(f"{now - began:5.0f} s  {run.name}.{how}: exit {codes} after {now - start:.1f} s", flush=True)


def chosen(names: list[str]) -> list[tuple[Run, str]]:
    """All of them in order of worth, or the named ones. One with troubles runs under traceops alone."""
    every = [(run, how) for run in RUNS for how in (("traced",) if run.plain else ("alone", "traced"))]
    if not names:
        return every
    known = {key: pair for pair in every for key in (".".join((pair[0].name, pair[1])),)}
    known |= {f"{run.name}.again": (run, "again") for run in RUNS if not run.plain}
    return [
        known[one]
        for name in names
        for one in known
        if one == name or (one.split(".")[0] == name and not one.endswith("again"))
    ]


def one(run: Run, how: str, folder: Path, limit_s: float) -> list[int]:
    """Exit codes of the ranks, or of their launchers."""
    script = [str(_HERE / "programs" / f"{run.program}.py"), "--steps", str(STEPS), *run.options]
    more = {"OBSERVED_CUPTI": str(CUPTI_FROM)} if how == "alone" else {}
    started = start(script, run.ranks, folder, more, [] if how == "traced" else None)
    until = time.monotonic() + limit_s
    try:
        return [_wait(process, until) for process in started]
    finally:
        for process in started:
            end(process)


def start(
    script: list[str], ranks: int, folder: Path, more: dict[str, str], options: list[str] | None
) -> list[subprocess.Popen[bytes]]:
    """Each rank of a job, or its launcher. more: variables. folder: made anew, in a folder that has the caches.

    options: of `traceops run`; None: without it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    started = []
    for rank in range(ranks):
        variables = dict(os.environ) | variables_of(folder) | more | {"NCCL_HOSTID": f"host{rank}"}
        if options is not None:
            meet = ["--nnodes", str(ranks), "--node-rank", str(rank)]
            meet += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
            own = ["run", "--out", str(folder / "profile"), *(meet if ranks > 1 else []), "--nproc", "1", *options]
            command = [sys.executable, "-m", "traceops", *own, "--", *script]
        else:
            command = [sys.executable, *script]
            variables |= _rank(rank, ranks, port)
        out = (folder / f"out.{rank}.txt").open("wb")
        started.append(subprocess.Popen(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        ))  # fmt: skip
    return started


def variables_of(folder: Path) -> dict[str, str]:
    """Of each job: the clock in its folder, the caches beside it."""
    cache = folder.parent / "cache"
    path = [str(ROOT / "benchmarks/observed/site"), os.environ.get("PYTHONPATH", ""), str(ROOT)]
    return {
        "PYTHONPATH": os.pathsep.join(part for part in path if part), "PYTHONUNBUFFERED": "1",
        "OBSERVED_CLOCK": str(folder / "clock"), "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton"),
        "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


def _rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun gives the only rank of a node."""
    told = {
        "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none",
    }  # fmt: skip
    return {key: str(value) for key, value in told.items()}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], until: float) -> int:
    try:
        return process.wait(max(until - time.monotonic(), 0.5))
    except subprocess.TimeoutExpired:
        return 124


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(8)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
