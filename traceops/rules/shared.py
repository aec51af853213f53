"""What several families of rules ask: whether ranks can be compared, who waits for a core, what a role is called."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, UnsetType

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import RankTimes, role_of_groups, waiting_role
from traceops.across.run_use import MachineUse
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import median
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.units import stored
from traceops.core.words import ROLES, Role, StepWords
from traceops.measure.host_places import CodePlace
from traceops.rules.inputs import Inputs

IMPACT_BOUNDS = (10.0, 20.0)  # percent of the step: warning, error
WAITS_PCT = 10.0  # of the time, for a core

# Whether the ends of collectives fit together, so that ranks can be compared.

MOST_OUT_OF_STEP_PCT = 5.0  # of the step: median spread of aligned ends beyond which ranks are not compared
_CROWDED_PCT, _WAIT_TIMES = (10.0, 10.0)  # of ranks that share cores: spread by the step, and waiting by the spread


def ends_fit(run: CrossRank) -> bool:
    """Whether the ends of collectives fit well enough to tell who is late. Ranks that share cores see an end late;
    where they wait for each other ten times as long, that is no doubt."""
    spread_pct, spread_ms = out_of_step_pct(run), (run.clocks.residual_p50_ns or 0.0) / 1e6
    if spread_pct <= MOST_OUT_OF_STEP_PCT:
        return True
    if spread_pct > _CROWDED_PCT or run.clocks.unaligned or not (on_cpu(run) and on_one_host(run)):
        return False
    return max(times.mean_ms("comm_wait") for times in run.ranks) >= _WAIT_TIMES * spread_ms


def out_of_step_pct(run: CrossRank) -> float:
    """Median spread of the aligned ends of one collective, percent of the step."""
    step_ns = 1e6 * run.step_ms
    return 100 * (run.clocks.residual_p50_ns or 0.0) / step_ns if step_ns else 0.0


def on_cpu(run: CrossRank) -> bool:
    return not any(times.summary.on_gpu for times in run.ranks)


def on_one_host(run: CrossRank) -> bool:
    """Whether all ranks are known to run on the same host, and so read the same clock."""
    hosts = {run.hosts.get(times.summary.rank) for times in run.ranks}
    return len(hosts) == 1 and None not in hosts


# What a step without the profiler leaves beside the device's work, and what others wait in it.

_DEVICE_WORK = ("compute", "comm_transfer", "comm_unmatched", "memory")


def work_ms(times: RankTimes) -> float:
    """What the device of this rank works for in a step."""
    return sum(times.mean_ms(own) for own in _DEVICE_WORK)


def room_ms(times: RankTimes, step_ms: float) -> float:
    """What a step of this length leaves beside the device's work."""
    return step_ms - work_ms(times)


def waited_for_ms(undisturbed: Undisturbed, rank: int) -> float | None:
    """What the others wait in the undisturbed step, mean over them; None where that is not told."""
    others = [one.wait_ms for one in undisturbed.ranks if one.rank != rank]
    return float(np.mean(others)) if others and undisturbed.of(rank) is not None else None


def core_wait_ms(inputs: Inputs, rank: int) -> float:
    """What a rank's main thread waits for a core, ms per step, because its cores are fuller than its peers'; else 0."""
    use = next((one for one in inputs.machine if one.rank == rank), None)
    if use is None or use.waited_pct is None or not use.crowded_pct or inputs.whole is None:
        return 0.0
    fuller = max(use.crowded_pct - crowded_peers_pct(use, inputs.machine), 0.0) / use.crowded_pct
    return fuller * use.waited_pct / 100 * inputs.whole.typical_ms


def crowded_peers_pct(use: MachineUse, uses: tuple[MachineUse, ...]) -> float:
    known = [one.crowded_pct for one in uses if one.rank != use.rank and one.crowded_pct is not None]
    return statistics.median(known) if known else 0.0


def line_of(place: CodePlace, rank: int | None = None) -> list[Evidence]:
    """The line of the program at a place, where its text is known."""
    line = Evidence(Fact.LINE, place.text, rank=rank, file=place.file, line=max(place.line, 1))
    return [line] if place.text else []


# The kind of parallelism that a finding is about.

_LEAST_MS = 0.01


def late_in(run: CrossRank, rank: int) -> Role | UnsetType:
    """The role in which the others first wait for a rank."""
    if run.replay is None:
        return UNSET
    late = {straggler.rank for straggler in run.replay.stragglers.found}
    peers = [peer for peer in run.replay.graph.peers(rank) if peer not in late]
    return _told(waiting_role(run.replay.graph, run.roles, rank, peers))


def role_of(run: CrossRank, groups: Sequence[tuple[int, ...]]) -> Role | UnsetType:
    """What these groups are for."""
    return _told(role_of_groups(run.roles, run.matching, groups))


def role_name(run: CrossRank, role: Role | UnsetType) -> str | None:
    """'tensor parallel'; None where it is not known, or where all communication is of one role."""
    return None if role is UNSET or not run.roles.several else ROLES[role]


def transfer_by_role(run: CrossRank) -> dict[Role, float]:
    """Exposed transfer by role, ms per step: medians over ranks, most first; {} where all is of one role."""
    if not run.roles.several:
        return {}
    found = {}
    for role in (*run.roles.known, "unknown"):
        own = [
            float(by_role[role].transfer[times.typical].mean()) / 1e6
            for times in run.ranks
            if times.typical.any() and role in (by_role := run.role_times[times.summary.rank])
        ]
        if own and (ms := median(own)) >= _LEAST_MS:
            found[role] = ms
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def role_evidence(by_role: dict[Role, float], words: StepWords) -> list[Evidence]:
    """A number a role."""
    return [Evidence(Fact.OF_ROLE, stored(ms), words.unit("ms"), subject=ROLES[role]) for role, ms in by_role.items()]


def main_role(by_role: dict[Role, float]) -> Role | UnsetType:
    """The role of more than half of it."""
    role = next(iter(by_role), None)
    return _told(role if role is not None and 2 * by_role[role] > sum(by_role.values()) else None)


def _told(role: Role | None) -> Role | UnsetType:
    return UNSET if role is None or role == "unknown" else role
