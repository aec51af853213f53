"""A hang on the terminal: the cause in a sentence, its proof, the ranks, and what to try next."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TextIO

from rich.table import Table

from traceops.core.rank_text import ranks_text, who_runs
from traceops.hangs.model import Diagnosis, Root
from traceops.render.console import PlainConsole, ascii_ranges, plain, say
from traceops.render.writers.terminal import MARK, STYLE
from traceops.report.hang_rows import RankGroup, merged_ranks
from traceops.report.hang_text import (
    hang_level,
    hang_sentence,
    operations_text,
    place_text,
    read_text,
    root_advice,
    root_label,
    root_sentence,
    shown_path,
    stall_text,
    state_text,
    unknown_ranks,
)

_WIDTHS = (60, 100)  # lines longer than that are hard to read in a log
_MOST_LINES = 16
_LIKED_LINES = 8  # with more, ranks that are nearly alike share a line
_MOST_EVIDENCE = 6
_MOST_PROBLEMS = 5
_MOST_NOTES = 5
_MOST_ADVICE = 400  # characters


def print_diagnosis(diagnosis: Diagnosis, file: TextIO, written: Path | None = None) -> None:
    """The cause first, for people who read a job's log over ssh; `written` is where the whole report lies."""
    console = PlainConsole(file=file, highlight=False)
    console.width = min(max(console.width if console.is_terminal else _WIDTHS[1], _WIDTHS[0]), _WIDTHS[1])
    level = hang_level(diagnosis)
    if not diagnosis.roots:
        say(console, f"{MARK[level]} {hang_sentence(diagnosis)}", STYLE[level], hanging=2)
    advised: set[str] = set()
    for number, root in enumerate(diagnosis.roots):
        if number:
            console.print()
        _print_root(console, root, advised)
    if diagnosis.ranks:
        console.print()
        console.print(_ranks(diagnosis))
        console.print()
    if diagnosis.roots:
        stall = stall_text(diagnosis)
        say(console, f"{stall}. Read: {read_text(diagnosis)}." if stall else f"Read: {read_text(diagnosis)}.")
        if unknown := unknown_ranks(diagnosis):
            say(console, f"Nothing is known of {who_runs(unknown, 12)}.")
    else:
        for rule, reason in diagnosis.not_evaluated.items():
            say(console, f"Not evaluated: {rule}, {reason}", "dim", hanging=2)
    _remarks(console, diagnosis)
    if written is not None:
        console.print(plain(f"Report: {ascii_ranges(str(written))}"), soft_wrap=True)


def _print_root(console: PlainConsole, root: Root, advised: set[str]) -> None:
    say(console, f"{MARK['error']} {root_sentence(root)} {root_label(root)}", STYLE["error"], hanging=2)
    for what, value in root.evidence[:_MOST_EVIDENCE]:
        say(console, f"    {what}: {value}", hanging=6)
    if len(root.evidence) > _MOST_EVIDENCE:
        say(console, f"    … {len(root.evidence) - _MOST_EVIDENCE} more in the report", "dim")
    advice = root_advice(root)
    if advice and advice not in advised:
        advised.add(advice)
        say(console, f"    → {textwrap.shorten(advice, _MOST_ADVICE, placeholder=' …')}", hanging=6)


def _ranks(diagnosis: Diagnosis) -> Table:
    """A line for equal ranks, causes first; columns that nobody fills are left out."""
    groups = merged_ranks(diagnosis, _LIKED_LINES)
    shown, rest = groups[:_MOST_LINES], groups[_MOST_LINES:]
    columns = {
        "rank": [ranks_text(group.ranks, 4) for group in shown],
        "state": [state_text(group) for group in shown],
        "step": [_value(group, "step") for group in shown],
        "in": [operations_text(group) for group in shown],
        "at, or doing": [place_text(group) for group in shown],
        "waits for": [ranks_text(group.waits_for, 4) for group in shown],
    }
    table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
    kept = [name for name, cells in columns.items() if any(cells)]
    for name in kept:
        table.add_column(
            name,
            no_wrap=name in ("state", "step"),
            overflow="fold",
            justify="right" if name == "step" else "left",
        )
    for index in range(len(shown)):
        style = STYLE["error"] if shown[index].root is not None else ""
        table.add_row(*(plain(ascii_ranges(columns[name][index])) for name in kept), style=style)
    if rest:
        left = sum(len(group.ranks) for group in rest)
        table.caption = f"{left} more ranks in hang_ranks.csv"
    return table


def _value(group: RankGroup, key: str) -> str:
    if key in group.differ:
        return "differs"
    value = group.shared(key)
    return "" if value is None else str(value)


def _remarks(console: PlainConsole, diagnosis: Diagnosis) -> None:
    """What could not be read, and what the reader should know of what was."""
    problems, notes = (
        diagnosis.evidence.problems,
        list(diagnosis.notes),
    )
    for path, what in problems[:_MOST_PROBLEMS]:
        say(console, f"Not used: {shown_path(diagnosis, path)}: {what}", STYLE["warning"], hanging=2)
    if len(problems) > _MOST_PROBLEMS:
        say(console, f"… and {len(problems) - _MOST_PROBLEMS} more files that could not be used")
    for note in notes[:_MOST_NOTES]:
        say(console, f"Note: {note}", "dim", hanging=2)
    if len(notes) > _MOST_NOTES:
        say(console, f"… and {len(notes) - _MOST_NOTES} more notes in the report", "dim")
