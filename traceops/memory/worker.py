"""A process of its own that trains on fake tensors: `python -m traceops.memory.worker`.

It reads a request a line from its standard input and answers each with a line of JSON; what libraries print goes to
standard error. With a `ScriptRequest` in JSON on its command line it runs that script.
"""

from __future__ import annotations

import os
import sys

import msgspec

from traceops.core.claims import reason
from traceops.core.errors import TraceopsError
from traceops.core.installation import uncollected
from traceops.memory.model import RankMemory, ScriptRequest
from traceops.train.config import TrainConfig


class DryRunRequest(msgspec.Struct):
    """Train `config` as each of `ranks`, of `world_size`."""

    config: TrainConfig
    ranks: list[int]
    world_size: int
    workspaces: dict[str, int]


class DryRunAnswer(msgspec.Struct):
    """What the ranks would need; `problem` where the training cannot be run so."""

    ranks: list[RankMemory] = []
    parameters: int = 0
    values_read: int = 0
    problem: str = ""


def answer(request: DryRunRequest) -> DryRunAnswer:
    """Run what is asked for. What the training raises is the answer's problem."""
    from traceops.memory.allocator import expandable_segments, summarize
    from traceops.memory.dry_run import dry_run

    found = DryRunAnswer()
    try:
        for rank in request.ranks:
            run = dry_run(request.config, rank, request.world_size, request.workspaces)
            found.ranks.append(summarize(rank, run.events, expandable_segments()))
            found.parameters, found.values_read = run.parameters, max(found.values_read, run.values_read)
    except TraceopsError as error:
        return DryRunAnswer(problem=str(error))
    except Exception as error:  # of torch or of a model, which may raise anything
        said = str(error).strip().split("\n")[0]
        return DryRunAnswer(problem=reason("gpu_memory", "raised", error=type(error).__name__, said=said or "nothing"))
    return found


def main() -> None:
    """Run the script that is asked for, or answer until standard input ends."""
    if sys.argv[1:]:
        with uncollected():
            from traceops.memory.script_worker import Rehearsal
        Rehearsal(msgspec.json.decode(sys.argv[1], type=ScriptRequest)).run()
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)  # out of reach of what torch imports
        with uncollected():
            import traceops.memory.dry_run  # noqa: F401
        for line in sys.stdin.buffer:
            out.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=DryRunRequest))) + b"\n")


if __name__ == "__main__":
    main()
