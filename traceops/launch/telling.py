"""What `traceops run` says when a run has ended: who failed and why, what is kept, and what to do next."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.capture.manifest import RankManifest
from traceops.core.capture_failure import (
    UNSEEN_STEPS_ADVICE,
    ShorterSchedule,
    advice_text,
    by_cause,
    cause_text,
    shorter_schedule,
)
from traceops.core.errors import TraceopsError
from traceops.core.installation import bundled
from traceops.core.rank_files import seldom as seldom_in
from traceops.core.rank_files import usual_ends
from traceops.core.rank_text import who
from traceops.core.units import gib_text
from traceops.core.unrecorded_text import unrecorded_sentences
from traceops.hangs.crashes import Crash
from traceops.hangs.stack_activity import phase_of
from traceops.launch.aside import Aside
from traceops.launch.display import LineSource, Screen, without_chatter
from traceops.launch.ended import EndedRun, early_ends, unrecorded_here
from traceops.launch.evidence import saved_evidence
from traceops.launch.folder import short_path
from traceops.launch.outcome import Failure
from traceops.launch.plan import Plan
from traceops.memory.estimate import NOT_FAKED, EstimateRequest, estimate, worker
from traceops.memory.model import MemoryEstimate
from traceops.render.document import Block, text
from traceops.render.memory import describe_changes, describe_ran_out, headline
from traceops.render.writers.terminal import write_terminal
from traceops.traces.ran_out import RanOut, ranks_that_ran_out
from traceops.train.config import TrainConfig
from traceops.train.options import add_training_arguments, config_from

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis


def steps_told(ranks: Sequence[RankManifest]) -> list[str]:
    """A line for each way of ending a step that some rank had; none where nothing ended a step by itself."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[RankManifest]] = {}
    for rank in ranks:
        if rank.step_ends:
            usual = usual_ends(rank.step_ends, rank.steps_within)
            alike.setdefault((tuple(usual), tuple(rank.steps_within)), []).append(rank)
    lines = []
    for (ends, within), ranks_alike in alike.items():
        whose = "" if len(alike) == 1 else f" on {who([rank.rank for rank in ranks_alike])}"
        one = ranks_alike[0]
        steps = sum(one.step_ends.values())
        seldom = seldom_in(steps, one.steps_within)
        parts = [name for name in within if name not in ends and name not in seldom]
        line = f"a step ends{whose} where {' or '.join(ends)} returns"
        line += f"; {' and '.join(parts)} are within one" if parts else ""
        for name in seldom:
            another = "another optimizer's " if name in ends else ""
            line += f"; {another}{name} runs in {one.steps_within[name]} of {steps}, so steps are of two kinds"
        line += _beside(ranks_alike)
        lines.append(line)
    return lines


def _beside(ranks: Sequence[RankManifest]) -> str:
    """What other threads of these ranks did, which is no step."""
    steps = {rank.rank: sum(rank.steps_beside.values()) for rank in ranks}
    having = [rank for rank, number in steps.items() if number]
    if not having:
        return ""
    most = max(steps.values())
    number = f"{most}" if all(steps[rank] == most for rank in having) else f"up to {most}"
    where = "" if len(having) == len(ranks) else f" on {who(having)}"
    what = "1 step of an optimizer in another thread is" if most == 1 else None
    return f"; {what or f'{number} steps of optimizers in other threads are'} not counted{where}"


def has_whole_steps(rank: RankManifest, out: Path) -> bool:
    """Whether a rank's traces hold a step from its beginning to its end, and lie in the run folder."""
    whole = not rank.windows or any(window.steps for window in rank.windows)
    return whole and any((out / trace).exists() for trace in rank.traces)


def would_fit(ranks: Sequence[RankManifest]) -> ShorterSchedule | None:
    """What would have recorded steps of ranks that finished before their schedule did; None where that is not why."""
    if not ranks or any(rank.status != "finished" for rank in ranks):
        return None
    return shorter_schedule(ranks[0].schedule, min(rank.steps for rank in ranks))


def find_cause(plan: Plan) -> Diagnosis | None:
    """What the run died of, by the ranks' logs; None where nothing tells: the launcher has named the rank already."""
    from traceops.hangs.diagnose import diagnose  # few runs fail

    try:
        found = diagnose(Path(plan.out), jobs=1)
    except TraceopsError:
        return None
    return found if found.roots else None


def says(found: Diagnosis | None, failure: Failure) -> bool:
    """Whether the first cause is about this rank and has its reason, which then need not be said twice."""
    from traceops.report.hang_text import root_sentence

    reason = failure.reason.partition(" (often ")[0]  # each has its own words of a likely killer
    return found is not None and failure.rank in found.roots[0].ranks and reason in root_sentence(found.roots[0])


def tell_cause(plan: Plan, screen: Screen, found: Diagnosis) -> None:
    """Say what the run died of, on stderr."""
    from traceops.render.hang.terminal import print_cause

    with screen.paused():
        print_cause(found, sys.stderr)
    crash = found.roots[0].crash
    if crash is not None and crash.kind == "gpu_memory":
        from traceops.launch.telling import tell_out_of_memory  # of few that fail

        tell_out_of_memory(plan, crash, screen)


_TAIL_LINES = 20
_NOBODY = (
    "no process of the command was seen to train: none ended the step of a torch optimizer, or they run where the "
    "environment does not reach (python -I or -E, a container)"
)


def tell(screen: Screen, plan: Plan, run: EndedRun, aside: Aside, advise: bool) -> None:
    """advise: what to do with the traces."""
    _tell_end(screen, plan, run, aside)
    _tell_captures(screen, plan, run)
    _tell_traces(screen, plan, run, advise)


def _tell_end(screen: Screen, plan: Plan, run: EndedRun, aside: Aside) -> None:
    """How the training ended, where it did not by itself."""
    ended = run.ended
    if run.failure is not None:
        _tell_failure(screen, plan, run, run.failure, aside)
    elif ended.hung:
        screen.say(f"hang: the job was ended; evidence is in {short_path(plan.evidence)}")
        screen.say(f"next: traceops diagnose {short_path(plan.out)}")
    elif run.code and not ended.signal:
        if plan.launcher == "none":  # it has said itself what it had to say
            screen.say(f"the command ended with {run.code}; no rank was seen to fail")
        else:
            screen.say(f"torchrun ended with {ended.returncode} and named no rank; its last words:")
            tail = ended.torchrun_log.splitlines(keepends=True)[-_TAIL_LINES:]
            screen.output("".join(tail).encode(), LineSource(error=True))
            with aside("finding the cause"):
                if (found := find_cause(plan)) is not None:
                    tell_cause(plan, screen, found)
    elif ended.saved and (saved := saved_evidence(plan.evidence)):
        screen.say(f"saved before the end, in {short_path(plan.evidence)}: {saved}")
        screen.say(f"next: traceops diagnose {short_path(plan.out)}")


def _tell_failure(screen: Screen, plan: Plan, run: EndedRun, failure: Failure, aside: Aside) -> None:
    """Which rank failed first and with what, where its output is, and the cause."""
    found, repeated = None, False
    with aside("finding the cause"):
        found = find_cause(plan)
        repeated = says(found, failure)
    where = next((f" on {rank.host}" for rank in run.ranks if rank.rank == failure.rank), "")
    what = "failed" if failure.exit_code else "ended"
    code_words = f"exit code {failure.exit_code}"
    reason = "" if failure.reason == code_words or repeated else f": {failure.reason}"
    screen.say(f"rank {failure.rank}{where} {what} first, {code_words}{reason}")
    logs = (plan.out / "logs" / f"rank_{failure.rank}.{name}.log" for name in ("stderr", "output"))
    if (log := next((path for path in logs if path.is_file()), None)) is not None:
        if not plan.shown.shows(failure.rank, failure.rank):
            show_end(screen, log, LineSource(plan.shown.mark(failure.rank, failure.rank), error=True))
        screen.say(f"its output is in {short_path(log)}")
    with aside("telling the cause"):
        if found is not None:
            tell_cause(plan, screen, found)


def _tell_captures(screen: Screen, plan: Plan, run: EndedRun) -> None:
    """What kept ranks from recording all that was asked for."""
    for note in sorted({rank.note for rank in run.ranks if rank.note}):
        screen.say(note)
    for sentence in unrecorded_sentences(asdict(one) for one in unrecorded_here(plan, run.ranks)):
        screen.say(sentence)
    for numbers, early in by_cause(early_ends(run.ranks, run.told)):
        screen.say(f"the capture of {who(numbers)} ended early: {cause_text(early)}")
        screen.say(f"next time: {advice_text(early)}")


def _tell_traces(screen: Screen, plan: Plan, run: EndedRun, advise: bool) -> None:
    """What was recorded, and what to do next."""
    ranks = run.ranks
    for line in steps_told(ranks):
        screen.say(line)
    traced = sum(has_whole_steps(rank, plan.out) for rank in ranks)
    what = "recorded a whole step" if not traced and any(rank.traces for rank in ranks) else "traced"
    world = plan.cluster.world_size
    if plan.launcher == "none":
        world = max((rank.world_size for rank in ranks), default=0)
    if not world:
        screen.say(_NOBODY)
        if not run.code:
            screen.say(f"next time: {UNSEEN_STEPS_ADVICE}")
    screen.say(f"{traced} of {world} ranks {what} in {short_path(plan.out)}")
    elsewhere = world - len(ranks)
    if plan.cluster.nnodes > 1 and elsewhere > 0 and not plan.gather:
        screen.say(
            f"{elsewhere} ranks left nothing in this folder. If the nodes do not share it, --gather sends their files "
            "to the first node"
        )
    _tell_next(screen, plan, run, advise, traced)


def _tell_next(screen: Screen, plan: Plan, run: EndedRun, advise: bool, traced: int) -> None:
    """What to type next. traced: ranks with a whole step."""
    if not traced and (shorter := would_fit(run.ranks)) is not None:
        screen.say(f"next: run it again with {shorter.flags}")
    if run.failure is not None and any(plan.evidence.glob("flight_recorder_*")):
        screen.say(f"next: traceops diagnose {short_path(plan.out)}, if another rank may be the cause")
    elif advise and traced and not run.ended.hung and not run.ended.saved:
        screen.say(f"next: traceops analyze {short_path(plan.out)}")


_LINES = 20
_BYTES = 1 << 16


def show_end(screen: Screen, log: Path, source: LineSource) -> None:
    """Show the last lines of `log`."""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _BYTES, 0))
        lines = without_chatter(file.read()).splitlines(keepends=True)
    screen.output(b"".join(lines[-_LINES:]).rstrip(b"\n") + b"\n", source)


_WIDTHS = (40, 100)
_WITHIN_S = 30.0  # for the changes that are tried: the user waits for the prompt
_LIMIT_S = 90.0  # for all of it


def tell_out_of_memory(plan: Plan, crash: Crash, screen: Screen) -> None:
    """Say it on stderr, below the cause."""
    found = ranks_that_ran_out(plan.out)
    first = next((one for one in found if one.rank in crash.ranks), found[0] if found else None)
    blocks: list[Block] = []
    if first is not None:
        blocks += describe_ran_out(first, phase_of(crash.event.frames), named=first.rank not in crash.ranks)
        blocks += _beside_torch(plan.out, found, first)
    _show(blocks, screen)
    capacity = first.total if first is not None else None if crash.memory is None else crash.memory.total
    config = _config(plan)
    if config is None:
        rank = first.rank if first is not None else min(crash.ranks, default=0)
        _show([_of_script(plan, capacity, rank)], screen)
    elif capacity is not None and config.strategy not in NOT_FAKED:
        screen.say("estimating what would fit in memory …")
        _show(_fits(config, plan.cluster.world_size, capacity), screen)


def _show(blocks: Sequence[Block], screen: Screen) -> None:
    if blocks:
        with screen.paused():
            write_terminal(list(blocks), sys.stderr, widths=_WIDTHS)


def _beside_torch(out: Path, found: Sequence[RanOut], first: RanOut) -> list[Block]:
    others = [one.rank for one in found if one is not first]
    if others:
        return [text(f"Memory ran out on {len(others)} more: see traceops memory {short_path(out)}", indent=(2, 2))]
    return [text(f"All that was held: traceops memory {short_path(out)}", indent=(2, 2))]


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
        return [text(f"What would fit is not known: {error}", look="soft", indent=(2, 2))]
    blocks: list[Block] = [text(headline(found), indent=(2, 2)), *describe_changes(found)]
    if found.verdict in ("does_not_fit", "too_close") and not any(one.verdict == "fits" for one in found.changes):
        command = shlex.join(["traceops", "memory", *found.command[2:]])
        blocks.append(text(f"To try all changes: {command}{_size(capacity)}", indent=(2, 2)))
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


def _of_script(plan: Plan, capacity: int | None, rank: int) -> Block:
    words = ["traceops", "memory", "--nproc", str(plan.cluster.world_size)]
    command = shlex.join([*words, "--rank", str(rank)] if rank else words)
    return text(
        f"What a change would save, without a GPU: {command}{_size(capacity)} -- {shlex.join(plan.trains)}",
        indent=(2, 2),
    )


def _size(capacity: int | None) -> str:
    return "" if capacity is None else f" --capacity {gib_text(capacity).replace(' ', '')}"
