"""The tables of a checkup on the page: what was looked at and tried, bandwidth, and the matrix of pairs."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.core.units import message_text, rate_text
from traceops.doctor.model import Checkup, EnvironmentChange, Outcome, Trial
from traceops.machine.look import Level, Look
from traceops.render.cells import Cell, Column, Table, build_table, name, number
from traceops.render.doctor.rows import Attempt, PairMatrix, attempts, measured_with
from traceops.render.doctor.text import change_text, largest, looks_not_ok, measured_devices, trial_devices, with_text
from traceops.render.report.terms import COLUMNS

_WORD = 160  # characters before the middle of a text is left out
_CSS: dict[Level | Outcome, str] = {
    "ok": "status clear",
    "note": "status note",
    "warning": "status warned",
    "error": "status fired",
    "wrong": "status fired",
    "failed": "status fired",
    "hung": "status fired",
    "not_evaluated": "status not_evaluated",
}
_MOST_WHY = 2000
_HEAT = "0, 114, 178"


@dataclass(frozen=True)
class _LookRow:
    """A look, and all hosts of which it is true."""

    look: Look
    hosts: tuple[str, ...]


def looks_table(checkup: Checkup) -> Table:
    """Everything that was looked at, the worst first; equal looks of several hosts in one row."""
    order = [*looks_not_ok(checkup), *(look for look in checkup.looks if look.level == "ok")]
    merged: dict[tuple[str, ...], tuple[Look, list[str]]] = {}
    for look in order:
        key = (look.area, look.what, look.found, look.level, look.why, look.advice)
        merged.setdefault(key, (look, []))[1].append(look.host)
    rows = [_LookRow(look, tuple(hosts)) for look, hosts in merged.values()]
    columns = [
        Column("level", "Level", number=False, make=lambda row: _state(row.look.level)),
        Column("area", "Area", number=False, make=lambda row: Cell(row.look.area)),
        Column("what", "What", number=False, make=lambda row: _text(row.look.what)),
        Column("found", "Found", number=False, make=lambda row: _text(row.look.found)),
        Column("why", "Why, and what to do", number=False, make=_why),
    ]
    if any(look.rule for look in order if look.level != "ok"):
        columns.insert(1, Column("rule", "Rule", number=False, make=lambda row: _rule(row.look)))
    if len(checkup.hosts) > 1:
        columns.insert(1, Column("hosts", "Host", number=False, make=_hosts))
    return build_table("What was looked at", columns, rows)


def trials_table(checkup: Checkup) -> Table:
    """Every test in child processes, as it ran."""
    columns = [
        Column("trial", "Test", number=False, make=lambda row: Cell(row.name)),
        Column("outcome", "Outcome", number=False, make=lambda row: _state(row.outcome)),
        Column("gpus", "On", number=False, make=lambda row: Cell(trial_devices(checkup, row), css="nowrap")),
        Column("seconds", "Took s", make=lambda row: number(row.seconds, 1)),
        Column("deadline", "Allowed s", make=lambda row: number(row.deadline_s, 0)),
        Column("changed", "Changed", "variables against the environment as it is", number=False, make=_changed),
        Column("ways", "NCCL took", number=False, make=lambda row: Cell(", ".join(row.transports))),
        Column("message", "What it said", number=False, make=_message),
    ]
    empty = set() if any(trial.transports for trial in checkup.trials) else {"ways"}
    empty |= {"changed"} if all(trial.as_it_is for trial in checkup.trials) else set()
    shown = [column for column in columns if column.key not in empty]
    return build_table("Tests, each in processes of its own with a deadline", shown, checkup.trials)


def attempts_table(checkup: Checkup) -> Table | None:
    """What was tried where something failed or was slow; None where nothing else was tried."""
    rows = attempts(checkup)
    if not rows:
        return None
    columns = [
        Column("change", "With", number=False, make=lambda row: _text(row.change)),
        Column("works", "Works", number=False, make=_works),
        Column("gbs", "All-reduce GB/s", "bus bandwidth", make=lambda row: number(row.gbs)),
        Column("said", "What it said", number=False, make=lambda row: _text(row.said)),
    ]
    return build_table("Changes tried one at a time", columns, rows)


def bandwidth_table(checkup: Checkup) -> Table | None:
    """The largest message of each operation; None where nothing was measured."""
    rows = largest(checkup.measured)
    if not rows:
        return None
    columns = [
        Column("op", "Operation", number=False),
        Column("gpus", "On", number=False, make=lambda row: Cell(measured_devices(checkup, row), css="nowrap")),
        Column("bytes", "Message", make=lambda row: Cell(message_text(row.bytes), f"{row.bytes:,} bytes")),
        Column("time_us", "Time µs", "median of one operation", make=lambda row: number(row.time_us, 1)),
        Column("busbw_gbs", "Bus GB/s", COLUMNS["Bus bandwidth"], make=lambda row: number(row.busbw_gbs)),
    ]
    if len({row.host for row in rows}) > 1:
        columns.insert(1, Column("host", "Host", number=False))
    change = measured_with(checkup)
    with_ = f" {with_text(change)}" if change.size else ""
    return build_table(f"The largest message of each operation{with_}; bandwidth.csv has all sizes", columns, rows)


def matrix_table(matrix: PairMatrix) -> Table:
    """Send and receive between every two devices, GB/s: the darker the faster; far below the others is marked."""
    most = max(matrix.gbs.values(), default=0.0)
    columns = [Column("gpu", "From \\ to", make=lambda row: Cell(matrix.name(row)))]
    for gpu in matrix.gpus:
        columns.append(
            Column(str(gpu), matrix.name(gpu), make=lambda row, gpu=gpu: _pair(matrix, row, gpu, most))  # type: ignore[misc]
        )
    host = f" on {matrix.host}" if matrix.host else ""
    return build_table(f"Send and receive{host}, GB/s one way", columns, matrix.gpus)


def _pair(matrix: PairMatrix, one: int, other: int, most: float) -> Cell:
    if one == other:
        return Cell("", css="self")
    pair = one, other
    if pair in matrix.outcomes:
        return Cell(
            matrix.outcomes[pair],
            f"{matrix.name(one)} and {matrix.name(other)}: {matrix.outcomes[pair]}",
            "status fired",
        )
    gbs = matrix.gbs.get(pair)
    if gbs is None:
        return number(None)
    title = f"{matrix.name(one)} to {matrix.name(other)}: {gbs:.4g} GB/s"
    if pair in matrix.slow:
        return Cell(rate_text(gbs), f"{title}, far below the other pairs", "worst")
    share = gbs / most if most else 0.0  # a file may say that nothing was moved
    return Cell(rate_text(gbs), title, "heat", colour=f"rgba({_HEAT}, {0.06 + 0.44 * share:.3f})")


def _works(one: Attempt) -> Cell:
    said = "yes, advised" if one.chosen and one.works else "yes" if one.works else "no"
    return Cell(said, css="status clear" if one.works else "status fired")


def _changed(trial: Trial) -> Cell:
    return Cell("" if trial.as_it_is else change_text(EnvironmentChange(trial.set, trial.unset)))


def _message(trial: Trial) -> Cell:
    """Its message; what it said of it unfolds."""
    if not trial.said:
        return _text(trial.message)
    return Cell(trial.message or trial.said[0][:_WORD], "what it said", "said", "\n".join(trial.said))


def _rule(look: Look) -> Cell:
    return Cell("" if look.level == "ok" else look.rule, css="nowrap")


def _why(row: _LookRow) -> Cell:
    look = row.look
    why = f"{look.why}." if look.why and look.why[-1] not in ".:!?" else look.why
    return Cell(f"{why} {look.advice}".strip()[:_MOST_WHY], css="why")  # advice may be a command: nothing behind it


def _hosts(row: _LookRow) -> Cell:
    hosts = list(dict.fromkeys(row.hosts))
    return Cell(hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts", ", ".join(hosts[:60]))


def _state(state: Level | Outcome) -> Cell:
    return Cell(state.replace("_", " "), css=_CSS[state])


def _text(text: str, limit: int = _WORD) -> Cell:
    return Cell(text) if len(text) <= limit else name(text, limit)
