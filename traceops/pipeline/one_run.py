"""Whether the traces of a folder are of one run: copies, other captures, and what contradicts itself, each named."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from traceops.across.agreed_steps import begin_ns, most_at_one_time
from traceops.core.units import clock_text
from traceops.fabric.model import LOCAL_HOST, short_host
from traceops.measure.summary import RankSummary
from traceops.rules.inputs import OtherSteps
from traceops.traces.run_manifest import RecordedSteps
from traceops.traces.windows import trace_stem


def with_same_steps(
    ranks: Sequence[RankSummary], recorded: Mapping[str, RecordedSteps]
) -> tuple[list[RankSummary], tuple[OtherSteps, ...]]:
    """The ranks that hold the step which most of them hold, of two such the later, and the steps of the rest.

    All, where some step is common to all. recorded: of run.json, by the traces' paths. Only there are steps known to
    be counted alike on all ranks, so that other numbers are other steps: a program that ended early keeps its first
    ones, and a median of these and of later ones would be the time of no step.
    """
    told = {trace_stem(path) for path in recorded}
    steps = {summary.rank: summary.numbered_steps for summary in ranks}
    counts = Counter(number for own in steps.values() for number in own)
    counted_alike = all(trace_stem(summary.path) in told for summary in ranks if steps[summary.rank])
    common = any(n == sum(map(bool, steps.values())) for n in counts.values())
    if not counts or common or not counted_alike:
        return list(ranks), ()
    most = max(counts, key=lambda number: (counts[number], number))
    left = tuple(OtherSteps(rank, tuple(sorted(own))) for rank, own in steps.items() if own and most not in own)
    return [summary for summary in ranks if summary.rank not in {one.rank for one in left}], left


_FIRST_EPOCH_NS = 10**18  # 2001: before it, times are no Unix times, and each host may have a zero of its own
_APART_NS = 600 * 10**9  # clocks that nobody sets go wrong by minutes
_WINDOWS_APART = 10
_ONE_CLOCK_APART_NS = 10 * 10**9  # of ranks of one host, which share a clock
_EARLY_NS = 60 * 10**9  # before run.json says that the run began
_OUT_OF_LIFE_NS = 10**9  # beyond the process's own begin and end
_MOST_STEPS = 8

Said = tuple[str, str]  # path, what is wrong with it


class OneRun(Struct, frozen=True):
    """The ranks that are used, the files that were left out, and those that are used although something is odd."""

    ranks: tuple[RankSummary, ...]
    left_out: tuple[Said, ...] = ()
    doubts: tuple[Said, ...] = ()


def of_one_run(ranks: Sequence[RankSummary], hosts: Mapping[int, str | None], manifest: Mapping[str, Any]) -> OneRun:
    """The ranks of one run among these. hosts: where each ran, as far as known. manifest: run.json, {} without one."""
    ranks, copies = _without_copies(ranks)
    ranks, strangers, odd = _without_other_processes(ranks, hosts, manifest)
    ranks, others, apart = _without_other_captures(ranks, hosts, listed=bool(manifest.get("ranks")))
    doubts = [*(odd if not apart else ()), *apart, *_repeated_steps(ranks), *_of_another_manifest(ranks, manifest)]
    return OneRun(tuple(ranks), (*copies, *strangers, *others), tuple(doubts))


def _without_copies(ranks: Sequence[RankSummary]) -> tuple[list[RankSummary], list[Said]]:
    """No two processes do the same in the same nanoseconds: one trace lies there under several names."""
    same: dict[Hashable, list[RankSummary]] = defaultdict(list)
    for summary in ranks:
        times = (summary.step_edges, summary.step_numbers, summary.comm.start, summary.comm.end)
        kernels = tuple((kernel.name, kernel.count, kernel.total_us) for kernel in summary.kernels)
        content = (summary.meta.rank, summary.event_count, *(own.tobytes() for own in times), kernels)
        same[content].append(summary)
    kept, left_out = [], []
    for copies in same.values():
        own = next((each for each in copies if each.rank == each.meta.rank), copies[0])
        kept.append(own)
        left_out += [
            (each.path, f"is a copy of {own.path}: the same events in the same nanoseconds. It is left out; "
             f"copy the trace of rank {each.rank} itself")
            for each in copies if each is not own
        ]  # fmt: skip
    return sorted(kept, key=lambda summary: summary.rank), left_out


def _without_other_processes(
    ranks: Sequence[RankSummary], hosts: Mapping[int, str | None], manifest: Mapping[str, Any]
) -> tuple[list[RankSummary], list[Said], list[Said]]:
    """A trace by another process than its rank's, or from before that began or after it ended, is of another run. It is
    left out where another rank of its host fits: then no clock was set in between. Where none fits, run.json is of
    another run, which `_of_another_manifest` says."""
    entries = {entry["rank"]: entry for entry in manifest.get("ranks") or () if isinstance(entry.get("rank"), int)}
    pids = {entry.get("pid") for entry in entries.values()}
    off = {summary.rank: _not_of(summary, entries.get(summary.rank, {}), pids) for summary in ranks}
    fit = {hosts.get(rank) for rank, how in off.items() if how == ""}
    left_out, doubts = [], []
    for summary in ranks if fit else ():
        if not (how := off[summary.rank]):
            continue
        if hosts.get(summary.rank) in fit:
            left_out.append((summary.path, f"{how}: it is of another run. It is left out; copy the trace of rank "
                             f"{summary.rank} of this run"))  # fmt: skip
        else:
            clock = "the host's clock was set, or " if _out_of_life(summary, entries[summary.rank]) else ""
            doubts.append((summary.path, f"{how}: {clock}it is of another run. It is used; put each run in a folder "
                           "of its own"))  # fmt: skip
    gone = {path for path, _ in left_out}
    return [summary for summary in ranks if summary.path not in gone], left_out, doubts


def _not_of(summary: RankSummary, entry: Mapping[str, Any], pids: Collection[Any]) -> str | None:
    """How a trace is not of its rank's process; '' where it is, None where nothing tells. pids: of all ranks. A trace
    that has another rank's may be of a process that forked its ranks."""
    off = _out_of_life(summary, entry)
    own = entry.get("pid")
    if off or summary.pid is None or not isinstance(own, int):
        return off
    if summary.pid == own:
        return ""
    return off if summary.pid in pids else f"was recorded by process {summary.pid}, and rank {summary.rank} was {own}"


def _out_of_life(summary: RankSummary, entry: Mapping[str, Any]) -> str | None:
    """How far a trace lies out of the time in which its rank's process ran; '' within it, None where nothing tells."""
    began, ended = _time(entry.get("started_ns")), _time(entry.get("ended_ns"))
    begin, end = begin_ns(summary), int(summary.step_edges[-1])
    if began is None or begin < _FIRST_EPOCH_NS:
        return None
    if began - end > _OUT_OF_LIFE_NS:
        return f"was recorded {clock_text((began - end) / 1e9)} before the process of rank {summary.rank} began"
    if ended is not None and begin - ended > _OUT_OF_LIFE_NS:
        return f"was recorded {clock_text((begin - ended) / 1e9)} after the process of rank {summary.rank} ended"
    return ""


def _without_other_captures(
    ranks: Sequence[RankSummary], hosts: Mapping[int, str | None], *, listed: bool
) -> tuple[list[RankSummary], list[Said], list[Said]]:
    """The ranks whose steps overlap in time; of the rest, those that cannot be of the run are left out, others said."""
    main, rest = most_at_one_time(ranks, _APART_NS, _WINDOWS_APART)
    main, by_one_clock = _of_one_clock(main, hosts)
    of_main = {hosts.get(summary.rank) for summary in main}
    left_out, doubts = [], []
    for summary in (*rest, *by_one_clock):
        host = hosts.get(summary.rank)
        own_clock = host is not None and None not in of_main and host not in of_main
        wall = min(begin_ns(summary), begin_ns(main[0])) >= _FIRST_EPOCH_NS
        apart = begin_ns(summary) - begin_ns(main[0])
        others = f"rank {main[0].rank} does" if len(main) == 1 else f"ranks {main[0].rank} and others do"
        how = f"begins {clock_text(abs(apart) / 1e9)} {'before' if apart < 0 else 'after'} {others}"
        if listed or own_clock or not wall:
            doubts.append((summary.path, f"{how}: a clock is off by that, or it is of another capture. It is used; "
                           "set the hosts' clocks, and put each capture in a folder of its own"))  # fmt: skip
        else:
            left_out.append((summary.path, f"{how}: it is of another capture. It is left out; put each capture in "
                             "a folder of its own"))  # fmt: skip
    gone = {path for path, _ in left_out}
    return [summary for summary in ranks if summary.path not in gone], left_out, doubts


def _of_one_clock(
    ranks: Sequence[RankSummary], hosts: Mapping[int, str | None]
) -> tuple[list[RankSummary], list[RankSummary]]:
    """Those that were recorded with the most others of their host, and the rest: its clock is not off by seconds."""
    of_host: dict[str | None, list[RankSummary]] = defaultdict(list)
    for summary in ranks:
        of_host[hosts.get(summary.rank)].append(summary)
    rest: list[RankSummary] = []
    for host, own in of_host.items():
        if host is not None and short_host(host) not in ("", LOCAL_HOST):
            rest += most_at_one_time(own, _ONE_CLOCK_APART_NS, _WINDOWS_APART)[1]
    gone = {summary.rank for summary in rest}
    return [summary for summary in ranks if summary.rank not in gone], rest


def _repeated_steps(ranks: Sequence[RankSummary]) -> list[Said]:
    doubts = []
    for summary in ranks:
        if twice := sorted(number for number, n in Counter(summary.step_numbers.tolist()).items() if n > 1):
            listed = ", ".join(map(str, twice[:_MOST_STEPS])) + (" …" if len(twice) > _MOST_STEPS else "")
            doubts.append((
                summary.path,
                f"marks step {listed} more than once: two profilers wrote it, or two captures were joined. All are "
                "used, and what is compared step by step may pair the wrong ones; capture again",
            ))  # fmt: skip
    return doubts


def _of_another_manifest(ranks: Sequence[RankSummary], manifest: Mapping[str, Any]) -> list[Said]:
    """run.json beside traces of another run."""
    worlds = {summary.meta.world_size for summary in ranks} - {None}
    told = manifest.get("world_size")
    found = []
    if told and len(worlds) == 1 and told not in worlds:
        found.append(f"it tells of a run of {told} ranks, the traces of one of {worlds.pop()}")
    began, ended = _time(manifest.get("started_ns")), _time(manifest.get("ended_ns"))
    begins = [begin_ns(summary) for summary in ranks if begin_ns(summary) >= _FIRST_EPOCH_NS]
    if began and begins and max(begins) < began - _EARLY_NS:
        found.append(f"its run began {clock_text((began - max(begins)) / 1e9)} after the traces did")
    if ended and begins and min(begins) > ended + _EARLY_NS:
        found.append(f"its run ended {clock_text((min(begins) - ended) / 1e9)} before the traces began")
    return [("run.json", f"{what}: it is of another run. It is used; put what belongs together in one folder")
            for what in found]  # fmt: skip


def _time(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and _FIRST_EPOCH_NS <= value < 1 << 62
    return value if known else None
