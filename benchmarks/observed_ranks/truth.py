"""Ten ordinary programs of several ranks on one GPU under `traceops run`: what is true of each, written before any ran.

Two ranks share one GPU: NCCL takes them for hosts of their own where NCCL_HOSTID differs, and sends over sockets, some
5 ms a collective. The GPU works for the two processes by turns. What follows from that, decided before:

- A kernel lasts longer while the other rank computes too. "Compute" is the time in which kernels of the rank are there,
  in the report as in the truth (CUPTI alone, by itself). Nothing is planted that makes one rank's GPU slower, so no
  rank may be called a slower GPU, and no clock or power may be a cause.
- TO-W002 may say that another process works on the GPU if it names the other rank's: that is true. It must not say that
  it belongs to somebody else. To say that ranks share a GPU is true too.
- That data goes over sockets, that transfers are exposed (TO-O001, TO-O002, TO-O003) and that collectives wait for each
  other is true of all of them. NVLink, P2P or InfiniBand as what should be there between these ranks is false: to NCCL
  they are two hosts. An error that rests on it is a false first finding.
- The launchers run on one machine; no node is missing.
- Workers that are not late, input that is not late, hosts that are late on one rank and are not planted: false. Of a
  step whose hosts are the limit (small kernels) TO-I001 of all ranks is true.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

STEPS = 48
CUPTI_FROM = 20


@dataclass(frozen=True)
class Run:
    """One program with its options. due: a pattern for each trouble, most weighty first. never: of what is false.

    plain: the name of the same program without troubles; by itself it runs once, and what a trouble costs is the step
    of this run, as it took without a recording, less that one's. seconds: about what a run takes.
    """

    name: str
    program: str
    truth: str
    options: tuple[str, ...] = ()
    due: tuple[str, ...] = ()
    never: str = ""
    plain: str = ""
    ranks: int = 2
    seconds: float = 17.0


_LATE = r"'s host (is late|takes)|'s input comes late| is late( and|:)| causes|(takes|computes) longer"
_INPUT = r"[✖▲] .{0,40}[Ww]aits? for (its |their )?input|[✖▲] TO-I002|input comes late"
_MACHINE = r"NVLink|P2P is|clocks? (is|are|at) |power cap|missing (rank|node)|somebody else"
_FAULTS = r"TO-V004|not synchronised|\b[Hh]ang(s|ing)?\b"
_HEALTHY = rf"[Rr]ank \d{_LATE}|{_INPUT}|{_MACHINE}|{_FAULTS}|evaluation|checkpoint|collector"

_NOT_0 = rf"[Rr]ank 0({_LATE})"
_NOT_1 = rf"[Rr]ank 1({_LATE})"

RUNS: tuple[Run, ...] = (
    Run("ddp", "ddp", "DDP, GPT of 6 layers: the loss is read in each step; healthy", never=_HEALTHY),
    Run(
        "ddp_late", "ddp", "rank 1's host runs mask_tokens for 80 ms in each step, in the main thread",
        ("--slow-mask", "0.08"), (r"[Rr]ank 1(?=.*mask_tokens)",),
        rf"{_NOT_0}|{_MACHINE}|{_FAULTS}|workers? (is|are) late",
        plain="ddp",
    ),
    Run("hf_trainer", "hf_trainer", "HF's Trainer, DDP, accumulation over two; healthy", never=_HEALTHY, seconds=22),
    Run(
        "hf_two", "hf_trainer",
        "rank 1's collator takes 60 ms a batch in pad_rows (two batches a step, no workers); all ranks evaluate each "
        "12 steps",
        ("--slow-pad", "0.06", "--eval-each", "12"), (r"[Rr]ank 1(?=.*pad_rows)", r"[Ee]valuation|evaluat"),
        rf"{_NOT_0}|{_MACHINE}|{_FAULTS}|workers? (is|are) late", plain="hf_trainer", seconds=26,
    ),
    Run("tensor_parallel", "tensor_parallel", "DTensor, 3 layers, 12 all-reduces a step; healthy", never=_HEALTHY),
    Run("pipeline", "pipeline", "1F1B, 6 and 6 blocks, 4 micro-batches: fill and drain; healthy",
        never=rf"{_HEALTHY}|uneven"),
    Run(
        "pipeline_two", "pipeline",
        "stages of 3 and 9 blocks; the first stage's host runs tokenize for 60 ms before each step",
        ("--layers", "3,9", "--slow-tokenize", "0.06"),
        (r"[Rr]ank 0(?=.*tokenize)", r"[Ss]tage 1|[Rr]ank 1.{0,80}more|uneven"),
        rf"{_INPUT}|{_MACHINE}|{_FAULTS}", plain="pipeline",
    ),
    Run("fsdp2", "fsdp2", "fully_shard, compiled blocks, checkpointing; healthy",
        never=_HEALTHY.replace("|checkpoint", ""), seconds=30),
    Run("accelerate", "acc", "accelerate, accumulation over two, clipped; healthy", never=_HEALTHY),
    Run(
        "acc_alone", "acc", "rank 0 alone evaluates 16 batches in each 8th step; rank 1 waits in the next all-reduce",
        ("--alone-each", "8", "--batches", "4"), (r"[Ee]valuat|model without gradients",),
        rf"{_NOT_1}|{_INPUT}|{_MACHINE}|{_FAULTS}", plain="accelerate",
    ),
    Run("experts", "experts", "an expert a rank, two all-to-alls a layer each way; healthy", never=_HEALTHY),
    Run("nano", "nano", "as nanoGPT: compiled, DDP, accumulation over two; healthy", never=_HEALTHY, seconds=32),
    Run("lightning", "lit", "Lightning DDP, two workers make pictures of 64x64: they may be late on both ranks",
        never=rf"[Rr]ank \d{_LATE}|{_MACHINE}|{_FAULTS}|evaluation|checkpoint|collector", seconds=22),
    Run(
        "nano_gc", "nano", "rank 1 collects garbage over 400,000 objects more in each 4th step; rank 0 waits",
        ("--heap", "400000"), (r"[Cc]ollector|garbage",), rf"{_NOT_0}|{_INPUT}|{_MACHINE}|{_FAULTS}",
        plain="nano", seconds=28,
    ),
    Run("mesh", "mesh", "four ranks, 2 x 2: tensor parallel within, FSDP2 across; healthy",
        never=_HEALTHY, ranks=4, seconds=25),
    Run(
        "fsdp2_two", "fsdp2",
        "rank 1's two loader workers read for 4 ms a sample (64 samples a batch) in read_shard; rank 0 saves the whole "
        "model each 12 steps while rank 1 waits",
        ("--slow-read", "0.004", "--save-each", "12", "--copies", "12"),
        (r"[Rr]ank 1(?=.*(input|read_shard|loader))", r"[Cc]heckpoint|sav(e|ing)"),
        rf"{_NOT_0}|{_MACHINE}|{_FAULTS}", plain="fsdp2", seconds=30,
    ),
    Run(
        "tp_late", "tensor_parallel", "rank 1's host runs write_metrics for 60 ms in each step",
        ("--slow-log", "0.06"), (r"[Rr]ank 1(?=.*write_metrics)",), rf"{_NOT_0}|{_INPUT}|{_MACHINE}|{_FAULTS}",
        plain="tensor_parallel",
    ),
    Run(
        "experts_hot", "experts", "three of four tokens go to rank 1's experts", ("--hot", "0.75"),
        (r"[Rr]ank 1.{0,90}(more|longer|tokens|causes|late)|imbalance|[Ee]xpert",),
        rf"{_NOT_0}|{_INPUT}|{_MACHINE}|{_FAULTS}",
        plain="experts",
    ),
)  # fmt: skip


def aside() -> frozenset[str]:
    """The half by hash that nobody looks at before the others are mended."""
    names = sorted((one.name for one in RUNS), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return frozenset(names[: len(names) // 2])
