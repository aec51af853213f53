"""The programs of runs.py: ordinary trainings, each run unchanged on two GPUs, or on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_records

STEPS = 40  # that each of them trains at least
FIRST = 20  # the step from which CUPTI records in the first run by itself


@dataclass(frozen=True)
class Program:
    """One row. command: as of torchrun, in `folder` of the sources; {small} is benchmarks/programs/small.

    seconds: about what a run takes. data: what `make_data` makes first. packages: it needs those of --site. planted: it
    has troubles, so that its own time is of no use. needs: ranks without which it is another program.
    options: of traceops run. launcher: "none" where the program is a single process. cupti: the step from which CUPTI
    records in the first run by itself, 0: it does not. tidy: --tidy leaves its troubles out, which tells their cost.
    twice: it runs by itself once more, beside others, to see whether its result is the same. due: what a report should
    say; never: what would be false; aside: read last.
    """

    name: str
    command: tuple[str, ...]
    folder: str = "."
    seconds: float = 14
    data: str = ""
    packages: bool = False
    planted: bool = False
    needs: int = 1
    options: tuple[str, ...] = ()
    launcher: str = "torchrun"
    cupti: int = FIRST
    tidy: bool = False
    twice: bool = False
    due: str = ""
    never: str = ""
    aside: bool = False


# Those that no GPU has run since November 2026 first, then those farthest from the truth: time may run out. Of a run's
# seconds most are the start: of torch, NCCL and the compiler.
PROGRAMS = read_records(Path(__file__).with_name("two_gpus.jsonl"), Program)

# For two ranks on a CPU: whether all of this works.
ON_CPU = read_records(Path(__file__).with_name("on_cpu.jsonl"), Program)

# Programs of one rank on one GPU (programs/), each written before any result.
ONE_GPU = read_records(Path(__file__).with_name("one_gpu.jsonl"), Program)


def make_data(kind: str, folder: Path) -> None:
    """The data of one program, drawn at random, the same each time."""
    import numpy as np

    drawn = np.random.default_rng(0)
    if kind == "nanogpt":
        for name in ("train.bin", "val.bin"):
            (folder / "data" / "random").mkdir(parents=True, exist_ok=True)
            drawn.integers(0, 50_257, 2_000_000).astype(np.uint16).tofile(folder / "data" / "random" / name)
    if kind == "mingpt":  # 160 batches of 216 for each of two ranks are nine tenths of it
        letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'-&$\n3"))
        (folder / "text.txt").write_text("".join(drawn.choice(letters, 128 + 160 * 216 * 2 * 10 // 9)))
