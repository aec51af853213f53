"""From a report and a question to its answer: pure, and an error lists what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from traceops.answers import model
from traceops.answers.asked import BY_NAME, QUESTIONS, SUMMARY, Asked
from traceops.answers.opening import Opened, card, diagnosis, opening_answer
from traceops.answers.rows import check_line, collective_lines, finding_line, kernel_lines, ledger_lines, step_lines
from traceops.core.documents import copied
from traceops.core.errors import UsageError
from traceops.core.findings import SEVERITIES, count_checks
from traceops.core.live_pulses import EVENTS_FILE
from traceops.core.rank_text import ranks_text
from traceops.core.text import meant
from traceops.render.document import Text
from traceops.report.model import Report
from traceops.report.rows import WhatIfRow
from traceops.rules.registry import BY_ID, family_of
from traceops.words.catalogue import texts

_MOST_LISTED = 20

Row = TypeVar("Row", bound=msgspec.Struct)


def of_group(rows: Sequence[model.CollectiveLine], group: str) -> Sequence[model.CollectiveLine]:
    """Those of a group that is called so, or else whose role it is, or else with it in their name."""
    if not group:
        return rows
    for matches in (
        lambda line: line.group == group,
        lambda line: line.role == group,
        lambda line: group.casefold() in line.group.casefold(),
    ):
        if chosen := [line for line in rows if matches(line)]:
            return chosen
    there = dict.fromkeys(f"{line.group or 'no name'} ({line.role or 'role unknown'})" for line in rows)
    raise UsageError(f"there is no group or role {group!r}; groups: {listed(there) or 'none'}")


def holding(rows: Sequence[Row], field: str, part: str, what: str) -> Sequence[Row]:
    """Those rows whose field is, or else holds, `part`."""
    if not part:
        return rows
    values = [str(getattr(row, field)) for row in rows]
    if part in values:
        return [row for row, value in zip(rows, values, strict=True) if value == part]
    chosen = [row for row, value in zip(rows, values, strict=True) if part.casefold() in value.casefold()]
    if not chosen:
        there = listed(dict.fromkeys(values)) or "none"
        raise UsageError(f"there is no {what} {part!r}{meant(part, set(values))}; there are: {there}")
    return chosen


def ordered(found: Opened, asked: Asked, rows: Sequence[Row], usual: str) -> dict[str, Any]:
    """What answers hold of rows that a column of numbers orders: most first, unknown last, equal ones as they were."""
    by = asked.by or usual
    names = rows[0].__struct_fields__ if rows else ()
    kinds = {name: {type(getattr(row, name)) for row in rows} - {type(None)} for name in names}
    numbers = [name for name, kind in kinds.items() if kind and kind <= {int, float}]
    if rows and by not in numbers:
        raise UsageError(f"there is no column of numbers {by!r}{meant(by, numbers)}; columns: {', '.join(numbers)}")
    in_order = sorted(rows, key=lambda row: (getattr(row, by) is None, -(getattr(row, by) or 0.0)))
    return {"run": asked_run(found), "ordered_by": by, "total": len(rows), "rows": tuple(in_order[: asked.top])}


def listed(names: Iterable[str]) -> str:
    all_names = [name if len(name) <= 100 else f"{name[:99]}…" for name in names]
    rest = len(all_names) - _MOST_LISTED
    return ", ".join(all_names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


_HELPS = 3  # changes in a summary


def answer(found: Opened, asked: Asked) -> model.AnyAnswer:
    """The answer to one question. Raises UsageError that lists what there is where it asks for what there is not."""
    if asked.question not in _ANSWERS:
        raise UsageError(f"there is no question {asked.question!r}; ask for {listed(BY_NAME)}")
    there = {row.rank for row in found.report.ranks}
    if found.hang is not None:
        there |= {row.rank for row in found.hang.ranks}
    if missing := sorted(set(asked.ranks) - there):
        raise UsageError(f"rank {missing[0]} is not in this report; ranks: {ranks_text(there) or 'none'}")
    return _ANSWERS[asked.question](found, asked)


def asked_run(found: Opened) -> model.AskedRun:
    """Which run an answer is of."""
    report = found.report
    window = report.summary.steps_found_by == "window"
    return model.AskedRun(
        name=report.run.name, path=found.path, read_from=found.read_from, unit="window" if window else "step"
    )


def _summary(found: Opened, asked: Asked) -> model.SummaryAnswer:
    report, shown = found.report, card(found)
    run, step = report.run, report.summary.step_time_ms
    opening = opening_answer(found)
    lines = []
    for label, blocks in opening.lines if opening is not None else ():
        said = " ".join(block.plain for block in blocks if isinstance(block, Text))
        if said and label != "Proof":  # only links to it
            lines.append(model.AnswerLine(label=label, text=said))
    return model.SummaryAnswer(
        run=asked_run(found),
        headline=model.HeadlineLine(level=shown.level, sentence=f"{shown.headline}."),
        card=shown,
        first_screen=tuple(lines),
        costs=tuple(
            copied(model.StepCost, cost, when="then" if cost.look == "then" else "now")
            for cost in (opening.costs if opening is not None else ())
        ),
        facts=copied(model.RunFacts, run, ranks_present=len(run.ranks_present), hosts=len(run.hosts)),
        step=model.StepFacts(
            typical_ms=step.typical,
            p5_ms=step.p5,
            p95_ms=step.p95,
            count=step.n,
            found_by=report.summary.steps_found_by,
        ),
        ledger=ledger_lines(report),
        findings=tuple(map(finding_line, report.findings)),
        what_if=_what_if_rows(report)[:_HELPS],
        rules_not_evaluated=count_checks(report.checks).not_evaluated,
        notes=(*report.summary.notes, *found.problems),
        more=tuple(question.name for question in QUESTIONS if question.name != SUMMARY),
    )


def _findings(found: Opened, asked: Asked) -> model.FindingsAnswer:
    least = 0
    if asked.severity:
        if asked.severity not in SEVERITIES:
            raise UsageError(f"severity is one of {listed(SEVERITIES)}, not {asked.severity!r}")
        least = SEVERITIES.index(asked.severity)
    rows = [f for f in found.report.findings if SEVERITIES.index(f.severity) >= least]
    if asked.ranks:
        rows = [f for f in rows if not f.ranks or set(f.ranks) & set(asked.ranks)]
    return model.FindingsAnswer(run=asked_run(found), rows=tuple(map(finding_line, rows)))


def _finding(found: Opened, asked: Asked) -> model.FindingAnswer:
    wanted = asked.rule.upper()
    rows = tuple(copied(model.FullFinding, f) for f in found.report.findings if f.rule == wanted)
    check = next((check_line(c) for c in found.report.checks if c.rule == wanted), None)
    rule = BY_ID.get(wanted)
    if not rows and check is None and rule is None:
        there = listed(dict.fromkeys(f.rule for f in found.report.findings)) or "none"
        family = family_of(wanted)
        hint = meant(wanted, BY_ID)
        if family is not None:
            hint = f"; rules of {family.about}: {listed(one.id for one in family.rules)}"
        raise UsageError(
            f"there is no rule {asked.rule!r}{hint}; findings of this run: {there}; `checks` lists all rules"
        )
    if check is None:
        check = model.CheckLine(
            rule=wanted,
            title=rule.title if rule else rows[0].title,
            status="fired" if rows else "not_evaluated",
            reason="" if rows else texts("views", "answers")["not_judged"],
        )
    return model.FindingAnswer(run=asked_run(found), check=check, fires=rule.fires if rule else "", rows=rows)


def _what_if(found: Opened, asked: Asked) -> model.WhatIfAnswer:
    rows = _what_if_rows(found.report)
    replay = found.report.summary.replay
    return model.WhatIfAnswer(
        run=asked_run(found),
        replay_error_pct=replay.error_pct if replay is not None else None,
        total=len(rows),
        rows=rows[: asked.top],
        loaders_unknown=replay.loaders_unknown if replay is not None else (),
        hosts_unknown=replay.hosts_unknown if replay is not None else (),
        no_replay=found.report.summary.no_replay,
    )


def _what_if_rows(report: Report) -> tuple[WhatIfRow, ...]:
    return tuple(sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0)))


def _ranks(found: Opened, asked: Asked) -> model.RanksAnswer:
    rows = [row for row in found.report.ranks if not asked.ranks or row.rank in asked.ranks]
    rows = rows if asked.by else sorted(rows, key=lambda row: -row.idle_ms)  # among those that cause as much
    usual = "caused_wait_ms" if any(row.caused_wait_ms for row in rows) else "idle_pct"
    return model.RanksAnswer(**ordered(found, asked, rows, usual))


def _steps(found: Opened, asked: Asked) -> model.StepsAnswer:
    rows = [line for line in step_lines(found.report) if not asked.ranks or line.rank in asked.ranks]
    if asked.steps:
        there = sorted({line.step for line in rows if line.step is not None})
        if missing := set(asked.steps) - set(there):
            raise UsageError(f"step {min(missing)} was not recorded; steps: {ranks_text(there) or 'none'}")
        rows = [line for line in rows if line.step in asked.steps]
    return model.StepsAnswer(**ordered(found, asked, rows, "duration_ms"))


def _collectives(found: Opened, asked: Asked) -> model.CollectivesAnswer:
    rows: Sequence[model.CollectiveLine] = collective_lines(found.report)
    if asked.ranks:
        rows = [line for line in rows if set(line.ranks) & set(asked.ranks)]
    rows = of_group(rows, asked.group)
    rows = holding(rows, "op", asked.op, "operation")
    return model.CollectivesAnswer(**ordered(found, asked, rows, "total_ms"))


def _kernels(found: Opened, asked: Asked) -> model.KernelsAnswer:
    rows = holding(kernel_lines(found.report), "kind", asked.kind, "kind of kernels")
    rows = holding(rows, "name", asked.name, "kernel")
    return model.KernelsAnswer(**ordered(found, asked, rows, "ms_per_step"))


def _hang(found: Opened, asked: Asked) -> model.HangAnswer:
    if (hang := diagnosis(found)) is None:
        return model.HangAnswer(run=asked_run(found), level=None, sentence=None, roots=(), waits=(), rows=())
    rows = tuple(row for row in hang.ranks if not asked.ranks or row.rank in asked.ranks)
    waits = tuple(wait for wait in hang.waits if not asked.ranks or set(wait.ranks) & set(asked.ranks))
    return model.HangAnswer(
        run=asked_run(found), level=hang.level, sentence=hang.sentence, roots=hang.roots, waits=waits, rows=rows
    )


def _events(found: Opened, asked: Asked) -> model.EventsAnswer:
    rows = []
    with suppress(OSError):
        for line in (Path(found.path) / EVENTS_FILE).read_bytes().splitlines():
            with suppress(msgspec.MsgspecError):  # the last one may not be whole
                rows.append(msgspec.json.decode(line, type=model.EventLine))
    wanted = set(asked.ranks)
    kept = tuple(row for row in rows if not wanted or wanted & set(row.facts.get("ranks", ())))
    return model.EventsAnswer(run=asked_run(found), rows=kept)


def _checks(found: Opened, asked: Asked) -> model.ChecksAnswer:
    rows = [check_line(c) for c in found.report.checks if c.rule.startswith(asked.rule.upper())]
    if asked.rule and not rows:
        raise UsageError(f"no rule begins with {asked.rule!r}{meant(asked.rule.upper(), BY_ID)}")
    return model.ChecksAnswer(run=asked_run(found), rows=tuple(rows))


_ANSWERS: dict[str, Callable[[Opened, Asked], model.AnyAnswer]] = {
    SUMMARY: _summary,
    "findings": _findings,
    "finding": _finding,
    "ledger": lambda found, asked: model.LedgerAnswer(
        run=asked_run(found), rows=ledger_lines(found.report, asked.ranks)
    ),
    "what-if": _what_if,
    "ranks": _ranks,
    "steps": _steps,
    "collectives": _collectives,
    "kernels": _kernels,
    "roles": lambda found, asked: model.RolesAnswer(run=asked_run(found), rows=found.report.roles),
    "hang": _hang,
    "events": _events,
    "checks": _checks,
}
