"""What a script would need of a GPU: it runs in a process of its own, on fake tensors, until enough steps are over."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from traceops.core.as_module import command_of
from traceops.core.errors import UsageError
from traceops.core.torch_here import require_torch
from traceops.memory.estimate import NEEDS_TORCH, estimate_of, judge, outside_torch
from traceops.memory.model import (
    MemoryEstimate,
    Note,
    ScriptAnswer,
    ScriptProblem,
    ScriptRequest,
    Trouble,
    capacity_of,
    workspaces_of,
)

GPUS_A_HOST = 8
_MOST_PRINTED = 300  # characters of a line
STEPS = 2  # the second has the optimizer's state, and the buckets that DDP makes anew
# Of scripts that were measured on GPUs and estimated (docs/memory.md), where kernels are torch's own.
SCRIPT_ERROR = 0.10

_NOTES: dict[Note, str] = {
    "compiled": "torch.compile was left out; compiled, a step often needs less",
    "saved": "torch.save wrote nothing",
    "workers": "data was loaded without workers",
    "network": "connections to other machines were refused",
    "ended_early": "the script ended before the last of the steps that were asked for",
    "hooked": "the communication hook of DistributedDataParallel was left out",
}
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
    return estimate_of(
        [rank],
        command=["traceops", "run", "--nproc", str(asked.world_size), "--", *asked.words],
        strategy="script",
        world_size=asked.world_size,
        parameters=answer.parameters,
        error=SCRIPT_ERROR,
        capacity=asked.capacity,
        verdict=judge([rank], outside_torch(asked.world_size), asked.capacity, SCRIPT_ERROR),
        assumptions=_assumptions(asked, answer),
        seconds=time.monotonic() - begun,
    )


def _rehearse(asked: AskedScript) -> tuple[ScriptAnswer | None, str]:
    """The answer of the process, and the last line that it printed."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        path = Path(folder, "answer.json")
        request = ScriptRequest(
            list(asked.words), asked.rank, asked.world_size, GPUS_A_HOST,
            asked.capacity or capacity_of("H200"), asked.steps, workspaces_of(asked.gpu), str(path),
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


def _assumptions(asked: AskedScript, answer: ScriptAnswer) -> list[str]:
    steps = "training step" if answer.steps == 1 else f"{answer.steps} training steps"
    said = [f"rank {asked.rank}, the first {steps}: what comes later (an evaluation, longer batches) may need more"]
    if answer.values_read:
        said.append(f"values of the GPU that were read ({answer.values_read}) are 1, and none is NaN")
    said += [_NOTES[note] for note in answer.notes]
    if asked.gpu is None:
        said.append("cuBLAS takes 32 MiB a thread, as on Hopper (--gpu NAME)")
    if asked.world_size > 1:
        said.append("NCCL takes 1.05 GiB, as measured with two ranks on NVLink")
    return said
