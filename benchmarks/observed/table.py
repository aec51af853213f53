"""The table of runs.py: what was said of each program beside what is true of it.

CUPTI made host-bound steps of the runs by themselves longer too. So the device's work is the milliseconds that it saw,
of a step that it did not touch, and the rest of that step is idle time and waiting. How these two divide is CUPTI's
word, and which rank waits for which may change from run to run: "work, points off" leaves both out.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

_STEP_PERCENT, _SHARE_POINTS = 3.0, 5.0
_KINDS = ("busy", "waiting", "idle")
HEAD = (
    "| program | true step, ms | in the same run | said | off, % | busy, true | said | waiting, true | said "
    "| idle, true | said | work, points off | points off | in order, points off | together, points off "
    "| the same run, points off | light ÷ other steps | first finding |"
)
Rank = dict[str, float]  # shares of its step by kind


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown; a truth is a range where the program ran twice by itself."""
    lines = [HEAD, f"|---|{'--:|' * (HEAD.count('|') - 2)}"]
    lines += [row(name, result) for name, result in results.items()]
    return "\n".join(lines)


def one_gpu_table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown, of programs of one rank: without waiting, with what the step takes where no trouble is planted."""
    lines = [
        "| program | true step, ms | in the same run | said | off, % | all of the training, ms a step: planted | tidy "
        "| busy, true | said | points off | light ÷ other steps | steps: its own | ours | result | findings |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, result in results.items():
        cells = row(name, result)[2:-2].split(" | ")
        words = {run: (result.get(run) or {}).get("own") or {} for run in ("alone", "tidy", "traced", "again")}
        said = (result.get("traced") or {}).get("said") or {}
        weights = {words[run].get("weights") for run in ("alone", "traced")}
        chosen = [
            *cells[:5], words["alone"].get("ms", ""), words["tidy"].get("ms", ""), *cells[5:7], cells[11],
            cells[16],
        ]  # fmt: skip
        chosen += [words["traced"].get("steps", ""), str(said.get("counted", ""))]
        itself = {words[run].get("weights") for run in ("alone", "again")}
        chosen += ["" if None in weights else "equal" if len(weights) == 1 else "differs"]
        chosen[-1] += "" if None in itself else ", from itself too" if len(itself) == 2 else ", not from itself"
        chosen.append("; ".join(one.split(":")[0] for one in said.get("findings") or ()) or "none")
        lines.append(f"| {' | '.join(chosen)} |")
    return "\n".join(lines)


def row(name: str, result: dict[str, Any]) -> str:
    """One program's. The share of the step farthest from its truth is marked where it is beyond 5 points."""
    truths = [clock for run in ("alone", "again") if (clock := (result.get(run) or {}).get("clock"))]
    traced = result.get("traced") or {}
    said = traced.get("said") or {}
    told, findings = said.get("undisturbed"), said.get("findings") or ["none"]
    steps = [clock["step_ms"] for clock in truths]
    clock = traced.get("clock")
    near = f"{clock['before_ms']:.1f}, then {clock['late_ms']:.1f}" if clock else ""
    step_ms = told["step_ms"] if told else said.get("typical_ms")
    cells = [name, _range(steps), near, _number(step_ms), _step_off(steps, step_ms)]
    true, claimed = _true(truths), _said(told, truths)
    for kind in _KINDS:
        cells += [_shares([[job[rank][kind] for job in true] for rank in range(len(true[0]) if true else 0)])]
        cells += [_shares([[rank[kind]] for rank in claimed])]
    cells += [_points(_off(true, claimed, ("busy",))), _points(_off(true, claimed))]
    cells.append(_points(_off([_in_order(job) for job in true], _in_order(claimed))))
    cells.append(_points(_off([_together(job) for job in true], _together(claimed))))
    own = [clock] if clock and clock["shares"] else []
    cells.append(_points(_off(_true(own), _said(told, own))))
    cells.append(", ".join(f"{c['cupti_ms'] / c['step_ms']:.3f}" for c in truths if c["cupti_ms"]))
    return f"| {' | '.join([*cells, findings[0].replace('|', '/')])} |"


def _true(truths: list[dict[str, Any]]) -> list[list[Rank]]:
    """Of each run, by rank. Waiting is all communication where one of them cannot divide it."""
    divided = all(clock["divided"] for clock in truths)
    return [
        [_of_plain_step(clock, clock["shares"][rank], divided) for rank in sorted(clock["shares"])]
        for clock in truths
        if clock["shares"]
    ]


def _of_plain_step(clock: dict[str, Any], shares: dict[str, float], divided: bool) -> Rank:
    """Shares of the step that CUPTI did not touch: its device works for as long, and is idle or waits for less."""
    longer = clock["cupti_ms"] / clock["step_ms"]
    busy, transfer = longer * shares["busy"], longer * shares["transfer"]
    free = shares["waiting"] + shares["idle"]
    left = max(100 - busy - transfer, 0.0) / free if free else 0.0
    waiting = left * shares["waiting"] + (0.0 if divided else transfer)
    return {"busy": busy, "waiting": waiting, "idle": left * shares["idle"]}


def _said(told: dict[str, Any] | None, truths: list[dict[str, Any]]) -> list[Rank]:
    """By rank, divided as the truths are."""
    if told is None:
        return []
    divided = all(clock["divided"] for clock in truths)
    waiting = ("comm_wait_ms",) if divided else ("comm_wait_ms", "comm_unmatched_ms", "comm_transfer_ms")
    names = {"busy": ("compute_ms", "memory_ms"), "waiting": waiting, "idle": ("idle_ms",)}
    return [
        {kind: 100 * sum(rank[name] for name in own) / told["step_ms"] for kind, own in names.items()}
        for rank in sorted(told["ranks"], key=lambda one: int(one["rank"]))
    ]


def _in_order(ranks: list[Rank]) -> list[Rank]:
    """Which of two equal ranks is ahead is chance in each run: the one first that waits most."""
    return sorted(ranks, key=lambda rank: -rank["waiting"])


def _together(ranks: list[Rank]) -> list[Rank]:
    """The mean over ranks, as the only one: what does not depend on which of them is ahead."""
    return [{kind: fmean(rank[kind] for rank in ranks) for kind in _KINDS}] if ranks else []


def _off(true: list[list[Rank]], said: list[Rank], kinds: tuple[str, ...] = _KINDS) -> list[float]:
    """How far each share is from the range of truths, in points."""
    if not true or len(true[0]) != len(said):
        return []
    return [
        _outside([job[rank][kind] for job in true], said[rank][kind]) for rank in range(len(said)) for kind in kinds
    ]


def _points(offs: list[float]) -> str:
    """The worst of them, marked where it is beyond 5 points."""
    worst = max(offs, default=None)
    return "" if worst is None else f"{worst:.1f}{' ✗' if worst > _SHARE_POINTS else ''}"


def _outside(true: list[float], said: float) -> float:
    """How far from the range of truths."""
    return max(min(true) - said, said - max(true), 0.0)


def _step_off(steps: list[float], said: float | None) -> str:
    """Against the nearer truth; marked beyond 3 %, and with ~ where the truths are as far apart themselves."""
    if not steps or not said:
        return ""
    off = min((100 * (said / step - 1) for step in steps), key=abs)
    apart = 100 * (max(steps) / min(steps) - 1) > _STEP_PERCENT
    return f"{off:+.1f}{' ✗' if abs(off) > _STEP_PERCENT else ''}{' ~' if apart else ''}"


def _range(values: list[float]) -> str:
    return "–".join(f"{value:.1f}" for value in values)


def _shares(ranks: list[list[float]]) -> str:
    return ", ".join(_range(values) for values in ranks)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
