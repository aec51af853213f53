"""TO-W002: what of the machine keeps a rank: another process on its GPU or cores, a lower clock, a quota."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from traceops.across.run_use import MachineUse, RecordedWait, Stranger, recorded_waits, unfair_waits
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import who_first
from traceops.core.rule import Rule, Verdict, described
from traceops.core.units import ms_text, percent_text, size_text, stored
from traceops.rules.inputs import Inputs
from traceops.rules.shared import WAITS_PCT, crowded_peers_pct
from traceops.rules.stragglers import HeldByCores, held_by_cores

# What the recorded steps alone tell of ranks that wait for cores: the launcher looks too seldom at a short run.


MUCH_PCT = 25.0  # of the time, for a core: too much, even if all ranks wait alike
_MOST_SHOWN = 8


def in_recorded_steps(
    rule: Rule, waits: Mapping[int, RecordedWait], uses: Collection[MachineUse], told: Collection[int], *, on_cpu: bool
) -> list[Finding]:
    """One finding for all ranks whose recorded steps tell that they wait, a remark where the whole run does not.

    told: ranks of which it is said already. on_cpu: whether no rank has a GPU.
    """
    of_run = {use.rank: use.waited_pct for use in uses if use.waited_pct is not None}
    least = {rank: MUCH_PCT if rank in of_run else WAITS_PCT for rank in waits}
    waiting = {r: one.pct for r, one in waits.items() if r not in told and one.beside_pct >= least[r]}
    if not waiting:
        return []
    worst = max(waiting, key=lambda rank: waiting[rank])
    ranks = sorted(waiting)
    message = "" if len(ranks) == 1 else f"{who_first(ranks)} wait for cores. "
    message += f"Rank {worst}'s main thread waits {percent_text(waiting[worst])} of its recorded steps for a core"
    if worst in of_run:
        message += f", and {percent_text(of_run[worst])} of the whole run"
    message += "."
    if on_cpu:
        message += " This report's compute and transfer hold that time too."
    much = any(waits[rank].beside_pct >= MUCH_PCT and rank not in of_run for rank in waiting)
    return [
        rule.finding(
            "warning" if much else "info",
            "high",
            message,
            [
                Evidence(Fact.WAITS_FOR_A_CORE, round(waiting[rank], 1), "% of recorded steps", least[rank], rank)
                for rank in sorted(ranks, key=lambda rank: -waiting[rank])[:_MOST_SHOWN]
            ],
            ranks=ranks,
            cause="shared_cores",
        )
    ]


# How much of a transfer that the ranks' own cores do may be waiting for a core: TO-O001 to TO-O003 claim the rest.


MACHINE = described("whole_run", "TO-W002")
RULES = (MACHINE,)
_PEERS = 2.0  # times what its peers wait
_OTHERS_PCT = 40.0  # of a core: processes of others that count
_ACTIVE_PCT = 10.0  # of the GPU's time: a process of somebody else
_QUEUED_PCT = 10.0  # of the step: kernels that wait for the device while nothing of this run is on it
_CLOCK = 0.93  # of the peers' clock
_LOST_PCT = 10.0  # of the CPU time that was wanted, to a quota or the hypervisor
_TAKEN = {  # of one rank, and of several; of what
    "quota": (
        "is held back by its",
        "are held back by their",
        "container's quota of CPU time",
        "the CPU time that is wanted",
    ),
    "stolen": ("runs", "run", "on a machine whose hypervisor takes cores away", "the time in which they were wanted"),
}
_OF_CORES = ("shared_cores", *_TAKEN)


def judge(inputs: Inputs) -> list[Verdict]:
    """What the machine does to ranks."""
    uses = inputs.machine
    held = held_by_cores(inputs.run, unfair_waits(inputs.observed, inputs.machine))
    found: list[Finding] = []
    for use in uses:
        found += [one for one in (_gpu(use, uses, inputs), _cores(use, uses), _taken(use)) if one is not None]
    told = [_with_cost(one, held) for one in _of_hosts(_alike(found, len(uses)), uses)]
    named = {rank for one in told if one.cause in _OF_CORES for rank in one.ranks}
    told += [_late_for_cores(one) for rank, one in held.items() if rank not in named]
    waits = recorded_waits(inputs.observed)
    on_cpu = not any(times.summary.on_gpu for times in inputs.run.ranks)
    told += in_recorded_steps(MACHINE, waits, uses, named | held.keys(), on_cpu=on_cpu)
    if not uses and not told:
        return [MACHINE.not_evaluated("nobody looked at the machine while the ranks trained (docs/observe.md)")]
    most = max((use.waited_pct or 0.0 for use in uses), default=0.0)
    return [
        MACHINE.verdict(
            *told,
            clear=f"no process of others works on the ranks' GPUs, and no rank waits more than {percent_text(most)} of "
            "the time for a core",
        )
    ]


def _late_for_cores(one: HeldByCores) -> Finding:
    """Of a rank whose recorded steps alone tell that it waits: the launcher saw too little of it, or another time."""
    return MACHINE.finding(
        "warning",
        "medium",
        f"Rank {one.rank} is late because it waits for a core: {ms_text(one.waited_ms)} ms of each recorded step "
        f"beyond its peers.{_cost_text(one)}",
        [
            Evidence(Fact.WAITS_FOR_A_CORE_BEYOND_ITS_PEERS, stored(one.waited_ms), "ms/step", rank=one.rank),
            Evidence(Fact.STEP, stored(one.step_ms), "ms"),
        ],
        ranks=[one.rank],
        impact_ms=stored(one.saved_ms),
        cause="shared_cores",
    )


def _with_cost(found: Finding, held: Mapping[int, HeldByCores]) -> Finding:
    """With what it costs that the others wait for its ranks."""
    late = [held[rank] for rank in found.ranks if rank in held] if found.cause in _OF_CORES else []
    if not late:
        return found
    worst = max(late, key=lambda one: one.saved_ms)
    severity = "warning" if found.severity == "info" else found.severity
    message, impact = f"{found.message}{_cost_text(worst)}", stored(worst.saved_ms)
    return replace(found, severity=severity, message=message, impact_ms=impact)


def _cost_text(one: HeldByCores) -> str:
    return (
        f" The others wait for rank {one.rank}: with cores as its peers have them, a recorded step of "
        f"{ms_text(one.step_ms)} ms would be up to {ms_text(one.saved_ms)} ms shorter."
    )


def _of_another_host(use: MachineUse, uses: tuple[MachineUse, ...]) -> float:
    """What the ranks of the emptiest other host wait, in the median: most ranks may be on crowded ones."""
    by_host = defaultdict(list)
    for one in uses:
        if one.host != use.host and one.crowded_pct is not None:
            by_host[one.host].append(one.crowded_pct)
    return min((statistics.median(own) for own in by_host.values()), default=float("inf"))


def _gpu(use: MachineUse, uses: tuple[MachineUse, ...], inputs: Inputs) -> Finding | None:
    late = any(
        use.rank in found.ranks and found.cause == "gpu_compute" for found in inputs.found_before("TO-S001", "TO-S002")
    )
    others = [one for one in use.on_gpu if (one.busy_pct or 0.0) >= _ACTIVE_PCT or late]
    if others:
        first = others[0]
        busy = "" if first.busy_pct is None else f", busy there for {percent_text(first.busy_pct)} of the time"
        memory = "" if first.bytes is None else f" holds {size_text(first.bytes)}"
        queued, shown = _queued(use.rank, inputs)
        return MACHINE.finding(
            "warning",
            "high" if late or first.busy_pct is not None else "medium",
            f"A process that is not of this run works on rank {use.rank}'s GPU: pid {first.pid}{memory}{busy}.{queued}",
            [
                Evidence(Fact.PID, first.pid, rank=use.rank),
                Evidence(Fact.MEMORY, first.bytes, "bytes", rank=use.rank),
                Evidence(Fact.BUSY, first.busy_pct, "% of the GPU's time", rank=use.rank),
                *shown,
            ],
            ranks=[use.rank],
            cause="other_process",
        )
    clocks = [one.mhz for one in uses if one.rank != use.rank and one.mhz is not None]
    if not late or use.mhz is None or not clocks or use.mhz >= _CLOCK * statistics.median(clocks):
        return None
    reasons = use.reasons or {}
    cause = next((name for name in ("power_cap", "too_hot") if reasons.get(name, 0.0) >= 50.0), "slow_clock")
    of = "" if use.gpu is None or not use.gpu.most_mhz else f" of {use.gpu.most_mhz:.0f}"
    why = {"power_cap": " at its power cap", "too_hot": " because it is too hot"}.get(cause, "")
    return MACHINE.finding(
        "warning",
        "high",
        f"Rank {use.rank}'s GPU runs at {use.mhz:.0f}{of} MHz{why}, its peers' at {statistics.median(clocks):.0f} MHz.",
        [
            Evidence(Fact.CLOCK, use.mhz, "MHz", rank=use.rank, peers=statistics.median(clocks)),
            Evidence(Fact.POWER, use.power_w, "W", rank=use.rank),
            Evidence(Fact.TEMPERATURE, use.celsius, "°C", rank=use.rank),
        ],
        ranks=[use.rank],
        cause=cause,
    )


def _queued(rank: int, inputs: Inputs) -> tuple[str, tuple[Evidence, ...]]:
    """What else the recorded steps show where kernels of this rank wait, and nothing of it runs; else nothing.

    It is no cost: a host that sets the pace does so too where each of its kernels starts late.
    """
    times = inputs.run.times_of(rank)
    share = None if times is None or not times.summary.on_gpu else times.share_pct("idle_dependency")
    if times is None or share is None or share < _QUEUED_PCT:
        return "", ()
    idle = times.mean_ms("idle_dependency")
    text = (
        f" In the recorded steps nothing of rank {rank} runs on it for {ms_text(idle)} of {ms_text(times.step_ms)} ms "
        "while kernels are queued. How much of that is the other process's, and how much the pace of the rank's host, "
        "cannot be told while both are there."
    )
    return text, (Evidence(Fact.BUCKET, stored(idle), "ms/step", rank=rank, subject="idle_dependency"),)


def _cores(use: MachineUse, uses: tuple[MachineUse, ...]) -> Finding | None:
    waited = use.waited_pct
    if waited is None or waited < WAITS_PCT:
        return None
    peers = crowded_peers_pct(use, uses)
    crowded = use.crowded_pct or 0.0
    alone = len(uses) > 1 and crowded >= _PEERS * min(peers, _of_another_host(use, uses))
    others = use.on_cores
    taken = sum(one.busy_pct or 0.0 for one in others)
    listed = ", ".join(map(_process, others[:3])) + (" and others" if len(others) > 3 else "")
    there = f" Others on this machine: {listed}." if taken >= _OTHERS_PCT else ""
    beside = f" (its peers {percent_text(peers)})" if len(uses) > 1 else ""
    wants = f": {percent_text(crowded)} of the time in which it wants one{beside}" if crowded else ""
    return MACHINE.finding(
        "warning" if alone or there or waited >= MUCH_PCT else "info",
        "high",
        f"Rank {use.rank}'s main thread waits {percent_text(waited)} of the time for a core{wants}.{there}",
        [
            Evidence(Fact.WAITS_FOR_A_CORE, round(waited, 1), "% of the time", WAITS_PCT, use.rank),
            Evidence(Fact.NO_CORE_WHEN_WANTED, round(crowded, 1), "%", rank=use.rank, peers=round(peers, 1)),
            *(
                Evidence(Fact.PID, one.pid, f"{one.name or 'a process'}, {one.busy_pct or 0:.0f} % of a core")
                for one in others[:3]
            ),
        ],
        ranks=[use.rank],
        cause="shared_cores",
    )


def _process(one: Stranger) -> str:
    return f"pid {one.pid} ({one.name}, {one.busy_pct or 0.0:.0f} % of a core)"


def _taken(use: MachineUse) -> Finding | None:
    for cause, pct in (("quota", use.refused_pct), ("stolen", use.stolen_pct)):
        if pct is not None and pct >= _LOST_PCT:
            return _taken_from([use.rank], cause, pct)
    return None


def _taken_from(ranks: list[int], cause: str, pct: float) -> Finding:
    one, several, what, of = _TAKEN[cause]
    verb = one if len(ranks) == 1 else several
    return MACHINE.finding(
        "warning",
        "medium",
        f"{who_first(ranks)} {verb} {what}: {percent_text(pct)} of {of}.",
        [Evidence(Fact.TAKEN, round(pct, 1), f"% of {of}", _LOST_PCT, ranks[0], subject=cause)],
        ranks=ranks,
        cause=cause,
    )


def _of_hosts(found: list[Finding], uses: tuple[MachineUse, ...]) -> list[Finding]:
    """What a quota or a hypervisor takes is a host's: one finding for all its ranks."""
    host = {use.rank: use for use in uses}
    by_host: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for one in found:
        if one.cause in _TAKEN:
            by_host[one.cause, host[one.ranks[0]].host].append(one.ranks[0])
    merged = []
    for (cause, _), ranks in by_host.items():
        assert cause is not None
        pcts = [host[rank].refused_pct if cause == "quota" else host[rank].stolen_pct for rank in ranks]
        merged.append(_taken_from(ranks, cause, max(pct or 0.0 for pct in pcts)))
    return [*(one for one in found if one.cause not in _TAKEN), *merged]


def _alike(found: list[Finding], ranks: int) -> list[Finding]:
    """One finding where all ranks wait for cores alike: the worst of them."""
    cores = [one for one in found if one.cause == "shared_cores"]
    if len(cores) < max(ranks, 2):
        return found
    worst = max(cores, key=lambda one: float(one.evidence[0].value or 0.0))
    every = MACHINE.finding(
        worst.severity, worst.confidence, f"All ranks wait for cores. {worst.message}", worst.evidence,
        ranks=sorted(rank for one in cores for rank in one.ranks), cause=worst.cause,
    )  # fmt: skip
    return [*(one for one in found if one.cause != "shared_cores"), every]
