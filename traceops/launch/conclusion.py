"""What `traceops run` says when a run has ended: who failed and why, what is kept, and what to do next."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped, unused-ignore]

from traceops.capture.environment import usable_cores
from traceops.capture.manifest import RankManifest
from traceops.core import capture_failure
from traceops.core.claims import Wording
from traceops.core.errors import TraceopsError
from traceops.core.rank_files import OBSERVED_FILE, usual_ends
from traceops.core.rank_files import seldom as seldom_in
from traceops.core.rank_text import unrecorded_sentences, who
from traceops.launch.display import Containment, LineSource, Screen, without_chatter
from traceops.launch.ended import EndedRun, early_ends, unrecorded_here
from traceops.launch.evidence import saved_evidence
from traceops.launch.folder import short_path
from traceops.launch.outcome import Failure
from traceops.launch.plan import Plan
from traceops.machine.files import text

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

_text = Wording("launch", "end")
_BEGIN_BYTES = 1 << 20  # of what was observed: the first steps are in it
_MANY_SWITCHES = 200.0  # per second of work: time slices of 3 to 5 ms are used up, so more threads want to run than can


def step_lines(ranks: Sequence[RankManifest]) -> list[str]:
    """A line for each way of ending a step that some rank had; none where nothing ended a step by itself."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[RankManifest]] = {}
    for rank in ranks:
        if rank.step_ends:
            usual = usual_ends(rank.step_ends, rank.steps_within)
            alike.setdefault((tuple(usual), tuple(rank.steps_within)), []).append(rank)
    lines = []
    for (ends, within), ranks_alike in alike.items():
        one = ranks_alike[0]
        steps = sum(one.step_ends.values())
        seldom = seldom_in(steps, one.steps_within)
        parts = [name for name in within if name not in ends and name not in seldom]
        on = None if len(alike) == 1 else who([rank.rank for rank in ranks_alike])
        clauses = [_text("step_ends", on=on, ends=" or ".join(ends), parts=parts)]
        for name in seldom:
            clauses.append(_text("seldom", another=name in ends, name=name, runs=one.steps_within[name], steps=steps))
        # What other threads of these ranks did, which is no step.
        if beside := {rank.rank: number for rank in ranks_alike if (number := sum(rank.steps_beside.values()))}:
            most, where = max(beside.values()), None if len(beside) == len(ranks_alike) else who(list(beside))
            clauses.append(_text("other_threads", steps=most, alike=min(beside.values()) == most, where=where))
        lines.append("; ".join(clauses))
    return lines


def has_whole_steps(rank: RankManifest, out: Path) -> bool:
    """Whether a rank's traces hold a step from its beginning to its end, and lie in the run folder."""
    whole = not rank.windows or any(window.steps for window in rank.windows)
    return whole and any((out / trace).exists() for trace in rank.traces)


def would_fit(ranks: Sequence[RankManifest]) -> capture_failure.ShorterSchedule | None:
    """What would have recorded steps of ranks that finished before their schedule did; None where that is not why."""
    if not ranks or any(rank.status != "finished" for rank in ranks):
        return None
    return capture_failure.shorter_schedule(ranks[0].schedule, min(rank.steps for rank in ranks))


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
    if (crash := found.roots[0].crash) is not None and crash.kind == "gpu_memory":
        from traceops.launch.out_of_memory import report_out_of_memory

        report_out_of_memory(plan, crash, screen)


_TAIL_LINES = 20


def report_run(screen: Screen, plan: Plan, run: EndedRun, contain: Containment, advise: bool) -> None:
    """advise: what to do with the traces."""
    _report_end(screen, plan, run, contain)
    # What kept ranks from recording all that was asked for.
    for note in sorted({rank.note for rank in run.ranks if rank.note}):
        screen.say(note)
    for sentence in unrecorded_sentences(asdict(one) for one in unrecorded_here(plan, run.ranks)):
        screen.say(sentence)
    for numbers, early in capture_failure.by_cause(early_ends(run.ranks, run.early)):
        screen.say(_text("capture_ended", ranks=who(numbers), cause=capture_failure.cause_text(early)))
        screen.say(_text("next_time", advice=capture_failure.advice_text(early)))
    _report_traces(screen, plan, run, advise)


def _report_end(screen: Screen, plan: Plan, run: EndedRun, contain: Containment) -> None:
    """How the training ended, where it did not by itself."""
    ended = run.ended
    if run.failure is not None:
        found, repeated = None, False
        with contain("find_cause"):
            found = find_cause(plan)
            repeated = says(found, run.failure)
        host = next((rank.host for rank in run.ranks if rank.rank == run.failure.rank), None)
        reason = None if run.failure.reason == f"exit code {run.failure.exit_code}" or repeated else run.failure.reason
        kind = "failed_first" if run.failure.exit_code else "ended_first"
        screen.say(_text(kind, rank=run.failure.rank, host=host, code=run.failure.exit_code, reason=reason))
        logs = (plan.out / "logs" / f"rank_{run.failure.rank}.{name}.log" for name in ("stderr", "output"))
        if (log := next((path for path in logs if path.is_file()), None)) is not None:
            if not plan.shown.shows(run.failure.rank, run.failure.rank):
                show_end(screen, log, LineSource(plan.shown.mark(run.failure.rank, run.failure.rank), error=True))
            screen.say(_text("output", log=short_path(log)))
        with contain("report_cause"):
            if found is not None:
                report_cause(plan, screen, found)
    elif ended.hung:
        screen.say(_text("hung", folder=short_path(plan.evidence)))
        screen.say(_text("next_diagnose", out=short_path(plan.out)))
    elif run.code and not ended.signal:
        if plan.launcher == "none":  # it has said itself what it had to say
            screen.say(_text("command_failed", code=run.code))
        else:
            screen.say(_text("torchrun_failed", code=ended.returncode))
            tail = ended.torchrun_log.splitlines(keepends=True)[-_TAIL_LINES:]
            screen.output("".join(tail).encode(), LineSource(error=True))
            with contain("find_cause"):
                if (found := find_cause(plan)) is not None:
                    report_cause(plan, screen, found)
    elif ended.saved and (saved := saved_evidence(plan.evidence)):
        screen.say(_text("saved", folder=short_path(plan.evidence), what=saved))
        screen.say(_text("next_diagnose", out=short_path(plan.out)))


def _report_traces(screen: Screen, plan: Plan, run: EndedRun, advise: bool) -> None:
    """What was recorded, and what to do next."""
    ranks = run.ranks
    for line in step_lines(ranks):
        screen.say(line)
    if len(ranks) > 1 and same_samples([plan.out / f"rank_{rank.rank}" / OBSERVED_FILE for rank in ranks]):
        screen.say(_text("same_samples", n=len(ranks)))
    traced = sum(has_whole_steps(rank, plan.out) for rank in ranks)
    world = plan.cluster.world_size
    if plan.launcher == "none":
        world = max((rank.world_size for rank in ranks), default=0)
    if not world:
        screen.say(_text("none_trained"))
        _report_use(screen)
        if not run.code:
            screen.say(_text("next_time", advice=capture_failure.UNSEEN_STEPS_ADVICE))
    no_whole_step = not traced and any(rank.traces for rank in ranks)
    screen.say(_text("no_whole_step" if no_whole_step else "traced", n=traced, world=world, out=short_path(plan.out)))
    elsewhere = world - len(ranks)
    if plan.cluster.nnodes > 1 and elsewhere > 0 and not plan.gather:
        screen.say(_text("elsewhere", ranks=elsewhere))
    _report_next(screen, plan, run, advise, traced)


def _report_next(screen: Screen, plan: Plan, run: EndedRun, advise: bool, traced: int) -> None:
    """What to type next. traced: ranks with a whole step."""
    if not traced and (shorter := would_fit(run.ranks)) is not None:
        screen.say(_text("next_again", flags=shorter.flags))
    if run.failure is not None and any(plan.evidence.glob("flight_recorder_*")):
        screen.say(_text("next_diagnose_other", out=short_path(plan.out)))
    elif advise and traced and not run.ended.hung and not run.ended.saved:
        screen.say(_text("next_analyze", out=short_path(plan.out)))


def same_samples(files: Sequence[Path]) -> bool:
    """Whether the ranks of these files got the same batches, which were not all one, in their first steps."""
    seen = set()
    for file in files:
        try:
            with file.open("rb") as lines:
                begin = lines.read(_BEGIN_BYTES)
            line = next(line for line in begin.splitlines() if line.startswith(b'["d",'))
            seen.add(tuple(map(int, json.loads(line)[1])))
        except (OSError, StopIteration, ValueError, TypeError, IndexError):  # not told, or cut off
            return False
    return len(seen) == 1 and len(set(seen.pop())) > 1


def _report_use(screen: Screen) -> None:
    """What a command whose steps nobody sees had of the machine, as XGBoost, scikit-learn or NumPy."""
    if sys.platform == "win32":
        return
    import resource

    used, cores = resource.getrusage(resource.RUSAGE_CHILDREN), usable_cores() or 1
    seconds, busy_s = time.time() - psutil.Process().create_time(), used.ru_utime + used.ru_stime
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    taken_away = used.ru_nivcsw / busy_s if busy_s else 0.0
    screen.say(
        _text(
            "used", seconds=seconds, busy=busy_s / seconds, cores=cores, memory=memory, blocks=used.ru_inblock * 512,
            load=os.getloadavg()[0], disk=waits_for_disk_pct(),
            taken_away=taken_away if taken_away > _MANY_SWITCHES else None,
        )
    )  # fmt: skip


def waits_for_disk_pct(pressure: Path = Path("/proc/pressure/io")) -> float | None:
    """Of the last minute, in which something on this machine waited for storage; None where Linux does not say."""
    found = re.search(r"^some .*\bavg60=(\d+(?:\.\d+)?)", text(pressure) or "", re.MULTILINE)
    return float(found[1]) if found else None


_LINES = 20
_BYTES = 1 << 16


def show_end(screen: Screen, log: Path, source: LineSource) -> None:
    """Show the last lines of `log`."""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _BYTES, 0))
        lines = without_chatter(file.read()).splitlines(keepends=True)
    screen.output(b"".join(lines[-_LINES:]).rstrip(b"\n") + b"\n", source)
