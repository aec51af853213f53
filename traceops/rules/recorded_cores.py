"""What the recorded steps alone tell of ranks that wait for cores: the launcher looks too seldom at a short run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from traceops.across.core_waits import RecordedWait
from traceops.across.machine_use import MachineUse
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import who_first
from traceops.core.rule import Rule
from traceops.core.units import percent_text

WAITS_PCT = 10.0  # of the time, for a core
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
                Evidence("waits for a core", round(waiting[rank], 1), "% of recorded steps", least[rank], rank)
                for rank in sorted(ranks, key=lambda rank: -waiting[rank])[:_MOST_SHOWN]
            ],
            ranks=ranks,
            cause="shared_cores",
        )
    ]
