"""What is asked of the process that runs a script on fake tensors, and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from traceops.memory.model import RankMemory

# What of the script was left out or done otherwise; words for it are in script.py.
Note = Literal["compiled", "saved", "workers", "network", "ended_early", "hooked"]
# Why it could not be run: a shape that depends on values, an operator without a fake kernel, data that is not there,
# the network, no GPU used, no step of an optimizer, the script's own end, no code to run, another error.
Trouble = Literal["shape", "operator", "data", "network", "no_gpu", "no_step", "left", "not_loaded", "raised"]


class ScriptRequest(msgspec.Struct):
    """Run ``SCRIPT ARGS`` or ``-m MODULE ARGS`` as `rank` of `world_size` until `steps` training steps are over.

    gpus: of a host. memory: of each, in bytes. answer: the file for a `ScriptAnswer` in JSON.
    """

    words: list[str]
    rank: int
    world_size: int
    gpus: int
    memory: int
    steps: int
    workspaces: dict[str, int]
    answer: str


class ScriptProblem(msgspec.Struct):
    """`place` is FILE:LINE of the script, "" where it has none in the trace; `said` the error's own first line."""

    trouble: Trouble
    place: str = ""
    source: str = ""
    said: str = ""


class ScriptAnswer(msgspec.Struct):
    """Peaks of the rank, or why there are none."""

    rank: RankMemory | None = None
    parameters: int = 0
    steps: int = 0
    values_read: int = 0
    notes: list[Note] = []
    problem: ScriptProblem | None = None


def environment(request: ScriptRequest) -> dict[str, str]:
    """What torchrun would set for the rank."""
    local = request.rank % request.gpus
    hosts = -(-request.world_size // request.gpus)
    return {
        "RANK": str(request.rank), "WORLD_SIZE": str(request.world_size),
        "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(min(request.gpus, request.world_size)),
        "GROUP_RANK": str(request.rank // request.gpus), "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_RANK": str(request.rank), "ROLE_WORLD_SIZE": str(request.world_size), "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "memory",
    }  # fmt: skip
