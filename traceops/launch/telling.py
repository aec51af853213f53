"""What `traceops run` says when a run has ended: who failed and why, what is kept, and what to do next."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from traceops.core.capture_failure import UNSEEN_STEPS_ADVICE, advice_text, by_cause, cause_text
from traceops.core.unrecorded_text import unrecorded_sentences
from traceops.launch.aside import Aside
from traceops.launch.conclusion import find_cause, says, tell_cause
from traceops.launch.display import LineSource, Screen, without_chatter
from traceops.launch.ended_run import EndedRun
from traceops.launch.evidence import saved_evidence
from traceops.launch.folder import short_path
from traceops.launch.how_it_ended import early_ends
from traceops.launch.plan import Plan
from traceops.launch.run_document import unrecorded_here
from traceops.launch.step_words import has_whole_steps, steps_told, would_fit

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
    ended, failure = run.ended, run.failure
    if failure is not None:
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
        log = next((path for path in logs if path.exists()), plan.out)
        if log.is_file() and not plan.shown.shows(failure.rank, failure.rank):
            show_end(screen, log, LineSource(plan.shown.mark(failure.rank, failure.rank), error=True))
        if log.is_file():
            screen.say(f"its output is in {short_path(log)}")
        with aside("telling the cause"):
            if found is not None:
                tell_cause(plan, screen, found)
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


def _tell_captures(screen: Screen, plan: Plan, run: EndedRun) -> None:
    """What kept ranks from recording all that was asked for."""
    for note in sorted({rank.note for rank in run.ranks if rank.note}):
        screen.say(note)
    for sentence in unrecorded_sentences(asdict(one) for one in unrecorded_here(plan, run.ranks)):
        screen.say(sentence)
    for who, early in by_cause(early_ends(run.ranks, run.told)):
        several = "s" if len(who) > 1 else ""
        screen.say(f"the capture of rank{several} {', '.join(map(str, who))} ended early: {cause_text(early)}")
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
    if not traced and (shorter := would_fit(ranks)) is not None:
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
