"""Answers as blocks, for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from traceops.answers.lines import FindingLine, FullFinding
from traceops.answers.model import (
    AnyAnswer,
    ChecksAnswer,
    CollectivesAnswer,
    FindingAnswer,
    FindingsAnswer,
    HangAnswer,
    KernelsAnswer,
    LedgerAnswer,
    RanksAnswer,
    RolesAnswer,
    StepsAnswer,
    SummaryAnswer,
    WhatIfAnswer,
)
from traceops.answers.tables import (
    GROUP,
    collectives,
    kernels,
    ledger,
    ledger_table,
    made,
    ranks,
    roles,
    steps,
    table,
    what_if,
    what_if_table,
    words_of,
)
from traceops.core.findings import Finding
from traceops.core.rank_text import first_steps_text, ranks_text
from traceops.core.short_text import short_name
from traceops.core.step_words import StepWords
from traceops.core.units import UNKNOWN
from traceops.render.cells import Cell
from traceops.render.document import Block, bold, soft, text
from traceops.render.finding_blocks import finding_block
from traceops.render.writers.terminal import MARK


def describe_answer(answer: AnyAnswer) -> list[Block]:
    """What a terminal shows of an answer; of a run without steps in words of its window."""
    if isinstance(answer, (RanksAnswer, StepsAnswer, CollectivesAnswer, KernelsAnswer)) and not answer.rows:
        return [text(f"no {type(answer).__struct_config__.tag} are known of this run")]
    return _DESCRIBED[type(answer)](answer)


def _summary(answer: SummaryAnswer) -> list[Block]:
    said, facts, step, words = answer.headline, answer.facts, answer.step, words_of(answer)
    parts = [f"{facts.ranks_present} of {facts.world_size or facts.ranks_present} ranks"]
    spent = [line for line in answer.ledger if line.ms_per_step or line.worst_rank_ms]
    parts += [part for part in (facts.device, facts.strategy) if part]
    if step.typical_ms is not None:
        parts.append(f"{words.noun} {step.typical_ms:.2f} ms")
    return [
        text(f"{answer.run.name or answer.run.path}: {' · '.join(parts)}", look="bold", indent=(0, 2)),
        text(f"{MARK[said.level]} {said.sentence}", look=f"level-{said.level}", indent=(0, 2)),
        *(text(bold(f"{line.label}: "), line.text, indent=(2, 4)) for line in answer.first_screen),
        *([ledger_table(spent, words)] if spent else []),
        *([what_if_table(answer.what_if, words)] if answer.what_if else []),
        *_finding_lines(answer.findings),
        *(soft(note) for note in answer.notes),
        soft(f"More: {', '.join(answer.more)}"),
    ]


def _findings(answer: FindingsAnswer) -> list[Block]:
    return _finding_lines(answer.rows) or [text("no findings")]


def _finding_lines(rows: Sequence[FindingLine]) -> list[Block]:
    return [
        text(f"{MARK[row.severity]} {row.rule} {row.message}", look=f"level-{row.severity}", indent=(0, 2))
        for row in rows
    ]


def _finding(answer: FindingAnswer) -> list[Block]:
    if answer.rows:
        return [block for row in answer.rows for block in _full(row, words_of(answer))]
    check = answer.check
    reason = f": {check.reason}" if check.reason else ""
    return [
        text(f"{check.rule} {check.title}", look="bold"),
        text(f"{check.status.replace('_', ' ')}{reason}", indent=(2, 2)),
        *([text(f"It fires when: {answer.fires}", look="soft", indent=(2, 2))] if answer.fires else []),
    ]


def _full(row: FullFinding, words: StepWords) -> list[Block]:
    lines: list[Block] = [finding_block(Finding(**msgspec.structs.asdict(row)), words=words)]
    said = [
        f"ranks {ranks_text(row.ranks)}" if row.ranks else "",
        f"steps {first_steps_text(row.steps)}" if row.steps else "",
        f"costs up to {row.impact_ms:.2f} ms {words.per}" if row.impact_ms is not None else "",
        f"cause {row.cause}" if row.cause else "",
        f"confidence {row.confidence}",
    ]
    if row.advice and row.severity == "info":  # asked for, it says what to do as serious ones do
        lines.append(text(f"→ {row.advice}", indent=(4, 6)))
    return [*lines, text("; ".join(part for part in said if part), look="soft", indent=(4, 6))]


def _hang(answer: HangAnswer) -> list[Block]:
    if answer.sentence is None or answer.level is None:
        return [text("no evidence of a hang")]
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


def _checks(answer: ChecksAnswer) -> list[Block]:
    return [
        text(
            f"{row.rule} {row.title}: {row.status.replace('_', ' ')}{f' ({row.reason})' if row.reason else ''}",
            indent=(0, 2),
        )
        for row in answer.rows
    ]


_DESCRIBED: dict[type, Callable[[Any], list[Block]]] = {
    SummaryAnswer: _summary,
    FindingsAnswer: _findings,
    FindingAnswer: _finding,
    LedgerAnswer: ledger,
    WhatIfAnswer: what_if,
    RanksAnswer: ranks,
    StepsAnswer: steps,
    CollectivesAnswer: collectives,
    KernelsAnswer: kernels,
    RolesAnswer: roles,
    HangAnswer: _hang,
    ChecksAnswer: _checks,
}
