"""24 runs of several ranks (programs/): what is planted in each, and what a report must and must not say.

Written before anything was analysed. Costs are measured by the same program without the trouble (runs.py --alone).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

RUN, SCHEDULE, WINDOW, TWO_NODES, OWN = "run", "schedule", "window", "two nodes", "lightning"
"""traceops run · the script's own profiler: with a schedule, one window · two launchers · Lightning's profiler."""


@dataclass(frozen=True)
class Trouble:
    """options and plant: what makes it; due: what must be named; fatal: the run does not come to its end."""

    due: str
    options: tuple[str, ...] = ()
    plant: str = ""
    fatal: bool = False

    @property
    def ends(self) -> bool:
        return self.fatal or any(kind in self.plant for kind in ("hang", "oom", "stuck"))


@dataclass(frozen=True)
class Case:
    """due holds the order by cost where it is certain; never: what would be false."""

    name: str
    program: str
    ranks: int
    way: str
    troubles: tuple[Trouble, ...]
    never: str
    options: tuple[str, ...] = ()
    steps: int = 40

    @property
    def aside(self) -> bool:
        return self.name in _ASIDE


_HEALTHY = "a late rank, late input or evaluation as a cause (that cores are shared is true here)"

CASES: tuple[Case, ...] = (
    Case("powersgd", "ddp_comm_hook", 2, RUN, (), _HEALTHY, ("--ddp_comm_hook", "power_sgd"), 60),
    Case("tensor_loss", "tensor_loss", 2, RUN, (), _HEALTHY),
    Case("hsdp_dcp", "hsdp", 4, SCHEDULE, (), _HEALTHY, ("--dcp-each", "25")),
    Case("lit_profiler", "lit", 2, OWN, (), _HEALTHY, ("--val-each", "60")),
    Case("gossip", "gossip", 3, RUN, (), f"{_HEALTHY}; a pipeline with stages or a bubble"),
    Case("zero_two_nodes", "zero_fp16", 2, TWO_NODES, (), f"{_HEALTHY}; a missing node"),
    Case(
        "local_sgd_late", "local_sgd", 3, RUN,
        (Trouble("rank 2's host, resize_again, 100 ms a step", plant="late:2:0.1"),),
        "gradients that are not synchronised, as a fault; a rank that waits every fourth step for another cause",
    ),
    Case(
        "pipe_uneven", "pipe", 3, SCHEDULE,
        (Trouble("stage 1 takes longer than the others", ("--layers", "2,9,2")),),
        "rank 0 or 2 as late; a fault of the network",
        ("--layers", "2,2,2"),
    ),
    Case(
        "ulysses_loader", "ulysses", 4, WINDOW,
        (Trouble("rank 1's input is late, 150 ms", plant="loader:1:0.15"),),
        "another rank as the cause; the all_to_all as slow transfer above the loader",
    ),
    Case(
        "join_host", "join_uneven", 3, RUN,
        (Trouble("rank 1's host, resize_again, 100 ms a step", plant="late:1:0.1"),),
        "Join's flags as gradients; ranks that ended early",
    ),
    Case(
        "metrics_loader", "multi_process_metrics", 2, RUN,
        (Trouble("input is late on both ranks, 60 ms a batch, read_from_far", plant="loader:*:0.06"),),
        "one of the two ranks as late",
        steps=60,
    ),
    Case(
        "tiny_buckets", "trainer", 2, SCHEDULE,
        (Trouble("many small all-reduces (buckets)", ("--bucket-mb", "0.001")),),
        "a late rank; late input",
        ("--depth", "40"),
    ),
    Case(
        "data_and_eval", "trainer", 2, RUN,
        (
            Trouble("rank 1's input, read_from_far, 100 ms a step", plant="loader:1:0.1"),
            Trouble("evaluation on rank 0 alone each 10 steps", ("--eval-alone", "10", "--eval-batches", "1500")),
        ),
        "evaluation on rank 1; a slow loader on rank 0",
    ),
    Case(
        "uneven_and_host", "join_uneven", 3, RUN,
        (
            Trouble("rank 0's host, resize_again, 100 ms a step", plant="late:0:0.1"),
            Trouble("ranks end after 40, 35 and 30 steps", ("--fewer", "5")),
        ),
        "a rank that died or hung; missing traces; a rank's fewer steps as lost ones",
    ),
    Case(
        "buckets_and_late", "trainer", 2, SCHEDULE,
        (
            Trouble("rank 1 is late, 100 ms a step, host", plant="late:1:0.1"),
            Trouble("many small all-reduces (buckets)", ("--bucket-mb", "0.001")),
        ),
        "waiting for rank 1 told as slow transfer; late input",
        ("--depth", "40"),
    ),
    Case(
        "save_and_loader", "hsdp", 4, RUN,
        (
            Trouble("input is late on all ranks, read_from_far, 150 ms a step", plant="loader:*:0.15"),
            Trouble("checkpoints on rank 0, the others wait, each 8 steps", ("--save-alone", "8", "--copies", "40")),
        ),
        "rank 0 as a straggler of usual steps; one rank's loader alone",
    ),
    Case(
        "gc_and_experts", "experts", 4, RUN,
        (
            Trouble("rank 1 has more tokens (its experts take longer)", ("--hot", "0.6")),
            Trouble("garbage collection on rank 2 each 5 steps", plant="gc:2:400000"),
        ),
        "a slow network; a slower processor of rank 1 with equal work; late input",
    ),
    Case(
        "slow_then_hang", "clip_gather", 3, RUN,
        (
            Trouble("rank 2 hangs in wait_for_ever after its 34th step", plant="hang:2:1:34"),
            Trouble("before that rank 2 was late, resize_again, 100 ms in steps 12 to 29", plant="late:2:0.1:12:29"),
        ),
        "another rank as the hang's cause; the hang as a slow network",
        steps=60,
    ),
    Case(
        "killed_and_slow", "hf", 2, RUN,
        (
            Trouble("rank 1 is killed by SIGKILL after step 25", plant="oom:1:1:25"),
            Trouble("rank 0's host, resize_again, 100 ms a step", plant="late:0:0.1"),
        ),
        "rank 0 as the first that died; an out-of-memory error as certain",
    ),
    Case(
        "work_and_function", "trainer", 3, WINDOW,
        (
            Trouble("rank 1 has more to compute (samples)", ("--batches", "64,1536,64")),
            Trouble("rank 2's host is late, 60 ms a step (hidden in part behind rank 1)", plant="late:2:0.06"),
        ),
        "rank 0 as late; rank 2 as the first cause; late input",
    ),
    Case(
        "lit_val_and_late", "lit", 2, RUN,
        (
            Trouble("validation takes a large share of the run", ("--val-batches", "400")),
            Trouble("rank 1's host, resize_again, 150 ms a step", plant="late:1:0.15"),
        ),
        "validation of one rank only; late input",
        ("--val-batches", "1"),
    ),
    Case(
        "dashboard_and_gc", "hf", 2, RUN,
        (
            Trouble("rank 0's callback send_figure, 100 ms a step", ("--dashboard", "0.1")),
            Trouble("garbage collection on rank 1 each 5 steps", plant="gc:1:600000"),
        ),
        "rank 1 as late in all steps; evaluation; checkpoints",
    ),
    Case(
        "stages_and_loader", "pipe", 3, RUN,
        (
            Trouble("rank 0's input, read_from_far, 150 ms a step", plant="loader:0:0.15"),
            Trouble("stage 2 takes longer than the others", ("--layers", "2,2,8")),
        ),
        "rank 1 as late; stage 0 as slow in compute",
        ("--layers", "2,2,2"),
    ),
    Case(
        "rollouts_and_host", "rollouts", 3, RUN,
        (
            Trouble("rank 2's host, resize_again, 100 ms a step", plant="late:2:0.1"),
            Trouble("rank 0 generates while the others wait, each 5 steps", ("--tokens", "1500")),
        ),
        "rank 0 as late in all steps; rank 2 as generating",
        ("--tokens", "1"),
    ),
)  # fmt: skip

_BY_HASH = sorted(CASES, key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
_ASIDE = frozenset(
    case.name for many in range(3) for case in [one for one in _BY_HASH if len(one.troubles) == many][::2]
)
"""Half of each kind, by hash: not read before the causes that the other half showed were mended."""
