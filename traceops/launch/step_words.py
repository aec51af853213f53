"""Which steps the captures have, whole or not, and in words what they took for a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceops.capture.manifest import RankManifest
from traceops.core.capture_failure import ShorterSchedule, shorter_schedule
from traceops.core.rank_files import seldom as seldom_in
from traceops.core.rank_files import usual_ends
from traceops.core.rank_text import who


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
