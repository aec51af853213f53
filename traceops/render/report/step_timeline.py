"""The figure of every recorded step, to zoom into: numbers packed for the page's script."""

from __future__ import annotations

import base64
import shlex
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from traceops.core.arrays import Bars, Int
from traceops.core.findings import Finding
from traceops.core.words import ROLES
from traceops.render.document import Block, Code, Place, StepTimeline, fold, soft
from traceops.render.report.rank_groups import drawn_ranks
from traceops.render.report.terms import say
from traceops.report.detail import Detail, DetailRank, DetailStep
from traceops.report.model import Report

_FINEST = 1 << 20  # of the step: the unit that moments are counted in, from 1 ns
_ROOM = 60_000  # bytes of a page for all steps


def step_timeline(report: Report, instead: Sequence[Block]) -> StepTimeline | None:
    """All steps of the ranks shown; None without what it is drawn from. `instead` is shown where no script runs."""
    if report.detail is None:
        return None
    data = packed(report.detail, _longest(report.detail), len(report.ranks))
    data |= drawn_ranks(report, report.detail)
    return StepTimeline("steps-zoom", say("timeline", "label", report.summary.step_words), data, tuple(instead))


def fitting(detail: Detail) -> Detail:
    """The longest step, and of the others as many as a page has room for, by their packed sizes."""
    longest, room, kept = _longest(detail), _ROOM, []
    for place in sorted(range(len(detail.steps)), key=lambda place: place != longest):
        size = len(_blob(detail.steps[place]))
        if place == longest or size <= room:
            kept.append(place)
            room -= size
    return msgspec.structs.replace(detail, steps=tuple(detail.steps[place] for place in sorted(kept)))


def packed(detail: Detail, first: int, ranks: int) -> dict[str, Any]:
    """What the script takes: names and, of each step, all but its number, zipped; roles. first: the place of the step
    that is shown at first. ranks: of the run, of which these may be a few."""
    steps = [{"step": step.step, "data": _blob(step)} for step in detail.steps]
    return {
        "names": _zipped(msgspec.json.encode(detail.names)),
        "roles": list(ROLES.values()),
        "first": first,
        "ranks": ranks,
        "aligned": detail.aligned,
        "steps": steps,
    }


def how_to_open(report: Report) -> Block:
    """The commands that show the same in Perfetto, with every event."""
    path = shlex.quote(f"profile/{report.run.name or 'RUN'}")
    rules = list(dict.fromkeys(finding.rule for finding in report.findings if finding.ranks))[:3]
    lines = [f"traceops view {path} --around {rule}" for rule in rules]
    if (step := detail_step(report)) is not None:
        lines.append(f"traceops view {path} --steps {step}")
    if not lines:
        lines.append(f"traceops view {path}")
    how = soft(say("timeline", "open_how"))
    return fold(say("timeline", "open"), how, Code(tuple(lines), "Commands"))


def detail_step(report: Report) -> int | None:
    """The step that is shown at first."""
    return None if report.detail is None else report.detail.steps[_longest(report.detail)].step


def finding_place(finding: Finding, report: Report) -> Place | None:
    """Where the timeline shows a finding: a step of those it names, and a rank that is drawn; None without either. None
    too where it names steps of the run and none of them was recorded."""
    if (detail := report.detail) is None:
        return None
    drawn = {rank.rank for step in detail.steps for rank in step.ranks}
    lengths = {step.step: step.length_ns for step in detail.steps if step.step in finding.steps}
    rank = next((rank for rank in finding.ranks if rank in drawn), None)
    if not lengths and (rank is None or finding.steps):
        return None
    return max(lengths, key=lambda step: lengths[step]) if lengths else detail_step(report), rank


def _longest(detail: Detail) -> int:
    lengths = [max((rank.end - rank.begin for rank in step.ranks), default=0) for step in detail.steps]
    return max(range(len(lengths)), key=lambda place: lengths[place])


@lru_cache(maxsize=32)  # a step's size is asked for before it is written
def _blob(step: DetailStep) -> str:
    """A head in JSON, then columns of 32 bits with bytes of equal weight beside each other; zipped, in base64 with '-'
    for '/', which JSON inside a page escapes. The columns, each of all lanes: the gap since the bar before, how long it
    lasts, its name, how many events more than one it stands for, and how long it is idle within."""
    unit = max(step.length_ns // _FINEST, 1)
    words: dict[str, int] = {}
    ranks = []
    for rank in step.ranks:
        lanes = [[lane.of[0], lane.lane, lane.level, len(lane.bars)] for lane in rank.lanes]
        ranks.append({
            "rank": rank.rank, "begin": rank.begin, "end": rank.end, "unseen": rank.unseen, "lanes": lanes,
            "moved": _moved(rank, words),
        })  # fmt: skip
    text = msgspec.json.encode({"length": step.length_ns, "unit": unit, "ranks": ranks, "words": list(words)})
    text += b" " * (-len(text) % 4)
    whole = np.concatenate(_columns([lane.bars for rank in step.ranks for lane in rank.lanes], unit))
    planes = whole.astype("<i4").view(np.uint8).reshape(-1, 4).T.tobytes()
    return _zipped(len(text).to_bytes(4, "little") + text + planes)


def _zipped(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9), b"+-").decode()


def _columns(lanes: Sequence[Bars], unit: int) -> tuple[Int, ...]:
    if not lanes:
        return (np.empty(0, dtype=np.int64),)
    begin, end, name, count, busy = (
        np.concatenate([getattr(bars, column) for bars in lanes]).astype(np.int64, copy=False)
        for column in ("start", "end", "name", "count", "busy")
    )
    start = np.maximum(begin, 0) // unit
    lasts = np.maximum(end // unit - start, 0)
    gaps = start.copy()
    gaps[1:] -= (start + lasts)[:-1]
    first = np.cumsum([0, *map(len, lanes)])[:-1]
    first = first[first < len(gaps)]
    gaps[first] = start[first]
    idle = np.where(count > 1, np.maximum(lasts - busy // unit, 0), 0)
    return gaps, lasts, name, count - 1, idle


def _moved(rank: DetailRank, words: dict[str, int]) -> list[list[int | float | None]]:
    """Transfers as [start, turn, end, operation, group, role, bytes, GB/s, who came last, stage]: the start since the
    one before, turn and end since the start.

    -1 and None are not known.
    """
    roles = list(ROLES)
    starts = [one.start for one in rank.transfers]
    return [
        [
            one.start - before,
            None if one.turn is None else one.turn - one.start,
            one.end - one.start,
            words.setdefault(one.op, len(words)),
            words.setdefault(one.group, len(words)),
            roles.index(one.role),
            -1 if one.bytes is None else one.bytes,
            None if one.busbw_gbs is None else round(one.busbw_gbs, 2),
            -1 if one.last_rank is None else one.last_rank,
            one.stage,
        ]
        for one, before in zip(rank.transfers, [0, *starts], strict=False)
    ]
