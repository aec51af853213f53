"""What `traceops run` says of a run that ran out of GPU memory: what held it, and what would fit."""

from __future__ import annotations

import argparse
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from traceops.core.claims import Wording
from traceops.core.errors import TraceopsError
from traceops.core.installation import bundled
from traceops.core.units import gib_text
from traceops.hangs.crashes import Crash
from traceops.hangs.stack_activity import phase_of
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.launch.plan import Plan
from traceops.memory.estimate import NOT_FAKED, EstimateRequest, estimate, worker
from traceops.memory.model import MemoryEstimate
from traceops.render.document import Block, text
from traceops.render.memory import describe_changes, describe_less, describe_ran_out, headline
from traceops.render.writers.terminal import write_terminal
from traceops.traces.ran_out import ranks_that_ran_out
from traceops.train.config import TrainConfig
from traceops.train.options import add_training_arguments, config_from

_text = Wording("launch", "memory")
_WIDTHS = (40, 100)
_WITHIN_S = 30.0  # for the changes that are tried: the user waits for the prompt
_LIMIT_S = 90.0  # for all of it


def report_out_of_memory(plan: Plan, crash: Crash, screen: Screen) -> None:
    """Say it on stderr, below the cause."""
    found = ranks_that_ran_out(plan.out)
    first = next((one for one in found if one.rank in crash.ranks), found[0] if found else None)
    blocks: list[Block] = []
    if first is not None:
        blocks += describe_ran_out(first, phase_of(crash.event.frames), named=first.rank not in crash.ranks)
        others = len(found) - 1 or None
        blocks.append(text(_text("all_held", others=others, out=short_path(plan.out)), indent=(2, 2)))
    _show(blocks, screen)
    capacity = first.total if first is not None else None if crash.memory is None else crash.memory.total
    if (config := _config(plan)) is None:
        rank = first.rank if first is not None else min(crash.ranks, default=0)
        less = [] if first is None else describe_less(first, plan.cluster.world_size)
        of_rank = ["--rank", str(rank)] if rank else []
        command = shlex.join(["traceops", "memory", "--nproc", str(plan.cluster.world_size), *of_rank])
        words = _text("try_script", command=command, capacity=_size(capacity), trains=shlex.join(plan.trains))
        _show([*less, text(words, indent=(2, 2))], screen)
    elif capacity is not None and config.strategy not in NOT_FAKED:
        screen.say(_text("estimating"))
        _show(_fits(config, plan.cluster.world_size, capacity), screen)


def _show(blocks: Sequence[Block], screen: Screen) -> None:
    if blocks:
        with screen.paused():
            write_terminal(list(blocks), sys.stderr, widths=_WIDTHS)


def _config(plan: Plan) -> TrainConfig | None:
    """The options of a built-in training; None of a script."""
    try:
        if not plan.trains or Path(plan.trains[0]) != bundled("runners", "train.py"):
            return None
        parser = argparse.ArgumentParser(exit_on_error=False)
        add_training_arguments(parser)
        return config_from(parser.parse_args(plan.trains[1:]))
    except (TraceopsError, argparse.ArgumentError, OSError):
        return None


def _fits(config: TrainConfig, world_size: int, capacity: int) -> list[Block]:
    """The estimate of the training, and what would make it fit; each change is estimated, as far as the time goes."""
    try:
        found = _estimated(EstimateRequest(config, world_size, capacity), _LIMIT_S)
    except TraceopsError as error:
        return [text(_text("not_known", error=error), look="soft", indent=(2, 2))]
    blocks: list[Block] = [text(headline(found), indent=(2, 2)), *describe_changes(found.changes)]
    if found.verdict in ("does_not_fit", "too_close") and not any(one.verdict == "fits" for one in found.changes):
        command = shlex.join(["traceops", "memory", *found.command[2:]])
        blocks.append(text(_text("try_all", command=command, capacity=_size(capacity)), indent=(2, 2)))
    return blocks


def _estimated(asked: EstimateRequest, limit_s: float) -> MemoryEstimate:
    with worker() as helper:
        timer = threading.Timer(limit_s, helper.end)
        timer.daemon = True
        timer.start()
        try:
            return estimate(asked, helper, within_s=_WITHIN_S)
        finally:
            timer.cancel()


def _size(capacity: int | None) -> str:
    return "" if capacity is None else gib_text(capacity).replace(" ", "")
