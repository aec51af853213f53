"""`traceops show`: one answer about a run or a report, as text or JSON."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from traceops.answers import model
from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import open_run, opened_live
from traceops.core.claims import Wording, phrases
from traceops.core.documents import json_text
from traceops.core.findings import Finding
from traceops.core.rank_text import first_steps_text, ranks_text
from traceops.core.text import json_for, printable, short_name
from traceops.core.units import UNKNOWN, fixed_text, percent_text, size_text
from traceops.core.words import STEP, WINDOW, StepWords
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.pipeline.mapping.ranks import ProgressLine
from traceops.render.cells import Cell, Column, build_table, number
from traceops.render.document import Block, Span, TableBlock, soft, text
from traceops.render.finding_blocks import finding_block
from traceops.render.report.card import card_lines, shortened
from traceops.render.report.coverage import NO_REPLAY, why_least
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.report.rows import RoleRow, WhatIfRow

_text = Wording("cli", "show")

# Answers that are rows of figures, as tables for people at a terminal.

_NAME = 32  # characters of a kernel's name on a terminal
GROUP = 24  # characters of a group's name


def words_of(answer: model.AnyAnswer) -> StepWords:
    return WINDOW if answer.run.unit == "window" else STEP


def ledger(answer: model.LedgerAnswer) -> list[Block]:
    by_rank: dict[int | None, list[model.LedgerLine]] = {}
    for line in answer.rows:
        by_rank.setdefault(line.rank, []).append(line)
    return [ledger_table(lines, words_of(answer), rank) for rank, lines in by_rank.items()]


def ledger_table(lines: Sequence[model.LedgerLine], words: StepWords, rank: int | None = None) -> TableBlock:
    over = ", median over ranks" if any(line.worst_rank is not None for line in lines) else ""
    first = f"where {words.the} goes{over}" if rank is None else f"rank {rank}"
    columns = [
        made(first, lambda line: Cell(line.bucket), left=True),
        made(f"ms {words.per}", lambda line: Cell(fixed_text(line.ms_per_step, 2))),
        made("%", lambda line: Cell(fixed_text(line.pct_of_step, 1))),
    ]

    def most_on(line: model.LedgerLine) -> Cell:
        return Cell(
            "" if line.worst_rank is None else f"rank {line.worst_rank}: {fixed_text(line.worst_rank_ms, 2)} ms"
        )

    return table([*columns, *([made("most on", most_on, left=True)] if rank is None else [])], lines)


def what_if(answer: model.WhatIfAnswer) -> list[Block]:
    if not answer.rows:
        why = "" if answer.no_replay is None else f": {NO_REPLAY[answer.no_replay]}"
        return [text(f"nothing was replayed{why}")]
    note, words = _rest(answer), words_of(answer)
    if answer.replay_error_pct is not None:
        within = _text("replay", percent=percent_text(answer.replay_error_pct), of=words.choose("steps", "window"))
        why = why_least(answer.loaders_unknown, answer.hosts_unknown)
        note = "; ".join(part for part in (within, why, note) if part)
    return [what_if_table(answer.rows, words, note)]


def what_if_table(rows: Sequence[WhatIfRow], words: StepWords, note: str = "") -> TableBlock:
    columns = [
        made("what if", lambda row: Cell(row.change), left=True),
        made(
            f"{words.noun} ms",
            lambda row: Cell(f"{fixed_text(row.step_time_ms, 2)} → {fixed_text(row.predicted_step_time_ms, 2)}"),
        ),
        made("saved %", lambda row: Cell(fixed_text(row.saved_pct, 1))),
    ]
    return table(columns, rows, note)


def ranks(answer: model.RanksAnswer) -> list[Block]:
    hosts = len({row.host for row in answer.rows})
    columns = [
        made("rank", lambda row: Cell(str(row.rank))),
        *([made("host", lambda row: Cell(row.host or UNKNOWN), left=True)] if hosts > 1 else []),
        Column("typical_step_ms", f"{words_of(answer).noun} ms"),
        Column("compute_ms", "compute ms"),
        Column("comm_transfer_ms", "transfer ms"),
        Column("comm_wait_ms", "wait ms"),
        made("idle ms", lambda row: number(sum(row.bucket_ms(bucket) or 0.0 for bucket in IDLE_BUCKETS))),
        Column("caused_wait_ms", "caused wait ms"),
        Column("late_share", "share %", scale=100.0),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def steps(answer: model.StepsAnswer) -> list[Block]:
    columns = [
        made("rank", lambda row: Cell(str(row.rank))),
        made("step", lambda row: Cell(UNKNOWN if row.step is None else str(row.step))),
        Column("duration_ms", "ms"),
        Column("compute_ms", "compute ms"),
        Column("comm_transfer_ms", "transfer ms"),
        Column("comm_wait_ms", "wait ms"),
        Column("memory_ms", "copies ms"),
        made("idle ms", lambda row: number(sum(getattr(row, f"{bucket}_ms") or 0.0 for bucket in IDLE_BUCKETS))),
        Column("kernels", "kernels", decimals=0),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def collectives(answer: model.CollectivesAnswer) -> list[Block]:
    sizes = _sizes(answer.rows)
    columns = [
        made("group", lambda row: Cell(short_name(row.group or UNKNOWN, GROUP)), left=True),
        made("role", lambda row: Cell(row.role or UNKNOWN), left=True),
        made("ranks", lambda row: Cell(ranks_text(row.ranks, 3)), left=True),
        made("operation", lambda row: Cell(row.op), left=True),
        made("size", lambda row: Cell(sizes[row.bytes])),
        Column("count", "count", decimals=0),
        Column("total_ms", "total ms"),
        Column("median_wait_ms", "wait ms"),
        Column("busbw_gbs", "GB/s"),
        made("last rank", lambda row: Cell(UNKNOWN if row.last_rank is None else str(row.last_rank))),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def _sizes(rows: Sequence[model.CollectiveLine]) -> dict[int | None, str]:
    """Sizes for people, with as many digits as tell them apart."""
    all_sizes = {row.bytes for row in rows}
    known = [nbytes for nbytes in all_sizes if nbytes is not None]
    for decimals in (None, 2, 3):
        read = {nbytes: size_text(nbytes, decimals) for nbytes in known}
        if len(set(read.values())) == len(read):
            break
    else:
        read = {nbytes: f"{nbytes:,} B" for nbytes in known}
    return {nbytes: UNKNOWN if nbytes is None else read[nbytes] for nbytes in all_sizes}


def kernels(answer: model.KernelsAnswer) -> list[Block]:
    columns = [
        made("kernel", lambda row: Cell(short_name(row.name, _NAME)), left=True),
        made("kind", lambda row: Cell(row.kind or UNKNOWN), left=True),
        Column("ms_per_step", f"ms {words_of(answer).per}"),
        Column("share_pct", "share %"),
        Column("mean_us", "mean µs"),
        made("most on", lambda row: _of_rank(row.worst_rank), left=True),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def roles(answer: model.RolesAnswer) -> list[Block]:
    if not answer.rows:
        return [text(_text("no_groups"))]
    columns = [
        made("role", lambda row: Cell(row.role), left=True),
        made("groups", lambda row: Cell(_groups(row)), left=True),
        Column("exposed_ms", "exposed ms"),
        Column("wait_ms", "wait ms"),
        Column("transfer_ms", "transfer ms"),
        Column("busbw_gbs", "GB/s"),
        made("waits for", lambda row: _of_rank(row.waits_for_rank)),
    ]
    return [table(columns, answer.rows)]


def _groups(row: RoleRow) -> str:
    sizes = "/".join(map(str, row.group_sizes))
    return f"{row.groups} of {sizes}" if sizes else str(row.groups)


def _of_rank(rank: int | None) -> Cell:
    return Cell(UNKNOWN if rank is None else f"rank {rank}")


def made(label: str, make: Callable[[Any], Cell], *, left: bool = False) -> Column:
    return Column(label, label, number=not left, make=make)


def table(columns: Sequence[Column], rows: Sequence[Any], note: str = "") -> TableBlock:
    return TableBlock(build_table("", columns, rows, note=note))


def _rest(
    answer: model.RanksAnswer | model.StepsAnswer | model.CollectivesAnswer | model.KernelsAnswer | model.WhatIfAnswer,
) -> str:
    shown = len(answer.rows)
    by = "" if isinstance(answer, model.WhatIfAnswer) else f", most {answer.ordered_by} first"
    return f"{shown} of {answer.total}{by}" if shown < answer.total else ""


def describe_answer(answer: model.AnyAnswer) -> list[Block]:
    """What a terminal shows of an answer; of a run without steps in words of its window."""
    if (
        isinstance(answer, (model.RanksAnswer, model.StepsAnswer, model.CollectivesAnswer, model.KernelsAnswer))
        and not answer.rows
    ):
        return [text(_text("no_rows", what=type(answer).__struct_config__.tag))]
    return _DESCRIBED[type(answer)](answer)


def _summary(answer: model.SummaryAnswer) -> list[Block]:
    first = next((row for row in answer.findings if row.rule == answer.card.rule), None)
    facts, step, words = answer.facts, answer.step, words_of(answer)
    parts = [f"{facts.ranks_present} of {facts.world_size or facts.ranks_present} ranks"]
    spent = [line for line in answer.ledger if line.ms_per_step or line.worst_rank_ms]
    parts += [part for part in (facts.device, facts.strategy) if part]
    if step.typical_ms is not None:
        parts.append(f"{words.noun} {step.typical_ms:.2f} ms")
    return [
        text(f"{answer.run.name or answer.run.path}: {' · '.join(parts)}", look="bold", indent=(0, 2)),
        *card_lines(answer.card),
        *([ledger_table(spent, words)] if spent else []),
        *([what_if_table(answer.what_if, words)] if answer.what_if else []),
        *(
            text(
                f"{MARK[row.severity]} {shortened(row.message)} ", Span(row.rule, "soft"), look=f"level-{row.severity}"
            )
            for row in answer.findings
            if row is not first
        ),
        *(soft(note) for note in answer.notes),
        soft(f"More: {', '.join(answer.more)}"),
    ]


def _findings(answer: model.FindingsAnswer) -> list[Block]:
    lines: list[Block] = [
        text(f"{MARK[row.severity]} {row.rule} {row.message}", look=f"level-{row.severity}", indent=(0, 2))
        for row in answer.rows
    ]
    return lines or [text("no findings")]


def _finding(answer: model.FindingAnswer) -> list[Block]:
    if answer.rows:
        return [block for row in answer.rows for block in _full(row, words_of(answer))]
    check = answer.check
    reason = f": {check.reason}" if check.reason else ""
    return [
        text(f"{check.rule} {check.title}", look="bold"),
        text(f"{check.status.replace('_', ' ')}{reason}", indent=(2, 2)),
        *([text(f"It fires when: {answer.fires}", look="soft", indent=(2, 2))] if answer.fires else []),
    ]


def _full(row: model.FullFinding, words: StepWords) -> list[Block]:
    lines: list[Block] = [finding_block(Finding(**msgspec.structs.asdict(row)), words=words)]
    details = phrases(
        "cli", "show", "details", ranks=ranks_text(row.ranks), steps=first_steps_text(row.steps), cause=row.cause,
        cost=None if row.impact_ms is None else f"{row.impact_ms:.2f} ms {words.per}", confidence=row.confidence,
    )  # fmt: skip
    if row.advice and row.severity == "info":  # asked for, it says what to do as serious ones do
        lines.append(text(f"→ {row.advice}", indent=(4, 6)))
    return [*lines, text("; ".join(details), look="soft", indent=(4, 6))]


def _hang(answer: model.HangAnswer) -> list[Block]:
    if answer.sentence is None or answer.level is None:
        return [text(_text("no_hang"))]
    blocks: list[Block] = [text(f"{MARK[answer.level]} {answer.sentence}", look=f"level-{answer.level}", indent=(0, 2))]
    for root in answer.roots:
        blocks.append(text(f"{root.rule} ({root.confidence} confidence) {root.message}", indent=(2, 4)))
        blocks += [soft(f"    {proof.what}: {proof.value}") for proof in root.evidence]
    columns = [
        made("rank", lambda row: Cell(str(row.rank))),
        made("state", lambda row: Cell(row.state), left=True),
        made("group", lambda row: Cell(short_name(row.group or UNKNOWN, GROUP)), left=True),
        made("operation", lambda row: Cell(UNKNOWN if row.op is None else f"{row.op} #{row.sequence}"), left=True),
        made("waits for", lambda row: Cell(ranks_text(row.waits_for, 3) or UNKNOWN), left=True),
        made("where", lambda row: Cell(row.where or row.doing or UNKNOWN), left=True),
    ]
    return [*blocks, *([table(columns, answer.rows)] if answer.rows else [])]


def _events(answer: model.EventsAnswer) -> list[Block]:
    begin = min((row.seen_ns for row in answer.rows), default=0)
    lines: list[Block] = [
        text(f"+{(row.seen_ns - begin) / 1e9:.0f} s  {row.message}", look="bold" if row.page else "", indent=(0, 2))
        for row in answer.rows
    ]
    return lines or [text(_text("no_events"))]


def _checks(answer: model.ChecksAnswer) -> list[Block]:
    return [
        text(
            f"{row.rule} {row.title}: {row.status.replace('_', ' ')}{f' ({row.reason})' if row.reason else ''}",
            indent=(0, 2),
        )
        for row in answer.rows
    ]


_DESCRIBED: dict[type, Callable[[Any], list[Block]]] = {
    model.SummaryAnswer: _summary, model.FindingsAnswer: _findings, model.FindingAnswer: _finding,
    model.LedgerAnswer: ledger, model.WhatIfAnswer: what_if, model.RanksAnswer: ranks, model.StepsAnswer: steps,
    model.CollectivesAnswer: collectives, model.KernelsAnswer: kernels, model.RolesAnswer: roles,
    model.HangAnswer: _hang, model.EventsAnswer: _events, model.ChecksAnswer: _checks,
}  # fmt: skip


def main(args: argparse.Namespace) -> int:
    given = vars(args)
    names = {field.name for field in dataclasses.fields(Asked)}
    asked = Asked(**{name: value for name, value in given.items() if name in names and value is not None})

    def say(path: str) -> None:
        if not args.quiet:
            print(printable(_text("reads", path=path)), file=sys.stderr)

    with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
        if asked.question == "events":
            found = opened_live(args.path)
        else:
            found = open_run(args.path, jobs=args.jobs, progress=progress, before_analysis=say)
    for problem in found.problems:
        print(printable(f"traceops show: {problem}"), file=sys.stderr)
    answered = answer(found, asked)
    if args.json:
        sys.stdout.write(json_for(sys.stdout, json_text(answered)))
    else:
        write_terminal(describe_answer(answered), sys.stdout)
    return 0
