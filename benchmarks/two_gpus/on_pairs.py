"""Ordinary programs on pairs of GPUs, in turn by themselves and under `traceops run`, and one program with planted troubles.

    python -m benchmarks.two_gpus.on_pairs --work DIR --sources DIR --until S [NAME …]

Each pair of GPUs has cores of its own, and takes the next program when it is free. benchmarks/observed_ranks/turns.py says
how the jobs of PROGRAMS take turns. TROUBLES run under traceops alone; what is true of each was written before any ran.
sources: folders with programs of others, as README.md says; lit_train.py and pp.py there make 97 steps.
DIR/NAME.JOB/ has what came of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.observed.registry import make_data
from benchmarks.observed_ranks.runs import end, variables_of
from benchmarks.observed_ranks.truth import Run
from benchmarks.observed_ranks.turns import Started, Turn, in_turn

_LIMIT_S = 130.0


def _field(name: str, path: str, *options: str, **more: object) -> Turn:
    return Turn(name, path, options, source="field", **more)  # type: ignore[arg-type]


_NANO = (
    "--dataset=random", "--max_iters={steps}", "--gradient_accumulation_steps=2", "--eval_interval=1000",
    "--eval_iters=1", "--log_interval=10",
)  # fmt: skip

# One job fewer under traceops where four would not fit into 80 GB.
PROGRAMS = (
    _field("HF Trainer", "hf_train.py", traced=1, block=22, seconds=75),
    _field("FSDP2, compiled", "llama_fsdp2.py", "--compile", "--ckpt", block=22, seconds=95),
    _field("Lightning", "lit_train.py", steps=97, seconds=60),
    _field("tensor parallel", "llama_fsdp2.py", "--tp", "--layers=8", "--steps={steps}", block=22, seconds=75),
    Turn("nanoGPT, eager", "train.py", (*_NANO, "--compile=False"), source="nanoGPT", traced=1, seconds=55),
    Turn("ResNet-50, DDP", "programs/small/resnet_train.py", seconds=50),
    Turn(
        "nanoGPT, compiled", "train.py",
        (*_NANO, "--compile=True", "--n_layer=6", "--n_embd=1024", "--n_head=16"),
        source="nanoGPT", traced=1, seconds=80,
    ),
    _field("pipeline, 1F1B", "pp.py", "1f1b", "8", steps=97, seconds=55),
    _field("FSDP2, eager", "llama_fsdp2.py", "--batch=2", "--steps={steps}", seconds=60),
    Turn(
        "minGPT-ddp", "main.py",
        ("data_config.path=text.txt", "data_config.truncate=1.0", "trainer_config.max_epochs=1"),
        source="minGPT-ddp", steps=97, seconds=50,
    ),
    Turn("planted program, healthy", "observed_ranks/programs/troubled.py", block=30, seconds=50),
)  # fmt: skip

_NOT_0 = r"[Rr]ank 0('s host (is late|takes)|'s input comes late| is late| causes|(takes|computes) longer)"
_NEVER = (
    rf"{_NOT_0}|[✖▲] .{{0,40}}[Ww]aits? for (its |their )?input|NVLink|not synchronised|power cap|TO-O00[123]"
)


@dataclass(frozen=True)
class Beside:
    """What runs beside a job: products on its second GPU, or Python on the cores of rank 1."""

    gpu: bool = False
    cores: bool = False


def _run(name: str, truth: str, due: tuple[str, ...], *options: str, never: str = _NEVER) -> Run:
    return Run(name, "troubled", truth, options, due, never, plain="planted program, healthy")


_PYTHON = r"[Rr]ank 1(?=.*write_metrics)"
_COLLECTOR = r"collector.{0,60}rank 1|[Rr]ank 1.{0,90}(collector|garbage)"
_EVALUATION = r"[Ee]valuat|model without gradients"
_SAVE = r"[Cc]heckpoint|[Ss]av(e|ing)"
_STRANGER = r"[Aa]nother process|pid \d+"
_CORES = r"for a core"
TROUBLES: tuple[Run, ...] = (
    _run("python", "rank 1's host runs write_metrics for 40 ms a step", (_PYTHON,), "--python", "40"),
    _run("collector", "rank 1 collects garbage over 800,000 objects more each 4th step", (_COLLECTOR,),
         "--heap", "800000"),
    _run("recompiles", "rank 1 compiles anew in each step", (r"[Cc]ompil",), "--recompile", "1"),
    _run("empties", "rank 1 empties the allocator's cache in each step", (r"empty_cache|cudaMalloc|allocator|for memory",),
         "--empty", "1"),
    _run("stranger", "another process computes on rank 1's GPU", (_STRANGER,), never=_NOT_0),
    _run("hogged_cores", "eight processes of Python on rank 1's four cores", (_CORES,), "--bind", "4", never=_NOT_0),
    _run("evaluates", "all evaluate six batches in each 10th step", (_EVALUATION,), "--eval-each", "10"),
    _run("saves", "rank 0 saves the model in each 20th step", (_SAVE,), "--save-each", "20",
         never=_NEVER.replace(_NOT_0, "[Rr]ank 1 is late")),
    _run("python_evaluates", "write_metrics, 40 ms on rank 1; all evaluate each 10th step", (_PYTHON, _EVALUATION),
         "--python", "40", "--eval-each", "10"),
    _run("stranger_saves", "another process on rank 1's GPU; rank 0 saves each 20th step", (_STRANGER, _SAVE),
         "--save-each", "20", never="[Rr]ank 0's host"),
    _run("collector_cores", "garbage on rank 1 each 4th step, and its cores are hogged", (_CORES, _COLLECTOR),
         "--heap", "800000", "--bind", "4", never=_NOT_0),
    _run("empties_evaluates", "rank 1 empties its cache each step; all evaluate each 10th",
         (r"empty_cache|cudaMalloc|allocator|for memory", _EVALUATION), "--empty", "1", "--eval-each", "10"),
)  # fmt: skip
_BESIDE = {
    "stranger": Beside(gpu=True), "stranger_saves": Beside(gpu=True),
    "hogged_cores": Beside(cores=True), "collector_cores": Beside(cores=True),
}  # fmt: skip
_TROUBLE_STEPS, _TROUBLE_S = 160, 34.0
_HOGS = 8
_BOUND = 4  # cores a rank has where it is bound


@dataclass(frozen=True)
class Pair:
    """Two GPUs and the cores beside them. gpus: as CUDA_VISIBLE_DEVICES has them; empty without GPUs."""

    gpus: tuple[int, ...]
    cores: tuple[int, ...]

    def bound(self, command: list[str]) -> list[str]:
        return ["taskset", "-c", ",".join(map(str, self.cores)), *command]

    @property
    def variables(self) -> dict[str, str]:
        return (
            {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))}
            if self.gpus
            else {"GLOO_SOCKET_IFNAME": "lo"}
        )


def pairs(gpus: int) -> list[Pair]:
    """As many as there are, each with its part of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    many = max(gpus // 2, 1)
    each = len(cores) // many
    return [
        Pair((2 * at, 2 * at + 1) if gpus else (), tuple(cores[at * each : (at + 1) * each]))
        for at in range(many)
    ]


class Visit:
    """Programs and troubles, on all pairs."""

    def __init__(self, work: Path, sources: Path | None, site: str | None, until: float) -> None:
        self.work, self.sources, self.site = work.resolve(), sources, site
        self._began, self._until = time.monotonic(), until

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def all(self, chosen: list[Turn | Run], on: list[Pair]) -> None:
        """Each pair takes the next one of them; what would not end in time is left out."""
        waiting: queue.SimpleQueue[Turn | Run] = queue.SimpleQueue()
        for one in chosen:
            waiting.put(one)

        def take(pair: Pair) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    one = waiting.get_nowait()
                    left = self._until - self.now
                    needed = one.seconds if isinstance(one, Turn) else _TROUBLE_S
                    if left < 0.8 * needed:
                        print(f"{one.name}: no time left", flush=True)
                        continue
                    began = self.now
                    codes = self._one(one, pair, min(_LIMIT_S, left))
                    print(
                        f"{self.now:5.0f} s  {one.name}: {codes} after {self.now - began:.0f} s", flush=True
                    )

        threads = [threading.Thread(target=take, args=(pair,)) for pair in on]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, one: Turn | Run, pair: Pair, limit_s: float) -> object:
        try:
            if isinstance(one, Turn):
                return in_turn(one, one.jobs, self.work, limit_s, lambda *job: self._job(pair, *job))
            return self._trouble(one, pair, limit_s)
        except Exception as error:
            return repr(error)

    def _job(
        self, pair: Pair, turn: Turn, folder: Path, more: dict[str, str], options: list[str] | None
    ) -> Started:
        return [self._started(pair, turn.script(), turn.source, folder, more, options)]

    def _started(
        self, pair: Pair, script: list[str], source: str, folder: Path, more: dict[str, str],
        options: list[str] | None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """As its users start it: torchrun, or `traceops run`, with two ranks."""
        shutil.rmtree(folder, ignore_errors=True)
        where = folder / "src"
        if source and self.sources:
            shutil.copytree(self.sources / source, where)
        where.mkdir(parents=True, exist_ok=True)
        variables = dict(os.environ) | variables_of(folder) | pair.variables | more
        variables["PYTHONPATH"] += os.pathsep + self.site if self.site else ""
        variables["OMP_NUM_THREADS"] = "2"
        if options is None:
            command = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", *script]
        else:
            command = [
                "traceops",
                "run",
                "--out",
                str(folder / "profile"),
                "--nproc",
                "2",
                *options,
                "--",
                *script,
            ]
        with (folder / "out.txt").open("wb") as out:
            return subprocess.Popen(
                pair.bound([sys.executable, "-m", *command]), cwd=where, env=variables,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _trouble(self, run: Run, pair: Pair, limit_s: float) -> object:
        beside = _BESIDE.get(run.name, Beside())
        others = []
        if beside.cores:
            own = ",".join(map(str, pair.cores[_BOUND : 2 * _BOUND] or pair.cores))
            spin = [sys.executable, "-c", "while True: sum(range(1000))"]
            others += [["taskset", "-c", own, *spin]] * _HOGS
        if beside.gpu:
            others.append(
                [sys.executable, "-m", "benchmarks.two_gpus.hog", "1" if pair.gpus else "0", str(limit_s)]
            )
        hogs = [subprocess.Popen(one, env={**os.environ, **pair.variables}) for one in others]
        script = Path(__file__).resolve().parents[1] / "observed_ranks/programs/troubled.py"
        folder = self.work / f"{run.name}.traced"
        process = self._started(
            pair, [str(script), "--steps", str(_TROUBLE_STEPS), *run.options], "", folder, {}, []
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            end(process)
            for hog in hogs:
                hog.kill()
            shutil.rmtree(folder / "src", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--site", help="folder with packages that a program needs and this Python lacks")
    parser.add_argument("--until", type=float, default=1e9, metavar="S")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known: dict[str, Turn | Run] = {one.name: one for one in (*PROGRAMS, *TROUBLES)}
    chosen = [known[name] for name in args.names] if args.names else list(known.values())
    args.work.mkdir(parents=True, exist_ok=True)
    if args.sources:
        for name, kind in (("nanoGPT", "nanogpt"), ("minGPT-ddp", "mingpt")):
            if (args.sources / name).is_dir():
                make_data(kind, args.sources / name)
    import torch

    Visit(args.work, args.sources, args.site, args.until).all(chosen, pairs(torch.cuda.device_count()))
    for copy in args.work.glob("*/src"):
        shutil.rmtree(copy, ignore_errors=True)


if __name__ == "__main__":
    main()
