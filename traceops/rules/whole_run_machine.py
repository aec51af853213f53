"""TO-W002: what of the machine keeps a rank: another process on its GPU or cores, a lower clock, a quota."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from traceops.across.run_use import MachineUse, RecordedWait, recorded_waits, unfair_waits
from traceops.core.claims import Claim, reason, restated
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rule import Verdict, described
from traceops.core.units import stored
from traceops.rules.inputs import Inputs
from traceops.rules.shared import WAITS_PCT, crowded_peers_pct, on_cpu
from traceops.rules.stragglers import HeldByCores, held_by_cores
from traceops.rules.whole_run_claims import (
    BOUNDS,
    CoresTaken,
    LateForCore,
    OtherProcess,
    SlowClock,
    Waiting,
    WaitsForCore,
    WaitsInRecorded,
)

MACHINE = described("whole_run", "TO-W002")
RULES = (MACHINE,)
_OF_GPU_TIME = "% of the GPU's time"  # a unit
_MOST_SHOWN = 8
_LISTED = 3  # processes of others
_PEERS = 2.0  # times what the other ranks wait
_OTHERS_PCT = 40.0  # of a core: processes of others that count
_QUEUED_PCT = 10.0  # of the step: kernels that wait for the device while nothing of this run is on it
_TAKEN = {  # percent of what
    "quota": "% of the CPU time that is wanted",
    "stolen": "% of the time in which they were wanted",
}


def judge(inputs: Inputs) -> list[Verdict]:
    """What the machine does to ranks."""
    uses = inputs.machine
    held = held_by_cores(inputs.run, unfair_waits(inputs.observed, inputs.machine))
    each = [one for use in uses for one in (_gpu(use, uses, inputs), _cores(use, uses)) if one is not None]
    found = [_with_cost(one, held) for one in [*_alike(each, len(uses)), *_taken(uses)]]
    named = {rank for one in found if one.kind in _OF_CORES for rank in one.ranks}
    # Ranks whose recorded steps alone show that they wait: the launcher saw too little of it, or another time
    for one in (one for rank, one in held.items() if rank not in named):
        late = Waiting(rank=one.rank, step=one.step_ms, saved=one.saved_ms)
        claim, fact = (
            LateForCore(rank=one.rank, waited=one.waited_ms, late=late),
            Fact.WAITS_FOR_A_CORE_BEYOND_ITS_PEERS,
        )
        evidence = [
            Evidence(fact, stored(one.waited_ms), "ms/step", rank=one.rank),
            Evidence(Fact.STEP, stored(one.step_ms), "ms", subject="step"),
        ]
        ranks, impact = [one.rank], stored(one.saved_ms)
        found.append(
            MACHINE.finding("warning", "medium", claim, evidence, ranks=ranks, impact_ms=impact, cause="shared_cores")
        )
    waits = recorded_waits(inputs.observed)
    found += in_recorded_steps(waits, uses, named | held.keys(), on_cpu=on_cpu(inputs.run))
    if not uses and not found:
        return [MACHINE.not_evaluated(reason("whole_run", "not_sampled"))]
    most = max((use.waited_pct or 0.0 for use in uses), default=0.0)
    return [MACHINE.verdict(*found, clear=reason("whole_run", "machine_clear", pct=most))]


def _with_cost(found: Finding, held: Mapping[int, HeldByCores]) -> Finding:
    """With what it costs that the others wait for its ranks."""
    late = [held[rank] for rank in found.ranks if rank in held] if found.kind in _OF_CORES else []
    if not late:
        return found
    worst = max(late, key=lambda one: one.saved_ms)
    severity = "warning" if found.severity == "info" else found.severity
    waiting = Waiting(rank=worst.rank, step=worst.step_ms, saved=worst.saved_ms)
    said = restated(found, _OF_CORES[str(found.kind)], late=waiting)
    return replace(said, severity=severity, impact_ms=stored(worst.saved_ms))


def _gpu(use: MachineUse, uses: tuple[MachineUse, ...], inputs: Inputs) -> Finding | None:
    """Another process on a rank's GPU, or where the GPU computes longer, a lower clock. The process may cost: a host
    that sets the pace does so too where each of its kernels starts late."""
    before, rank = inputs.found_before("TO-S001", "TO-S002"), use.rank
    late = any(rank in found.ranks and found.cause == "gpu_compute" for found in before)
    others = [one for one in use.on_gpu if (one.busy_pct or 0.0) >= BOUNDS.stranger_pct or late]
    if not others:
        return _clock(use, uses) if late else None
    one, times = others[0], inputs.run.times_of(rank)
    claim = OtherProcess(rank=rank, pid=one.pid, memory=one.bytes, busy=one.busy_pct)
    evidence = [
        Evidence(Fact.PID, one.pid, rank=rank),
        Evidence(Fact.MEMORY, one.bytes, "bytes", rank=rank),
        Evidence(Fact.BUSY, one.busy_pct, _OF_GPU_TIME, rank=rank),
    ]
    # Kernels of this rank wait for so many ms of the recorded step in which nothing of it runs.
    if times is not None and times.summary.on_gpu and (times.share_pct("idle_dependency") or 0.0) >= _QUEUED_PCT:
        queued = times.mean_ms("idle_dependency")
        claim = replace(claim, queued=queued, step=times.step_ms)
        evidence.append(Evidence(Fact.BUCKET, stored(queued), "ms/step", rank=rank, subject="idle_dependency"))
    confidence: Confidence = "high" if late or one.busy_pct is not None else "medium"
    return MACHINE.finding("warning", confidence, claim, evidence, ranks=[rank], cause="other_process")


def _clock(use: MachineUse, uses: tuple[MachineUse, ...]) -> Finding | None:
    clocks = [one.mhz for one in uses if one.rank != use.rank and one.mhz is not None]
    if use.mhz is None or not clocks or use.mhz >= BOUNDS.clock * statistics.median(clocks):
        return None
    why = next((name for name in ("power_cap", "too_hot") if (use.reasons or {}).get(name, 0.0) >= 50.0), None)
    others, most = statistics.median(clocks), None if use.gpu is None else use.gpu.most_mhz or None
    claim = SlowClock(rank=use.rank, mhz=use.mhz, most=most, others=others, reason=why)
    evidence = [
        Evidence(Fact.CLOCK, use.mhz, "MHz", rank=use.rank, peers=others),
        Evidence(Fact.POWER, use.power_w, "W", rank=use.rank),
        Evidence(Fact.TEMPERATURE, use.celsius, "°C", rank=use.rank),
    ]
    return MACHINE.finding("warning", "high", claim, evidence, ranks=[use.rank], cause=why or "slow_clock")


def _of_another_host(use: MachineUse, uses: tuple[MachineUse, ...]) -> float:
    """What the ranks of the emptiest other host wait, in the median: most ranks may be on crowded ones."""
    by_host = defaultdict(list)
    for one in uses:
        if one.host != use.host and one.crowded_pct is not None:
            by_host[one.host].append(one.crowded_pct)
    return min((statistics.median(own) for own in by_host.values()), default=float("inf"))


def _cores(use: MachineUse, uses: tuple[MachineUse, ...]) -> Finding | None:
    if (waited := use.waited_pct) is None or waited < WAITS_PCT:
        return None
    peers, crowded = crowded_peers_pct(use, uses), use.crowded_pct or 0.0
    alone = len(uses) > 1 and crowded >= _PEERS * min(peers, _of_another_host(use, uses))
    others = use.on_cores
    there = sum(one.busy_pct or 0.0 for one in others) >= _OTHERS_PCT
    listed = [f"pid {one.pid} ({one.name}, {one.busy_pct or 0.0:.0f} % of a core)" for one in others[:_LISTED]]
    claim = WaitsForCore(rank=use.rank, pct=waited, crowded=crowded or None, others=peers if len(uses) > 1 else None)
    if there:
        claim = replace(claim, processes=(*listed, *["and others"] * (len(others) > _LISTED)))
    evidence = [
        Evidence(Fact.WAITS_FOR_A_CORE, round(waited, 1), "% of the time", WAITS_PCT, use.rank),
        Evidence(Fact.NO_CORE_WHEN_WANTED, round(crowded, 1), "%", rank=use.rank, peers=round(peers, 1)),
    ]
    for one in others[:_LISTED]:
        evidence.append(Evidence(Fact.PID, one.pid, f"{one.name or 'a process'}, {one.busy_pct or 0:.0f} % of a core"))
    severity: Severity = "warning" if alone or there or waited >= BOUNDS.core_pct else "info"
    return MACHINE.finding(severity, "high", claim, evidence, ranks=[use.rank], cause="shared_cores")


def _taken(uses: Sequence[MachineUse]) -> list[Finding]:
    """What a quota or a hypervisor takes is a host's: one finding for all its ranks."""
    by_host: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for use in uses:
        for cause, pct in (("quota", use.refused_pct), ("stolen", use.stolen_pct)):
            if pct is not None and pct >= BOUNDS.taken_pct:
                by_host[cause, use.host].append((use.rank, pct))
                break
    found = []
    for (cause, _), own in by_host.items():
        ranks, pct = tuple(rank for rank, _ in own), max(pct for _, pct in own)
        claim = CoresTaken(ranks=ranks, cause=cause, pct=pct)
        taken = Evidence(Fact.TAKEN, round(pct, 1), _TAKEN[cause], BOUNDS.taken_pct, ranks[0], subject=cause)
        found.append(MACHINE.finding("warning", "medium", claim, [taken], ranks=ranks, cause=cause))
    return found


def _alike(found: list[Finding], ranks: int) -> list[Finding]:
    """One finding where all ranks wait for cores alike: the worst of them."""
    cores = [one for one in found if one.cause == "shared_cores"]
    if len(cores) < max(ranks, 2):
        return found
    worst = max(cores, key=lambda one: float(one.evidence[0].value or 0.0))
    every = replace(
        restated(worst, WaitsForCore, every=True), ranks=tuple(sorted(rank for one in cores for rank in one.ranks))
    )
    return [*(one for one in found if one.cause != "shared_cores"), every]


_OF_CORES: Mapping[str, type[Claim]] = {WaitsForCore.kind: WaitsForCore, CoresTaken.kind: CoresTaken}


def in_recorded_steps(
    waits: Mapping[int, RecordedWait], uses: Collection[MachineUse], named: Collection[int], *, on_cpu: bool
) -> list[Finding]:
    """One finding for all ranks whose recorded steps tell that they wait, a remark where the whole run does not. The
    launcher looks too seldom at a short run. named: ranks that have a finding. on_cpu: whether no rank has a GPU."""
    of_run = {use.rank: use.waited_pct for use in uses if use.waited_pct is not None}
    least = {rank: BOUNDS.core_pct if rank in of_run else WAITS_PCT for rank in waits}
    waiting = {r: one.pct for r, one in waits.items() if r not in named and one.beside_pct >= least[r]}
    if not waiting:
        return []
    worst, ranks = max(waiting, key=lambda rank: waiting[rank]), sorted(waiting)
    much = any(waits[rank].beside_pct >= BOUNDS.core_pct and rank not in of_run for rank in waiting)
    several = tuple(ranks) if len(ranks) > 1 else ()
    claim = WaitsInRecorded(rank=worst, pct=waiting[worst], ranks=several, whole=of_run.get(worst), on_cpu=on_cpu)
    evidence = [
        Evidence(Fact.WAITS_FOR_A_CORE, round(waiting[rank], 1), "% of recorded steps", least[rank], rank)
        for rank in sorted(ranks, key=lambda rank: -waiting[rank])[:_MOST_SHOWN]
    ]
    severity: Severity = "warning" if much else "info"
    return [MACHINE.finding(severity, "high", claim, evidence, ranks=ranks, cause="shared_cores")]
