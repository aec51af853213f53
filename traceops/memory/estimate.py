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
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from traceops.core.as_module import command_of
from traceops.core.claims import phrases, reason
from traceops.core.errors import InputError, UsageError
from traceops.core.torch_here import require_torch
from traceops.memory.changes import Peak, best_first, blocks_of, changes_of, fewest, words_of
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


class Proposal(Struct, frozen=True, eq=False):
    """A training with something changed: `options` are those of `traceops run` to give, `fields` what they set. name:
    the key of the change in words/changes.ini. late: tried only where no other change alone is enough, as kernels get
    small, the model sees shorter samples, or something has to be installed."""

    name: str
    fields: dict[str, Any]
    late: bool = False

    @property
    def options(self) -> list[str]:
        """As they are typed."""
        words: list[str] = []
        for field, value in self.fields.items():
            words += ["--" + field.replace("_", "-"), *([] if value is True else [str(value)])]
        return words


def together(made: Sequence[Proposal]) -> list[Proposal]:
    """Those that count of changes made in turn: of two that set the same field, the later one."""
    return [one for i, one in enumerate(made) if not any(one.fields.keys() & later.fields for later in made[i + 1 :])]


def made_of(config: TrainConfig, made: Sequence[Proposal]) -> TrainConfig:
    """`config` with these changes."""
    return replace(config, **{field: value for one in made for field, value in one.fields.items()})


def proposals(config: TrainConfig, world_size: int) -> list[Proposal]:
    """What may be tried on `config`, cheapest first."""
    sizes = sizes_for(config, "cuda")
    several, batch, samples = world_size > 1, sizes.batch_size, sizes.batch_size * config.grad_accum
    eight_bits_here = find_spec("torchao") is not None
    adam = config.optimizer == "adamw"
    ddp = config.strategy in ("pytorch_ddp", "simple_ddp", "bucket_ddp_async")
    whole = config.strategy in ("pytorch_ddp", "pytorch_zero1", "pytorch_zero2", "pytorch_hsdp")
    half, quarter, one = (
        {"batch_size": size, "grad_accum": samples // size} for size in (batch // 2 or 1, batch // 4 or 1, 1)
    )
    known: tuple[tuple[str, bool, dict[str, Any]], ...] = (
        ("bf16", config.precision == "fp32", {"precision": "bf16"}),
        ("zero1", several and ddp, {"strategy": "pytorch_zero1"}),
        ("half_batch", batch % 2 == 0, half),
        ("shard", several and whole, {"strategy": "pytorch_zero3"}),
        ("adam_8bit", adam and eight_bits_here, {"optimizer": "adamw8bit"}),
        ("checkpoint", not config.activation_checkpointing, {"activation_checkpointing": True}),
        ("quarter_batch", batch > 4 and batch % 4 == 0, quarter),
        ("one_sample", batch > 2, one),
        ("bf16_parameters", config.precision in ("bf16", "fp16", "fp32"), {"precision": "bf16-params"}),
        ("offload", config.strategy in FSDP2 and config.offload == "none", {"offload": "cpu"}),
        ("half_sequence", sizes.seq_len % 2 == 0, {"seq_len": sizes.seq_len // 2}),
        ("adam_8bit", adam and not eight_bits_here, {"optimizer": "adamw8bit"}),
    )
    late = {"quarter_batch", "one_sample", "half_sequence", *(() if eight_bits_here else ("adam_8bit",))}
    return [Proposal(name, fields, name in late) for name, possible, fields in known if possible]


def search(
    found: Iterable[Proposal], tried: Callable[[Sequence[Proposal]], MemoryChange | None], until: float
) -> list[MemoryChange]:
    """Each change alone that saves something, those that fit first; where none is enough, several that are together.
    until: of the monotonic clock; what was found by then is returned."""

    def asked(made: Sequence[Proposal]) -> MemoryChange | None:
        return tried(made) if time.monotonic() < until else None

    def saving(proposals: Iterable[Proposal]) -> dict[Proposal, MemoryChange]:
        changes = {one: asked([one]) for one in proposals}
        return {one: change for one, change in changes.items() if change is not None and change.saves_bytes > 0}

    def enough_of(made: Sequence[Proposal]) -> MemoryChange | None:
        change = asked(made)
        return change if change is not None and change.verdict in enough else None

    found = list(found)
    kept = saving(one for one in found if not one.late)
    enough = ("fits", "unknown") if all(one.verdict == "does_not_fit" for one in kept.values()) else ("fits",)
    if any(change.verdict in enough for change in kept.values()):
        return best_first(list(kept.values()))
    helping = {**kept, **saving(one for one in found if one.late)}
    changes = best_first(list(helping.values()))
    first = fewest([one for one in found if one in helping], enough_of, together)
    return changes if first is None else [first, *changes]


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
            self._log.seek(0)
            printed = self._log.read().decode(errors="replace").strip().splitlines()
            last = printed[-1] if printed else f"exit code {self._process.wait()}"
            raise InputError(f"the process that runs the training on fake tensors ended: {last}")
        return msgspec.json.decode(line, type=DryRunAnswer)

    def end(self) -> None:
        """End it where it stands: whoever waits for an answer is told that there is none."""
        self._process.kill()


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
    within_s: no further change is tried after so many seconds."""
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

        def tried(made: Sequence[Proposal]) -> MemoryChange | None:
            config = made_of(asked.config, made)
            answer = helper.ask(config, asked)
            if answer.problem:
                return None
            most = _most(answer.ranks)
            judged = judge(answer.ranks, outside, asked.capacity, error_of(config))
            return _change(made, most.peak_allocated_bytes, most.peak_reserved_bytes + outside, needed, judged)

        helps = search(proposals(asked.config, asked.world_size), tried, begun + within_s)
    sizes = sizes_for(asked.config, "cuda")
    assumptions = phrases(
        "gpu_memory", "assumptions", "model", samples=sizes.batch_size, tokens=sizes.seq_len,
        any_gpu=asked.gpu is None, several=asked.world_size > 1, compiled=asked.config.optimizer == "adamw8bit",
    )  # fmt: skip
    return estimate_of(
        asked, found.ranks, error, command=_command(asked), strategy=asked.config.strategy,
        parameters=found.parameters, verdict=verdict, changes=helps, assumptions=assumptions,
        seconds=round(time.monotonic() - begun, 3),
    )  # fmt: skip


def outside_torch(world_size: int) -> int:
    """Bytes that a rank needs besides what torch reserves: the context, and NCCL where there are several."""
    return CONTEXT_BYTES + (NCCL_BYTES if world_size > 1 else 0)


def estimate_of(
    asked: EstimateRequest | AskedScript, ranks: Sequence[RankMemory], error: float | None, **said: Any
) -> MemoryEstimate:
    """The estimate of these ranks with what follows from them; `said` are the other fields. error: None where a formula
    stands for a run."""
    outside = outside_torch(asked.world_size)
    reserved = _most(ranks).peak_reserved_bytes
    return MemoryEstimate(
        schema_version=1,
        method="formula" if error is None else "fake_tensors",
        world_size=asked.world_size,
        ranks=list(ranks),
        peak_allocated_bytes=max(rank.peak_allocated_bytes for rank in ranks),
        peak_reserved_bytes=reserved,
        context_bytes=CONTEXT_BYTES,
        nccl_bytes=outside - CONTEXT_BYTES,
        device_bytes=reserved + outside,
        error_share=error,
        capacity_bytes=asked.capacity,
        spare_bytes=None if asked.capacity is None else asked.capacity - reserved - outside,
        **said,
    )


def from_formula(parameters: float, asked: EstimateRequest) -> MemoryEstimate:
    """What `parameters` parameters need at least: without activations nobody can say that they fit. Raises UsageError
    where the number alone does not tell what a rank holds of them."""
    if asked.config.strategy in MESHES:
        raise UsageError(
            f"--params is not enough for {asked.config.strategy}: how many of the parameters a rank holds "
            "depends on the model; leave --params out, or take another --strategy"
        )
    outside = outside_torch(asked.world_size)

    def changed(made: Sequence[Proposal]) -> MemoryChange:
        # Activations are left out, so that a change may fit, and none does for certain.
        held = rank_of(parameters, made_of(asked.config, made), asked.world_size).peak_reserved_bytes
        too_much = asked.capacity is not None and held + outside > asked.capacity
        return _change(made, held, held + outside, needed, "does_not_fit" if too_much else "unknown")

    rank = rank_of(parameters, asked.config, asked.world_size)
    needed = rank.peak_reserved_bytes + outside
    too_much = asked.capacity is not None and needed > asked.capacity
    changes = search(proposals(asked.config, asked.world_size), changed, math.inf) if too_much else []
    return estimate_of(
        asked, [rank], None, command=_command(asked), strategy=asked.config.strategy, parameters=round(parameters),
        verdict="does_not_fit" if too_much else "unknown", changes=changes, seconds=0.0,
        assumptions=[reason("gpu_memory", "only_parameters")],
    )  # fmt: skip


def _command(asked: EstimateRequest) -> list[str]:
    return ["traceops", "run", "--nproc", str(asked.world_size), *to_argv(asked.config)]


def judge(ranks: Sequence[RankMemory], outside: int, capacity: int | None, error: float) -> Verdict:
    """Whether the `ranks` fit into `capacity` bytes, of which `outside` are not torch's. Where what torch reserves does
    not fit it gives its cache back, as far as that is whole segments: so only what tensors hold tells that a training
    does not fit. Where the margin is below the estimate's own error, `error` as a share, nobody can tell."""
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


def _change(made: Sequence[Proposal], allocated: int, device: int, needed: int, verdict: Verdict) -> MemoryChange:
    name, cost = words_of([one.name for one in made])
    options = [word for one in made for word in one.options]
    return MemoryChange(name, options, allocated, device, needed - device, cost, verdict)


def _most(ranks: Sequence[RankMemory]) -> RankMemory:
    return max(ranks, key=lambda rank: rank.peak_reserved_bytes)


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
    helps: list[MemoryChange] = []
    if verdict in ("does_not_fit", "too_close"):
        held = {row.name: float(row.held_bytes) for row in rank.categories}
        cached = rank.peak_reserved_bytes - rank.peak_allocated_bytes
        peak = Peak(
            held, rank.peak_allocated_bytes, outside + cached, asked.world_size, answer.parameters,
            blocks_of(rank.activations),
        )  # fmt: skip
        helps = changes_of(peak, asked.capacity, SCRIPT_ERROR)
    assumptions = phrases(
        "gpu_memory", "assumptions", "script", rank=asked.rank, steps=answer.steps if answer.steps > 1 else None,
        values=answer.values_read or None, any_gpu=asked.gpu is None, several=asked.world_size > 1,
        **dict.fromkeys(answer.notes, True),
    )  # fmt: skip
    return estimate_of(
        asked, [rank], SCRIPT_ERROR, command=["traceops", "run", "--nproc", str(asked.world_size), "--", *asked.words],
        strategy="script", parameters=answer.parameters, verdict=verdict, changes=helps,
        assumptions=assumptions, seconds=round(time.monotonic() - begun, 3),
    )  # fmt: skip


def _rehearse(asked: AskedScript) -> tuple[ScriptAnswer | None, str]:
    """The answer of the process, and the last line that it printed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        path = Path(folder, "answer.json")
        request = ScriptRequest(
            list(asked.words), asked.rank, asked.world_size, GPUS_A_HOST,
            asked.capacity or hardware_of("H200").capacity, asked.steps, workspaces_of(asked.gpu), str(path),
        )  # fmt: skip
        command = [*command_of("traceops.memory.worker"), msgspec.json.encode(request).decode()]
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
    lines = [f"{problem.place or _name(asked)}: {what}", *(f"  {one}" for one in (problem.source, problem.said) if one)]
    if log and problem.trouble == "left" and log not in problem.said:
        lines.append(f"  It printed last: {log[:_MOST_PRINTED]}")
    return "\n".join([*lines, f"To go on: {then}."])
