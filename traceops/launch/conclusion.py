"""What `traceops run` says when a run has ended: who failed and why, what is kept, and what to do next."""

from __future__ import annotations

import os
import sys
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
from traceops.core.rank_files import seldom as seldom_in
from traceops.core.rank_files import usual_ends
from traceops.core.rank_text import unrecorded_sentences, who
from traceops.launch.containment import Containment
from traceops.launch.display import LineSource, Screen, without_chatter
from traceops.launch.ended import EndedRun, early_ends, unrecorded_here
from traceops.launch.evidence import saved_evidence
from traceops.launch.folder import short_path
from traceops.launch.outcome import Failure
from traceops.launch.plan import Plan

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis


def step_lines(ranks: Sequence[RankManifest]) -> list[str]:
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


def report_cause(plan: Plan, screen: Screen, found: Diagnosis) -> None:
    """Say what the run died of, on stderr."""
    from traceops.render.hang.terminal import print_cause

    with screen.paused():
        print_cause(found, sys.stderr)
    crash = found.roots[0].crash
    if crash is not None and crash.kind == "gpu_memory":
        from traceops.launch.out_of_memory import report_out_of_memory

        report_out_of_memory(plan, crash, screen)


_TAIL_LINES = 20
_NOBODY = (
    "no process of the command was seen to train: none ended the step of a torch optimizer, or they run where the "
    "environment does not reach (python -I or -E, a container)"
)


def report_run(screen: Screen, plan: Plan, run: EndedRun, contain: Containment, advise: bool) -> None:
    """advise: what to do with the traces."""
    _report_end(screen, plan, run, contain)
    _report_captures(screen, plan, run)
    _report_traces(screen, plan, run, advise)


def _report_end(screen: Screen, plan: Plan, run: EndedRun, contain: Containment) -> None:
    """How the training ended, where it did not by itself."""
    ended = run.ended
    if run.failure is not None:
        _report_failure(screen, plan, run, run.failure, contain)
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
            with contain("finding the cause"):
                if (found := find_cause(plan)) is not None:
                    report_cause(plan, screen, found)
    elif ended.saved and (saved := saved_evidence(plan.evidence)):
        screen.say(f"saved before the end, in {short_path(plan.evidence)}: {saved}")
        screen.say(f"next: traceops diagnose {short_path(plan.out)}")


def _report_failure(screen: Screen, plan: Plan, run: EndedRun, failure: Failure, contain: Containment) -> None:
    """Which rank failed first and with what, where its output is, and the cause."""
    found, repeated = None, False
    with contain("finding the cause"):
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
    with contain("reporting the cause"):
        if found is not None:
            report_cause(plan, screen, found)


def _report_captures(screen: Screen, plan: Plan, run: EndedRun) -> None:
    """What kept ranks from recording all that was asked for."""
    for note in sorted({rank.note for rank in run.ranks if rank.note}):
        screen.say(note)
    for sentence in unrecorded_sentences(asdict(one) for one in unrecorded_here(plan, run.ranks)):
        screen.say(sentence)
    for numbers, early in by_cause(early_ends(run.ranks, run.told)):
        screen.say(f"the capture of {who(numbers)} ended early: {cause_text(early)}")
        screen.say(f"next time: {advice_text(early)}")


def _report_traces(screen: Screen, plan: Plan, run: EndedRun, advise: bool) -> None:
    """What was recorded, and what to do next."""
    ranks = run.ranks
    for line in step_lines(ranks):
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
    _report_next(screen, plan, run, advise, traced)


def _report_next(screen: Screen, plan: Plan, run: EndedRun, advise: bool, traced: int) -> None:
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
