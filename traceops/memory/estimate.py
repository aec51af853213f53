"""Asks a process what a training or a script would need of a GPU, and judges whether it fits.

It looks for changes that make it fit. Both run on fake tensors, in a process of their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from traceops.core.as_module import command_of
from traceops.core.claims import phrases, reason
from traceops.core.errors import InputError, UsageError
from traceops.core.torch_here import require_torch
from traceops.memory.changes import Peak, best_first, blocks_of, changes_of, words_of
from traceops.memory.gpus import hardware_of, workspaces_of
from traceops.memory.model import (
    CONTEXT_BYTES,
    NCCL_BYTES,
    CategoryMemory,
    MemoryChange,
    MemoryEstimate,
    RankMemory,
    ScriptAnswer,
    ScriptProblem,
    ScriptRequest,
    Trouble,
    Verdict,
)
from traceops.memory.worker import DryRunAnswer, DryRunRequest
from traceops.train.config import TrainConfig, sizes_for
from traceops.train.options import to_argv
from traceops.train.strategies import FSDP2, MESHES

# What a training needs where only the number of parameters is known: a formula, without activations.


_WEIGHT = {"bf16-params": 2, "fp64": 8}
_STATES = {"sgd": 1, "adamw": 2}


def rank_of(parameters: float, config: TrainConfig, world_size: int) -> RankMemory:
    """Parameters, gradients and optimizer state of one of `world_size` ranks; activations are not in it."""
    weight = _WEIGHT.get(config.precision, 4)
    parts = {"parameters": 1, "gradients": 1, "optimizer_state": 1}
    if config.strategy in ("zero3", "pytorch_zero3", "pytorch_zero2"):
        parts = dict.fromkeys(parts, world_size)
    elif config.strategy in ("zero1", "pytorch_zero1"):
        parts["optimizer_state"] = world_size
    elif config.strategy == "zero2":
        parts["gradients"] = parts["optimizer_state"] = world_size
    elif config.strategy == "pytorch_hsdp":
        parts = dict.fromkeys(parts, config.shard_group_size or world_size)
    state = 2 * (1 + 4 / 256) if config.optimizer == "adamw8bit" else _STATES[config.optimizer] * weight
    sizes = {"parameters": weight, "gradients": weight, "optimizer_state": state}
    held = {name: round(parameters * size / parts[name]) for name, size in sizes.items()}
    if config.strategy == "pytorch_zero2":  # parameters stay gathered from forward to backward
        held["sharding_buffers"] = round(parameters * (4 if config.precision == "fp32" else min(weight, 2)))
    if config.offload == "cpu":
        held = dict.fromkeys(held, 0)
    total = sum(held.values())
    return RankMemory(
        rank=0, peak_allocated_bytes=total, peak_reserved_bytes=total,
        least_allocated_bytes=total, least_reserved_bytes=total,
        categories=[CategoryMemory(name, size) for name, size in held.items()],
        activations=[], peak_step=0, peak_phase="optimizer", peak_module="", peak_operation="",
        peak_operation_bytes=0,
    )  # fmt: skip


# Changes of a built-in training's options, cheapest in time first: each is estimated as the training is.


class Proposal(Struct, frozen=True):
    """A training with something changed: `options` are those of `traceops run` to give, `fields` what they set.

    names: the keys of the changes in words/changes.ini.
    """

    names: tuple[str, ...]
    options: tuple[str, ...]
    config: TrainConfig
    fields: tuple[tuple[str, Any], ...]

    def then(self, other: Proposal) -> Proposal | None:
        """Both changes; None where they set the same field."""
        if {name for name, _ in self.fields} & {name for name, _ in other.fields}:
            return None
        return Proposal(
            self.names + other.names,
            self.options + other.options,
            replace(self.config, **dict(other.fields)),
            self.fields + other.fields,
        )


def proposals(config: TrainConfig, world_size: int) -> list[Proposal]:
    """What may be tried on `config`, cheapest first."""
    found: list[Proposal] = []

    def add(name: str, **fields: Any) -> None:
        options: list[str] = []
        for field, value in fields.items():
            options += ["--" + field.replace("_", "-"), *([] if value is True else [str(value)])]
        found.append(Proposal((name,), tuple(options), replace(config, **fields), tuple(fields.items())))

    sizes = sizes_for(config, "cuda")
    several = world_size > 1
    if config.precision == "fp32":
        add("bf16", precision="bf16")
    if several and config.strategy in ("pytorch_ddp", "simple_ddp", "bucket_ddp_async"):
        add("zero1", strategy="pytorch_zero1")
    if sizes.batch_size % 2 == 0:
        add("half_batch", batch_size=sizes.batch_size // 2, grad_accum=2 * config.grad_accum)
    if several and config.strategy in ("pytorch_ddp", "pytorch_zero1", "pytorch_zero2", "pytorch_hsdp"):
        add("shard", strategy="pytorch_zero3")
    eight_bits_here = find_spec("torchao") is not None
    if config.optimizer == "adamw" and eight_bits_here:
        add("adam_8bit", optimizer="adamw8bit")
    if not config.activation_checkpointing:
        add("checkpoint", activation_checkpointing=True)
    if config.precision in ("bf16", "fp32"):
        add("bf16_parameters", precision="bf16-params")
    if config.strategy in FSDP2 and config.offload == "none":
        add("offload", offload="cpu")
    if config.optimizer == "adamw" and not eight_bits_here:  # what runs as things are comes first
        add("adam_8bit", optimizer="adamw8bit")
    if sizes.seq_len % 2 == 0:
        add("half_sequence", seq_len=sizes.seq_len // 2)
    return found


def search(
    found: Iterable[Proposal], tried: Callable[[Proposal], MemoryChange | None], until: float
) -> list[MemoryChange]:
    """Each change alone that saves something, those that fit first; where none is enough, several that are together.

    until: of the monotonic clock; what was found by then is returned.
    """
    helping: list[Proposal] = []
    changes: list[MemoryChange] = []
    for proposal in found:
        change = tried(proposal) if time.monotonic() < until else None
        if change is not None and change.saves_bytes > 0:
            changes.append(change)
            helping.append(proposal)
    # Half the sequence trains something else: what keeps the samples comes before it.
    kept = [change for one, change in zip(helping, changes, strict=True) if one.names != ("half_sequence",)]
    enough = ("fits", "unknown") if all(change.verdict == "does_not_fit" for change in kept) else ("fits",)
    if any(change.verdict in enough for change in kept) or len(helping) < 2:
        return best_first([*kept, *(change for change in changes if change not in kept)])
    together = helping[0]
    for proposal in helping[1:]:
        if (joined := together.then(proposal)) is None:
            continue
        if time.monotonic() > until:
            break
        together = joined
        if (change := tried(together)) is not None and change.verdict in enough:
            return [change, *best_first(changes)]
    return best_first(changes)


NEEDS_TORCH = "estimating the memory of a training"
# What these would do needs values: which tokens an expert gets, or a partner's answer.
NOT_FAKED = {
    "expert_parallel": "how many tokens an expert gets depends on their values",
    "pytorch_pp": "its stages tell each other their shapes over the network",
    "pytorch_cp": "torch has its ring attention for GPUs only",
}
# Strategies whose peaks were measured on GPUs and estimated (docs/memory.md), and the largest error there, of the
# reserved bytes. Others, and models of transformers, were not measured: there the margin is wider.
MEASURED = frozenset(
    {"simple_ddp", "pytorch_ddp", "pytorch_zero1", "pytorch_zero2", "pytorch_zero3", "pytorch_hsdp", "zero3"}
)
# Of pytorch_tp 7 % of what was reserved was missing, and of FSDP2 with bf16-params 5 %: they are among the others.
_PRECISIONS = frozenset({"bf16", "fp16", "fp32"})
MEASURED_ERROR, OTHER_ERROR = 0.02, 0.10
_MOST_RANKS = 8  # that are run one by one where they differ


class EstimateRequest(Struct, frozen=True):
    """A training of `world_size` ranks on GPUs of `capacity` bytes (None: not told) called `gpu`."""

    config: TrainConfig
    world_size: int
    capacity: int | None = None
    gpu: str | None = None


class Worker:
    """A process with torch, which answers one request after the other."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    def ask(self, config: TrainConfig, asked: EstimateRequest) -> DryRunAnswer:
        """What the ranks of `config` need. Raises InputError where the process ends without an answer."""
        differ = config.strategy == "pytorch_zero1"
        ranks = list(range(min(asked.world_size, _MOST_RANKS))) if differ else [0]
        request = DryRunRequest(config, ranks, asked.world_size, workspaces_of(asked.gpu))
        assert self._process.stdin is not None and self._process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise InputError(f"the process that runs the training on fake tensors ended: {self._last_words()}")
        return msgspec.json.decode(line, type=DryRunAnswer)

    def end(self) -> None:
        """End it where it stands: whoever waits for an answer is told that there is none."""
        self._process.kill()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.wait()}"


@contextmanager
def worker() -> Iterator[Worker]:
    """A worker that ends with the block. Raises UsageError where torch is not installed."""
    require_torch(NEEDS_TORCH)
    command = command_of("traceops.memory.worker")
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            yield Worker(process, log)
        finally:
            process.kill()


def estimate(
    asked: EstimateRequest, helper: Worker, *, changes: bool = True, within_s: float = float("inf")
) -> MemoryEstimate:
    """What the training needs, and where it does not fit what would help. Raises UsageError for what cannot be run.

    within_s: no further change is tried after so many seconds.
    """
    begun = time.monotonic()
    if asked.config.strategy in NOT_FAKED:
        raise UsageError(f"{asked.config.strategy} cannot be estimated: {NOT_FAKED[asked.config.strategy]}")
    found = helper.ask(asked.config, asked)
    if found.problem:
        raise UsageError(found.problem)
    outside = outside_torch(asked.world_size)
    error = error_of(asked.config)
    verdict = judge(found.ranks, outside, asked.capacity, error)
    helps: list[MemoryChange] = []
    if changes and verdict in ("does_not_fit", "too_close"):
        needed = _most(found.ranks).peak_reserved_bytes + outside
        tried = partial(_tried, asked=asked, helper=helper, needed=needed, outside=outside)
        helps = search(proposals(asked.config, asked.world_size), tried, begun + within_s)
    return estimate_of(
        found.ranks,
        command=_command(asked),
        strategy=asked.config.strategy,
        world_size=asked.world_size,
        parameters=found.parameters,
        error=error,
        capacity=asked.capacity,
        verdict=verdict,
        changes=helps,
        assumptions=_assumptions(asked),
        seconds=time.monotonic() - begun,
    )


def outside_torch(world_size: int) -> int:
    """Bytes that a rank needs besides what torch reserves: the context, and NCCL where there are several."""
    return CONTEXT_BYTES + (NCCL_BYTES if world_size > 1 else 0)


def estimate_of(
    ranks: Sequence[RankMemory],
    *,
    command: list[str],
    strategy: str,
    world_size: int,
    parameters: int,
    error: float | None,
    capacity: int | None,
    verdict: Verdict,
    assumptions: list[str],
    changes: Sequence[MemoryChange] = (),
    seconds: float = 0.0,
) -> MemoryEstimate:
    """The estimate of these ranks, with what follows from them. error: None where a formula stands for a run."""
    outside = outside_torch(world_size)
    reserved = _most(ranks).peak_reserved_bytes
    return MemoryEstimate(
        schema_version=1,
        command=command,
        method="formula" if error is None else "fake_tensors",
        strategy=strategy,
        world_size=world_size,
        parameters=parameters,
        ranks=list(ranks),
        peak_allocated_bytes=max(rank.peak_allocated_bytes for rank in ranks),
        peak_reserved_bytes=reserved,
        context_bytes=CONTEXT_BYTES,
        nccl_bytes=outside - CONTEXT_BYTES,
        device_bytes=reserved + outside,
        error_share=error,
        capacity_bytes=capacity,
        verdict=verdict,
        spare_bytes=None if capacity is None else capacity - reserved - outside,
        changes=list(changes),
        assumptions=assumptions,
        seconds=round(seconds, 3),
    )


def from_formula(parameters: float, asked: EstimateRequest) -> MemoryEstimate:
    """What `parameters` parameters need at least: without activations nobody can say that they fit.

    Raises UsageError where the number alone does not tell what a rank holds of them.
    """
    if asked.config.strategy in MESHES:
        raise UsageError(
            f"--params is not enough for {asked.config.strategy}: how many of the parameters a rank holds "
            "depends on the model; leave --params out, or take another --strategy"
        )
    outside = outside_torch(asked.world_size)

    def changed(proposal: Proposal) -> MemoryChange:
        # Activations are left out, so that a change may fit, and none does for certain.
        held = rank_of(parameters, proposal.config, asked.world_size).peak_reserved_bytes
        name, cost = words_of(proposal.names)
        return MemoryChange(
            name=name,
            options=list(proposal.options),
            peak_allocated_bytes=held,
            device_bytes=held + outside,
            saves_bytes=needed - held - outside,
            cost=cost,
            verdict="does_not_fit" if asked.capacity is not None and held + outside > asked.capacity else "unknown",
        )

    rank = rank_of(parameters, asked.config, asked.world_size)
    needed = rank.peak_reserved_bytes + outside
    too_much = asked.capacity is not None and needed > asked.capacity
    return estimate_of(
        [rank],
        command=_command(asked),
        strategy=asked.config.strategy,
        world_size=asked.world_size,
        parameters=round(parameters),
        error=None,
        capacity=asked.capacity,
        verdict="does_not_fit" if too_much else "unknown",
        changes=search(proposals(asked.config, asked.world_size), changed, math.inf) if too_much else (),
        assumptions=[reason("gpu_memory", "only_parameters")],
    )


def _command(asked: EstimateRequest) -> list[str]:
    return ["traceops", "run", "--nproc", str(asked.world_size), *to_argv(asked.config)]


def judge(ranks: Sequence[RankMemory], outside: int, capacity: int | None, error: float) -> Verdict:
    """Whether the `ranks` fit into `capacity` bytes, of which `outside` are not torch's.

    Where what torch reserves does not fit it gives its cache back, as far as that is whole segments: so only what
    tensors hold tells that a training does not fit. Where the margin is below the estimate's own error, `error` as a
    share, nobody can tell.
    """
    if capacity is None:
        return "unknown"
    if all(rank.peak_reserved_bytes * (1 + error) + outside <= capacity for rank in ranks):
        return "fits"
    if any(rank.least_allocated_bytes * (1 - error) + outside > capacity for rank in ranks):
        return "does_not_fit"
    return "too_close"


def error_of(config: TrainConfig) -> float:
    """The error to reckon with, as a share: measured where the strategy was, else wider."""
    plain = config.model == "gpt" and config.offload == "none" and config.optimizer != "adamw8bit"
    measured = config.strategy in MEASURED and config.precision in _PRECISIONS and plain
    # Accumulation was measured too, and up to 5.9 % of what was reserved was missing.
    return MEASURED_ERROR if measured and config.grad_accum == 1 else OTHER_ERROR


def _tried(
    proposal: Proposal, *, asked: EstimateRequest, helper: Worker, needed: int, outside: int
) -> MemoryChange | None:
    answer = helper.ask(proposal.config, asked)
    if answer.problem:
        return None
    most = _most(answer.ranks)
    device = most.peak_reserved_bytes + outside
    name, cost = words_of(proposal.names)
    return MemoryChange(
        name=name,
        options=list(proposal.options),
        peak_allocated_bytes=most.peak_allocated_bytes,
        device_bytes=device,
        saves_bytes=needed - device,
        cost=cost,
        verdict=judge(answer.ranks, outside, asked.capacity, error_of(proposal.config)),
    )


def _most(ranks: Sequence[RankMemory]) -> RankMemory:
    return max(ranks, key=lambda rank: rank.peak_reserved_bytes)


def _assumptions(asked: EstimateRequest) -> list[str]:
    sizes = sizes_for(asked.config, "cuda")
    return phrases(
        "gpu_memory",
        "assumptions",
        "model",
        samples=sizes.batch_size,
        tokens=sizes.seq_len,
        any_gpu=asked.gpu is None,
        several=asked.world_size > 1,
        compiled=asked.config.optimizer == "adamw8bit",
    )


GPUS_A_HOST = 8
_MOST_PRINTED = 300  # characters of a line
STEPS = 2  # the second has the optimizer's state, and the buckets that DDP makes anew
# Of scripts that were measured on GPUs and estimated (docs/memory.md), where kernels are torch's own.
SCRIPT_ERROR = 0.10

_RUN = "run it on a GPU with traceops run --with-memory instead"
_TROUBLES: dict[Trouble, tuple[str, str]] = {
    "shape": (
        "a shape depends on values, which fake tensors do not have",
        f"for the estimate, let the shape be fixed there (such as a mask in place of an index), or {_RUN}",
    ),
    "operator": ("an operator has no fake kernel", f"register one with torch.library.register_fake, or {_RUN}"),
    "data": ("something reads the data of a tensor on the GPU, which a fake one does not have", _RUN),
    "network": (
        "it needs the network, which an estimate does not use",
        "fetch what it loads first, then estimate again",
    ),
    "no_gpu": (
        "it put nothing on a GPU",
        "torch.cuda.is_available() is true in an estimate; see what keeps the script on the CPU all the same",
    ),
    "no_step": (
        "it ended before an optimizer made a step",
        "give it arguments with which it trains; steps are found by torch's optimizers",
    ),
    "left": ("it ended itself with an error", "see what it asks for, and give it as arguments"),
    "not_loaded": (
        "Python cannot load it, or what it imports",
        "fix that, or install what is missing beside traceops, then estimate again",
    ),
    "raised": ("it raised an error on fake tensors", _RUN),
}


class AskedScript(Struct, frozen=True):
    """``SCRIPT ARGS`` or ``-m MODULE ARGS`` as `rank` of `world_size` on GPUs of `capacity` bytes called `gpu`."""

    words: Sequence[str]
    world_size: int
    rank: int = 0
    capacity: int | None = None
    gpu: str | None = None
    steps: int = STEPS


def estimate_script(asked: AskedScript) -> MemoryEstimate:
    """What the rank needs. Raises UsageError, which says where and what to do, for what cannot be run so."""
    require_torch(NEEDS_TORCH)
    begun = time.monotonic()
    answer, log = _rehearse(asked)
    if answer is None:
        raise UsageError(f"{_name(asked)}: the process that ran it on fake tensors ended: {log}")
    if answer.problem is not None:
        raise UsageError(_said(answer.problem, asked, log))
    rank = answer.rank
    assert rank is not None
    outside = outside_torch(asked.world_size)
    verdict = judge([rank], outside, asked.capacity, SCRIPT_ERROR)
    helps: Sequence[MemoryChange] = ()
    if verdict in ("does_not_fit", "too_close"):
        held = {row.name: float(row.held_bytes) for row in rank.categories}
        cached = rank.peak_reserved_bytes - rank.peak_allocated_bytes
        peak = Peak(
            held, rank.peak_allocated_bytes, outside + cached, asked.world_size, answer.parameters,
            blocks_of(rank.activations),
        )  # fmt: skip
        helps = changes_of(peak, asked.capacity, SCRIPT_ERROR)
    return estimate_of(
        [rank],
        command=["traceops", "run", "--nproc", str(asked.world_size), "--", *asked.words],
        strategy="script",
        world_size=asked.world_size,
        parameters=answer.parameters,
        error=SCRIPT_ERROR,
        capacity=asked.capacity,
        verdict=verdict,
        changes=helps,
        assumptions=_script_assumptions(asked, answer),
        seconds=time.monotonic() - begun,
    )


def _rehearse(asked: AskedScript) -> tuple[ScriptAnswer | None, str]:
    """The answer of the process, and the last line that it printed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        path = Path(folder, "answer.json")
        request = ScriptRequest(
            list(asked.words), asked.rank, asked.world_size, GPUS_A_HOST,
            asked.capacity or hardware_of("H200").capacity, asked.steps, workspaces_of(asked.gpu), str(path),
        )  # fmt: skip
        command = [*command_of("traceops.memory.script_process"), msgspec.json.encode(request).decode()]
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ), check=False
        ).returncode
        log.seek(0)
        lines = log.read()[-4096:].decode(errors="replace").strip().splitlines()
        if path.exists():
            return msgspec.json.decode(path.read_bytes(), type=ScriptAnswer), lines[-1] if lines else ""
        return None, lines[-1] if lines else f"exit code {code}"


def _name(asked: AskedScript) -> str:
    return " ".join(asked.words[:2]) if asked.words[0] == "-m" else Path(asked.words[0]).name


def _said(problem: ScriptProblem, asked: AskedScript, log: str = "") -> str:
    """log: the last line that the script printed, which tells more where it ended by itself."""
    what, then = _TROUBLES[problem.trouble]
    lines = [f"{problem.place or _name(asked)}: {what}"]
    if problem.source:
        lines.append(f"  {problem.source}")
    if problem.said:
        lines.append(f"  {problem.said}")
    if log and problem.trouble == "left" and log not in problem.said:
        lines.append(f"  It printed last: {log[:_MOST_PRINTED]}")
    return "\n".join([*lines, f"To go on: {then}."])


def _script_assumptions(asked: AskedScript, answer: ScriptAnswer) -> list[str]:
    return phrases(
        "gpu_memory",
        "assumptions",
        "script",
        rank=asked.rank,
        steps=answer.steps if answer.steps > 1 else None,
        values=answer.values_read or None,
        any_gpu=asked.gpu is None,
        several=asked.world_size > 1,
        **dict.fromkeys(answer.notes, True),
    )
