"""The ranks' light windows, read and measured: where the undisturbed step goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traceops.across.cross_rank import CrossRank
from traceops.across.plain_step import PlainStep
from traceops.across.undisturbed import Undisturbed, undisturbed
from traceops.core.light_log import LATER_LIGHT_FILES, LIGHT_FILE
from traceops.core.rank_text import who
from traceops.measure.light import LightActivity, light_activity
from traceops.pipeline.observed_run import MOST_RANKS
from traceops.traces.discover import Discovery
from traceops.traces.light import read_light


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
    notes += _troubles(found.manifest)
    return made, tuple(notes)


def _read(found: Discovery, run: CrossRank, file: str, notes: list[str]) -> list[LightActivity]:
    """One window of all ranks, of those that have it; what is wrong with it goes to `notes`."""
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


def _troubles(manifest: Mapping[str, Any]) -> list[str]:
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
