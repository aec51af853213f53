"""What was observed of the whole run beside its traces, read and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.phases import Rounds, find_rounds
from traceops.across.plain_step import PlainStep, early_place, early_window, plain_step
from traceops.across.run_steps import WholeRun
from traceops.across.run_use import MachineUse, MemoryUse, machine_use, memory_use
from traceops.across.undisturbed import Undisturbed, undisturbed
from traceops.across.whole_run import whole_run
from traceops.core.capture_failure import FIRST_STEPS, counted, only_first_steps, shorter_schedule
from traceops.core.errors import InputError
from traceops.core.rank_files import LATER_LIGHT_FILES, LIGHT_FILE, SNAPSHOT
from traceops.core.rank_text import unrecorded_sentences, who
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.pipeline.run_info import without_profiler_ms
from traceops.report.step_times import EarlyWindowRow
from traceops.traces.discover import Discovery
from traceops.traces.kineto import load_trace
from traceops.traces.observed import Observed, read_machines, read_observed
from traceops.traces.run_manifest import ended_steps, ends_by_calls, manifest_ranks, profiled_itself_early
from traceops.traces.source import is_remote

if TYPE_CHECKING:  # what reads light windows and recordings of memory is loaded where there are some
    from traceops.measure.light import LightActivity
    from traceops.measure.step_memory import StepMemory
    from traceops.traces.memory_snapshot import DeviceSnapshot

_MOST_TRIED = 2  # ranks, where the first has none


def recorded_memory_of(found: Discovery, uses: Sequence[MemoryUse]) -> tuple[int, StepMemory] | None:
    """The rank with the highest peak, and what its steps held; None where memory was not recorded. Its trace is read
    again for that. Where the run's manifest says that it has no memory events, nothing is read."""
    options = found.manifest.get("options")
    if is_remote(found.root) or (isinstance(options, dict) and not options.get("profile_memory")):
        return None
    from traceops.measure.step_memory import measure_step_memory
    from traceops.traces.memory_events import read_memory_events

    peaks = {use.rank: use.peak or 0 for use in uses}
    files = [file for window in found.windows[-1:] for file in window.files if not file.summarized]
    for file in sorted(files, key=lambda file: (-peaks.get(file.rank, 0), file.rank))[:_MOST_TRIED]:
        try:
            if (memory := read_memory_events(file.path)) is None:
                continue
            steps = measure_step_memory(memory, load_trace(file.path).events, file.steps)
        except InputError:
            continue
        if steps is not None:
            return file.rank, steps
    return None


_MOST_SNAPSHOTS = 4
_FIRST_ONES = "the recorded steps are the program's first whole ones, which often take longer than later ones"
_LATE = (
    "looks at the host came up to 5 ms late, without traceops' compiled part for them: functions of a few ms that "
    "keep Python's lock are told too small, and what follows them too large"
)
MOST_RANKS = 256  # whose steps are read: a thousand ranks tell no more of which steps are unlike the others


class ObservedRun(Struct, frozen=True):
    """Nothing where the run was not observed. notes: what the reader should be told."""

    observed: tuple[Observed, ...] = ()
    whole: WholeRun | None = None
    machine: tuple[MachineUse, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    snapshots: Mapping[int, DeviceSnapshot] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    recorded: tuple[int, StepMemory] | None = None
    early: EarlyWindowRow | None = None
    ended: Mapping[int, int] = field(default_factory=dict)  # rank that has finished -> its steps
    rounds: Rounds | None = None


def observed_run(found: Discovery, ranks: Sequence[RankSummary]) -> ObservedRun:
    """What lies beside the traces of these ranks."""
    with_memory = any(one.meta.profile_memory for one in ranks)
    if not found.manifest:
        uses = memory_use((), (), ranks)
        return ObservedRun(memory=uses, recorded=recorded_memory_of(found, uses) if with_memory else None)
    numbers = [summary.rank for summary in ranks]
    chosen = numbers[:: -(-len(numbers) // MOST_RANKS)]
    read = [read_observed(found.root, rank) for rank in chosen]
    observed = tuple(one for one, _ in read if one is not None)
    notes = [problem for _, problem in read if problem is not None]
    notes += _troubles(found)
    notes += _late_looks(found)
    others = found.manifest.get("not_recorded")
    notes += unrecorded_sentences(others if isinstance(others, list) else ())
    if observed and len(chosen) < len(numbers):
        notes.append(f"the figure of all steps is of {len(chosen)} of {len(numbers)} ranks")
    machine = machine_use(read_machines(found.root), observed, found.manifest) if observed else ()
    uses = memory_use(manifest_ranks(found.manifest), observed, ranks)
    snapshots = snapshots_of(found.root, uses, notes)
    memory = with_lines(uses, snapshots)
    recorded = recorded_memory_of(found, uses) if with_memory else None
    whole = whole_run(observed, ends_by_calls(found.manifest))
    early = _early(whole, ranks, observed)
    notes += first_steps_only(found, ranks) if early is None else [early.note]
    ended = ended_steps(found.manifest)
    rounds = None if whole is None else find_rounds(whole, observed)
    return ObservedRun(observed, whole, machine, memory, snapshots, tuple(notes), recorded, early, ended, rounds)


def mean_step_ms(folder: Path, manifest: dict[str, Any]) -> float | None:
    """What a step of the run takes on average without the profiler, ms: what a stopwatch over all steps would show.
    Long steps count, those at the start do not. Where the profiler slows the steps behind it, of the others."""
    told = manifest_ranks(manifest)
    read = (read_observed(str(folder), own.rank)[0] for own in told[:: max(1, -(-len(told) // MOST_RANKS))])
    whole = whole_run([one for one in read if one is not None], ends_by_calls(manifest))
    plain = plain_step(whole, manifest, on_gpu=manifest.get("device") == "cuda")
    evenly = whole is not None and (plain is None or plain.all_count)
    return whole.steady_ms if whole is not None and evenly else without_profiler_ms(manifest, (), whole, plain)


def _early(whole: WholeRun | None, ranks: Sequence[RankSummary], observed: Sequence[Observed]) -> EarlyWindowRow | None:
    window = numbered_steps(ranks)
    early = None if whole is None else early_window(whole, window)
    if whole is None or early is None:
        return None
    spent = early_place(whole, observed, early, min(window, default=early.settled))
    return EarlyWindowRow(
        before_ms=early.near_ms,
        later_ms=early.later_ms,
        settled=early.settled,
        rank=None if spent is None else spent.rank,
        where=None if spent is None else spent.place.said,
        where_ms=None if spent is None else spent.ms,
    )


def of_first_steps(found: Discovery, ranks: Sequence[RankSummary]) -> bool:
    """Whether the traces hold a program's first steps, and none of its schedule's window."""
    numbers = numbered_steps(ranks)
    return only_first_steps(found.manifest.get("schedule"), numbers)


def first_steps_only(found: Discovery, ranks: Sequence[RankSummary]) -> list[str]:
    """What to do where a program's first steps stand for its schedule's window, which it did not reach."""
    steps, schedule = found.manifest.get("steps"), found.manifest.get("schedule")
    if not isinstance(steps, int) or not of_first_steps(found, ranks):
        return []
    if (shorter := shorter_schedule(schedule, steps)) is None:
        return [f"{_FIRST_ONES}: recording ended before the schedule's window"]
    if profiled_itself_early(found.manifest) and {int(n) for own in ranks for n in own.step_numbers} == {1}:
        return [
            f"{_FIRST_ONES}: it ended after {counted(steps)}, and its own profiler was at work from step "
            f"{FIRST_STEPS - 1} on. Two cannot record at once: take it out of the program for this run"
        ]
    later = f"; traceops run {shorter.flags} records later ones" if steps > FIRST_STEPS else ""
    return [f"{_FIRST_ONES}: it ended after {counted(steps)}, and the schedule needs {shorter.needed}{later}"]


def with_lines(uses: Sequence[MemoryUse], snapshots: Mapping[int, DeviceSnapshot]) -> tuple[MemoryUse, ...]:
    """With what stays by the line that made it, of ranks whose memory grows and that kept a snapshot."""
    return tuple(
        replace(use, stays=snapshots[use.rank].stays) if use.growth is not None and use.rank in snapshots else use
        for use in uses
    )


def snapshots_of(root: str, uses: Sequence[MemoryUse], notes: list[str] | None = None) -> dict[int, DeviceSnapshot]:
    """Memory snapshots that a local run kept: of the ranks that held most and least, and of some that grow. notes: gets
    what is wrong with those that cannot be read."""
    if is_remote(root) or not uses:
        return {}
    from traceops.traces.memory_snapshot import read_snapshot

    ordered = sorted(uses, key=lambda use: use.peak or 0)
    chosen = [ordered[-1], ordered[0], *(use for use in uses if use.growth is not None)]
    found: dict[int, DeviceSnapshot] = {}
    for use in chosen:
        path = Path(root, f"rank_{use.rank}", SNAPSHOT)
        if use.rank in found or len(found) == _MOST_SNAPSHOTS or not path.is_file():
            continue
        try:
            devices = read_snapshot(path)
        except InputError as error:
            if notes is not None and str(error) not in notes:
                notes.append(str(error))
            continue
        if devices:
            found[use.rank] = max(devices, key=lambda device: device.peak)
    return found


def _troubles(found: Discovery) -> list[str]:
    """Observing that ended early, by its reason."""
    by_reason: dict[str, list[int]] = {}
    for entry in found.manifest.get("ranks") or ():
        seen = entry.get("observed")
        trouble = seen.get("trouble") if isinstance(seen, dict) else None
        if isinstance(trouble, str) and isinstance(entry.get("rank"), int):
            by_reason.setdefault(trouble[:200], []).append(entry["rank"])
    return [f"{who(ranks)}: observing ended early ({reason})" for reason, ranks in by_reason.items()]


def _late_looks(found: Discovery) -> list[str]:
    """Ranks whose shares of host time by line are not to be taken literally."""
    ranks = [
        entry["rank"]
        for entry in found.manifest.get("ranks") or ()
        if isinstance(seen := entry.get("observed"), dict) and seen.get("late") is True and seen.get("samples")
        if isinstance(entry.get("rank"), int)
    ]
    return [f"{who(ranks)}: {_LATE}"] if ranks else []


# The ranks' light windows, read and measured: where the undisturbed step goes.


def undisturbed_run(
    found: Discovery, run: CrossRank, plain: PlainStep | None
) -> tuple[Undisturbed | None, tuple[str, ...]]:
    """What lies beside the traces, None without it; and what the reader should be told."""
    if not found.manifest or run.unit != "step" or len(run.ranks) > MOST_RANKS:
        return None, ()
    notes: list[str] = []
    lights = _read(found, run, LIGHT_FILE, notes)
    later = [_read(found, run, file, notes) for file in _later_files(found.manifest, run)]
    copies_ms = {times.summary.rank: times.mean_ms("memory") for times in run.ranks}
    made, why = undisturbed(lights, [times.summary for times in run.ranks], plain, copies_ms, later)
    if why is not None:
        notes.append(f"the light window is not used: {why}")
    lit = {light.rank for light in lights}
    without = [times.summary.rank for times in run.ranks if times.summary.rank not in lit]
    if made is not None and without:
        notes.append(
            f"the undisturbed step is of {len(lit)} of {len(run.ranks)} ranks: {who(without)} left no light window "
            "that can be used, so what others wait for there is not told from transfer"
        )
    notes += _light_troubles(found.manifest)
    return made, tuple(notes)


def _read(found: Discovery, run: CrossRank, file: str, notes: list[str]) -> list[LightActivity]:
    """One window of all ranks, of those that have it; what is wrong with it goes to `notes`."""
    from traceops.measure.light import light_activity
    from traceops.traces.light import read_light

    lights = []
    for times in run.ranks:
        log, problem = read_light(found.root, times.summary.rank, file)
        if problem is not None:
            notes.append(problem)
        light = None if log is None else light_activity(log, set(times.summary.comm.name))
        if light is not None:
            lights.append(light)
    return lights


def _later_files(manifest: Mapping[str, Any], run: CrossRank) -> tuple[str, ...]:
    """Of the later windows that all ranks say to have which say to have the first, of those that are looked at."""
    ranks = {times.summary.rank for times in run.ranks}
    told = [entry.get("light") for entry in manifest.get("ranks") or () if entry.get("rank") in ranks]
    counts = [
        len(later) if isinstance(later := one.get("later"), list) else 0
        for one in told
        if isinstance(one, dict) and one.get("file") is not None
    ]
    return LATER_LIGHT_FILES[: min(counts, default=0)]


def _light_troubles(manifest: Mapping[str, Any]) -> list[str]:
    """Light windows that were begun and hold nothing, or are not CUPTI's, by the reason."""
    by_reason: dict[tuple[bool, str], list[int]] = {}
    for entry in manifest.get("ranks") or ():
        told = entry.get("light")
        reasons = told.get("why") if isinstance(told, dict) else None
        if not isinstance(reasons, dict) or not reasons or not isinstance(entry.get("rank"), int):
            continue
        text = "; ".join(f"{source}: {reason}" for source, reason in reasons.items())[:300]
        by_reason.setdefault((told.get("source") == "torch", text), []).append(entry["rank"])
    return [
        f"{who(ranks)}: the light window is {'by torch, which disturbs more' if torch else 'missing'} ({text})"
        for (torch, text), ranks in by_reason.items()
    ]
