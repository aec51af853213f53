"""One rank in the place of many: the same samples a step, by gradient accumulation."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from traceops.core.errors import UsageError
from traceops.core.rank_files import RANKS_ENV, effective_batches
from traceops.train.config import TrainConfig
from traceops.train.strategies import MESHES

# DistributedDataParallel works with one rank, where it has nothing to send.
STRATEGY = "pytorch_ddp"
_ACCUMULATIONS = (1, 2, 4, 8)
_BATCHES = (1, 4, 16, 64)


class Fallback(Struct, frozen=True):
    """What became of a run that one rank does alone.

    ranks: that it would have had, which RANKS_ENV tells the script. batch_size: of a micro-batch. grad_accum:
    micro-batches a step; both None for a script, which decides itself.
    strategy: in use, None for a script; asked: the one in whose place it is used.
    """

    ranks: int
    grad_accum: int | None = None
    strategy: str | None = None
    asked: str | None = None
    kind: str = "single"
    batch_size: int | None = None

    def table(self) -> list[str]:
        """Samples a step with all ranks and here, as lines of a table."""
        if self.grad_accum is not None and self.batch_size is not None:
            return effective_batches(self.ranks, self.grad_accum // self.ranks, self.batch_size)
        lines = [
            f"{'accumulation':>12}  {'here':>5}  samples a step, with a batch per rank of",
            f"{'of script':>12}  {'':5}" + "".join(f"  {batch:>6}" for batch in _BATCHES),
        ]
        for steps in _ACCUMULATIONS:
            here = steps * self.ranks
            lines.append(f"{steps:>12}  {here:>5}" + "".join(f"  {here * batch:>6}" for batch in _BATCHES))
        return lines

    def line(self) -> str:
        """What was changed, and what is left to the user."""
        start = f"fallback: one rank in the place of {self.ranks}"
        if self.grad_accum is None:
            return (
                f"{start}; the script decides on its batch: for the same samples a step multiply its gradient "
                f"accumulation by {self.ranks}, with an option of its own or by {RANKS_ENV}, which says {self.ranks} "
                "(traceops's callbacks for Hugging Face and Lightning do so)"
            )
        strategy = f"strategy {self.strategy}"
        if self.asked != self.strategy:
            strategy += f" for {self.asked}"
        return f"{start}, with the same samples a step: {strategy}, gradient accumulation {self.grad_accum}"


def alone(config: TrainConfig, ranks: int) -> tuple[TrainConfig, Fallback]:
    """`config` for one rank that does what `ranks` would do.

    All ranks' shares of the data, which are every n-th sample of one order, are one piece of that order a step:
    the same samples in other micro-batches, so the same gradient but for rounding (and dropout).

    Raises UsageError where profiler steps are micro-batches, and where ranks share a copy of the model.
    """
    if config.step_unit == "batch":
        raise UsageError(
            "--fallback single with --step-unit batch: a micro-batch would be another share of a step; "
            "leave --step-unit out"
        )
    if config.strategy in MESHES:
        raise UsageError(
            f"--fallback single: the ranks of {config.strategy} share a model, which one rank cannot train in the same "
            "way; use a data-parallel or sharded strategy"
        )
    changed = replace(config, strategy=STRATEGY, grad_accum=config.grad_accum * ranks, shard_group_size=None)
    return changed, Fallback(ranks, changed.grad_accum, STRATEGY, config.strategy, batch_size=config.batch_size)


def stands_for(nproc: int | None, nnodes: int, node_rank: int | None, told: int | None, here: int) -> int:
    """Ranks that the run would have had.

    nproc, nnodes, node_rank: as asked for. told: ranks that the doctor's file names. here: ranks that this machine
    would have of itself. Raises UsageError on any node but the first, and for less than one rank.
    """
    if node_rank:
        raise UsageError(f"--fallback single --node-rank {node_rank}: start it once, on the first node only")
    ranks = nproc * nnodes if nproc is not None else told if told is not None else here * nnodes
    if ranks < 1:
        raise UsageError("--nproc and --nnodes must be 1 or more")
    return ranks
