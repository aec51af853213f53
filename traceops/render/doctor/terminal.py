"""A checkup on the terminal: what is wrong and what to do first, then what was tried and measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TextIO

from rich.table import Table

from traceops.core.units import rate_text
from traceops.doctor.model import BAD, Checkup, Trial
from traceops.doctor.settings import shell_lines
from traceops.machine.look import Look, count_levels
from traceops.render.console import PlainConsole, ascii_ranges, plain, rich_table, say
from traceops.render.doctor.rows import PairMatrix, attempts, measured_with, pair_matrices
from traceops.render.doctor.text import (
    bandwidth_text,
    doctor_verdict,
    fallback_lines,
    largest,
    log_text,
    looks_not_ok,
    machine_lines,
    measured_devices,
    nccl_warnings,
    other_findings,
    read_text,
    trial_devices,
    with_text,
)
from traceops.render.evidence_text import evidence_lines
from traceops.render.writers.terminal import MARK, STYLE

_WIDTHS = (60, 110)  # lines longer than that are hard to read in a log
_MOST_HOSTS = 8  # lines of machines
_MOST_MATRIX = 16  # devices
_MOST_WARNINGS = 5
_MOST_SAID = 3  # lines of a failed test's output
_STATE = {
    "note": "info",
    "not_evaluated": "dim",
    "ok": "clear",
    "wrong": "error",
    "failed": "error",
    "hung": "error",
}


def print_doctor(
    checkup: Checkup, file: TextIO, written: Sequence[Path] = (), *, verbose: bool = False
) -> None:
    """The verdict first, then the rest; verbose: also what is all right. `written`: the files, the page first."""
    console = PlainConsole(file=file, highlight=False)
    console.width = min(max(console.width if console.is_terminal else _WIDTHS[1], _WIDTHS[0]), _WIDTHS[1])
    for what, joined in machine_lines(checkup.machines)[:_MOST_HOSTS]:
        say(console, what, "bold", hanging=2)
        say(console, joined, hanging=2)
    if checkup.log is not None and not checkup.trials:
        say(console, log_text(checkup.log), hanging=2)
    verdict = doctor_verdict(checkup)
    say(console, f"{MARK[verdict.level]} {verdict.sentence}", STYLE[verdict.level], hanging=2)
    if read := read_text(checkup):
        say(console, read, "dim")
    if checkup.log is not None and not checkup.trials:
        quoted = {(one.file, one.line) for finding in checkup.findings for one in finding.evidence}
        warned = [one for one in nccl_warnings(checkup.log) if (one.path, one.line) not in quoted]
        for quote in warned[:_MOST_WARNINGS]:
            say(console, f"{PurePath(quote.path).name}:{quote.line}: {quote.text}", "dim", hanging=4)
    for finding in other_findings(checkup):
        style = STYLE[finding.severity]
        text = f"{MARK[finding.severity]} {finding.rule} {finding.title}. {finding.message}"
        say(console, text, style, hanging=2)
        for line in evidence_lines(finding):
            say(console, f"    {line}", "dim", hanging=6)
        if finding.advice and finding.severity != "info":
            say(console, f"    → {finding.advice}", hanging=6)
    _looks(console, checkup, verbose)
    _trials(console, checkup, verbose)
    _attempts(console, checkup)
    _bandwidth(console, checkup)
    document = next((str(path) for path in written if path.suffix == ".json"), "doctor.json")
    _settings(console, checkup, document)
    for path, problem in checkup.problems[:5]:
        say(console, f"Not used: {path}: {problem}", STYLE["warning"], hanging=2)
    if written:
        names = ", ".join(path.name for path in written[1:])
        console.print(
            plain(f"Report: {written[0]}{f' (beside it {names})' if names else ''}"), soft_wrap=True
        )


def _looks(console: PlainConsole, checkup: Checkup, verbose: bool) -> None:
    """A line a look that is not ok, with its advice below; what could not be looked at only counted, unless verbose."""
    wrong = looks_not_ok(checkup)
    shown = [look for look in wrong if verbose or look.level != "not_evaluated"]
    shown += [look for look in checkup.looks if look.level == "ok"] if verbose else []
    several = len(checkup.hosts) > 1
    merged: dict[tuple[str, ...], tuple[Look, list[str]]] = {}
    for look in shown:
        key = (look.area, look.what, look.found, look.level, look.why, look.advice)
        merged.setdefault(key, (look, []))[1].append(look.host)
    for look, hosts in merged.values():
        where = (
            f" ({', '.join(dict.fromkeys(hosts))})"
            if several and len(set(hosts)) < len(checkup.hosts)
            else ""
        )
        level = _STATE.get(look.level, look.level)
        mark = MARK.get(level, "·")
        rule = f"{look.rule} " if look.rule and look.level != "ok" else ""
        text = (
            f"{mark} {rule}{look.area}, {look.what}{where}: {look.found}{'; ' + look.why if look.why else ''}"
        )
        say(console, text, STYLE.get(level, level), hanging=2)
        if look.advice:
            say(console, f"    → {look.advice}", hanging=6)
    levels = count_levels(checkup.looks)
    if checkup.looks:
        unseen = f", {levels.not_evaluated} could not be looked at" if levels.not_evaluated else ""
        more = "" if verbose else "; -v lists all"
        say(
            console,
            f"{levels.ok} of {len(checkup.looks)} things looked at are all right{unseen}{more}.",
            "dim",
        )


def _trials(console: PlainConsole, checkup: Checkup, verbose: bool) -> None:
    """The tests with the environment as it is; verbose: with each change too."""
    shown = [trial for trial in checkup.trials if verbose or trial.as_it_is]
    if not shown:
        return
    changed = any(not trial.as_it_is for trial in shown)
    took = any(trial.transports for trial in shown)
    header = [
        "test",
        "outcome",
        "on",
        "s",
        "of",
        *(["changed"] if changed else []),
        *(["NCCL took"] if took else []),
    ]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in header:
        table.add_column(title, justify="right" if title in ("s", "of") else "left", overflow="fold")
    for trial in shown:
        cells = [trial.name, trial.outcome.replace("_", " "), trial_devices(checkup, trial)]
        cells += [f"{trial.seconds:.1f}", f"{trial.deadline_s:.0f}"]
        cells += [_changed(trial)] if changed else []
        cells += [", ".join(trial.transports)] if took else []
        style = STYLE["error"] if trial.outcome in BAD else ""
        table.add_row(*(plain(ascii_ranges(cell)) for cell in cells), style=style)
    console.print(table)
    for trial in shown:
        if trial.outcome != "ok" and trial.message:
            say(console, f"  {trial.name}: {trial.message}", hanging=4)
        if trial.outcome in BAD:
            for line in trial.said[:_MOST_SAID]:
                say(console, f"    {line}", "dim", hanging=6)


def _attempts(console: PlainConsole, checkup: Checkup) -> None:
    rows = [
        (
            one.change,
            "yes, advised" if one.chosen and one.works else "yes" if one.works else "no",
            "" if one.gbs is None else rate_text(one.gbs),
        )
        for one in attempts(checkup)
    ]
    if rows:
        console.print(rich_table(("change", "works", "all-reduce GB/s"), _plain_rows(rows), left=(0, 1)))


def _bandwidth(console: PlainConsole, checkup: Checkup) -> None:
    """The largest message of each operation in a line, and the matrix of pairs."""
    hosts = {one.host for one in checkup.measured}
    change = measured_with(checkup)
    with_ = f" {with_text(change)}" if change.size else ""
    for host in sorted(hosts, key=str):
        rows = [one for one in largest(checkup.measured) if one.host == host]
        if rows:
            where = f" on {host}" if len(hosts) > 1 and host else ""
            on = measured_devices(checkup, rows[0])
            said = ", ".join(bandwidth_text(one) for one in rows)
            say(console, f"Bus bandwidth{where}{with_}, {on}: {said}.", hanging=2)
    for matrix in pair_matrices(checkup):
        _matrix(console, matrix)


def _matrix(console: PlainConsole, matrix: PairMatrix) -> None:
    if not 1 < len(matrix.gpus) <= _MOST_MATRIX:
        return
    rows = [
        [matrix.name(one), *("" if one == other else _cell(matrix, (one, other)) for other in matrix.gpus)]
        for one in matrix.gpus
    ]
    slow = ", ".join(f"{matrix.name(a)} to {matrix.name(b)}" for a, b in sorted(matrix.slow)[:6])
    where = f"GB/s on {matrix.host}" if matrix.host else "GB/s"
    header, *shown = _plain_rows(([where, *map(str, matrix.gpus)], *rows))
    console.print(rich_table(header, shown, left=(0,)))
    if slow:
        say(console, f"! far below the others: {slow}", hanging=2)


def _cell(matrix: PairMatrix, pair: tuple[int, int]) -> str:
    if pair in matrix.outcomes:
        return matrix.outcomes[pair]
    gbs = matrix.gbs.get(pair)
    return "–" if gbs is None else rate_text(gbs) + ("!" if pair in matrix.slow else "")


def _settings(console: PlainConsole, checkup: Checkup, document: str) -> None:
    """The lines to paste into a shell, whole, so that they can be copied."""
    if checkup.settings is not None:
        change = checkup.settings.change
        console.print()
        if change.does:
            say(console, change.does, hanging=2)
        if change.costs:
            say(console, f"It costs: {change.costs}", hanging=2)
        for line in shell_lines(change.set, change.unset):
            console.print(plain(line, "bold"), soft_wrap=True)
        if checkup.fallback is None:
            say(console, f"The same: traceops run --settings {document}", "dim")
    for line in fallback_lines(checkup, document):
        say(console, line)


def _changed(trial: Trial) -> str:
    return " ".join(
        [*(f"{name}={value}" for name, value in trial.set.items()), *(f"-{name}" for name in trial.unset)]
    )


def _plain_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Cells as a terminal takes them: rich prints what is given to it."""
    return [[plain(ascii_ranges(cell)).plain for cell in row] for row in rows]
