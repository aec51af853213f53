"""Answers that are rows of figures, as tables for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from traceops.answers.lines import CollectiveLine, KernelLine, LedgerLine, StepLine
from traceops.answers.model import (
    AnyAnswer,
    CollectivesAnswer,
    KernelsAnswer,
    LedgerAnswer,
    RanksAnswer,
    RolesAnswer,
    StepsAnswer,
    WhatIfAnswer,
)
from traceops.core.rank_text import ranks_text
from traceops.core.short_text import short_name
from traceops.core.step_words import STEP, WINDOW, StepWords
from traceops.core.units import UNKNOWN, fixed_text, percent_text, size_text
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.render.cells import Cell, Column, build_table, number
from traceops.render.document import Block, TableBlock, text
from traceops.render.report.then_text import NO_REPLAY, why_least
from traceops.report.cross_rows import RoleRow, WhatIfRow
from traceops.report.rows import RankRow

_NAME = 32  # characters of a kernel's name on a terminal
GROUP = 24  # characters of a group's name


def words_of(answer: AnyAnswer) -> StepWords:
    return WINDOW if answer.run.unit == "window" else STEP


def ledger(answer: LedgerAnswer) -> list[Block]:
    by_rank: dict[int | None, list[LedgerLine]] = {}
    for line in answer.rows:
        by_rank.setdefault(line.rank, []).append(line)
    return [ledger_table(lines, words_of(answer), rank) for rank, lines in by_rank.items()]


def ledger_table(lines: Sequence[LedgerLine], words: StepWords, rank: int | None = None) -> TableBlock:
    first = f"where {words.a} goes" if rank is None else f"rank {rank}"
    columns = [
        made(first, lambda line: Cell(line.bucket), left=True),
        made(f"ms {words.per}", lambda line: Cell(fixed_text(line.ms_per_step, 2))),
        made("%", lambda line: Cell(fixed_text(line.pct_of_step, 1))),
    ]
    if rank is None:
        columns.append(made("most on", _worst_of_bucket, left=True))
    return table(columns, lines)


def _worst_of_bucket(line: LedgerLine) -> Cell:
    if line.worst_rank is None:
        return Cell("")
    return Cell(f"rank {line.worst_rank}: {fixed_text(line.worst_rank_ms, 2)} ms")


def what_if(answer: WhatIfAnswer) -> list[Block]:
    if not answer.rows:
        why = "" if answer.no_replay is None else f": {NO_REPLAY[answer.no_replay]}"
        return [text(f"nothing was replayed{why}")]
    note, words = _rest(answer), words_of(answer)
    if answer.replay_error_pct is not None:
        within = f"unchanged, the replay is within {percent_text(answer.replay_error_pct)} of the measured "
        within += words.choose("steps", "window")
        why = why_least(answer.loaders_unknown, answer.hosts_unknown)
        within += f"; {why}" if why else ""
        note = "; ".join(part for part in (within, note) if part)
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


def ranks(answer: RanksAnswer) -> list[Block]:
    columns = [
        made("rank", lambda row: Cell(str(row.rank))),
        *([made("host", lambda row: Cell(row.host or UNKNOWN), left=True)] if _hosts(answer.rows) > 1 else []),
        Column("typical_step_ms", f"{words_of(answer).noun} ms"),
        Column("compute_ms", "compute ms"),
        Column("comm_transfer_ms", "transfer ms"),
        Column("comm_wait_ms", "wait ms"),
        made("idle ms", lambda row: number(sum(row.bucket_ms(bucket) or 0.0 for bucket in IDLE_BUCKETS))),
        Column("caused_wait_ms", "caused wait ms"),
        Column("late_share", "share %", scale=100.0),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def _hosts(rows: Sequence[RankRow]) -> int:
    return len({row.host for row in rows})


def steps(answer: StepsAnswer) -> list[Block]:
    columns = [
        made("rank", lambda row: Cell(str(row.rank))),
        made("step", lambda row: Cell(UNKNOWN if row.step is None else str(row.step))),
        Column("duration_ms", "ms"),
        Column("compute_ms", "compute ms"),
        Column("comm_transfer_ms", "transfer ms"),
        Column("comm_wait_ms", "wait ms"),
        Column("memory_ms", "copies ms"),
        made("idle ms", _idle_of_step),
        Column("kernels", "kernels", decimals=0),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def _idle_of_step(row: StepLine) -> Cell:
    return number(sum(getattr(row, f"{bucket}_ms") or 0.0 for bucket in IDLE_BUCKETS))


def collectives(answer: CollectivesAnswer) -> list[Block]:
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


def _sizes(rows: Sequence[CollectiveLine]) -> dict[int | None, str]:
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


def kernels(answer: KernelsAnswer) -> list[Block]:
    columns = [
        made("kernel", lambda row: Cell(short_name(row.name, _NAME)), left=True),
        made("kind", lambda row: Cell(row.kind or UNKNOWN), left=True),
        Column("ms_per_step", f"ms {words_of(answer).per}"),
        Column("share_pct", "share %"),
        Column("mean_us", "mean µs"),
        made("most on", _most_on, left=True),
    ]
    return [table(columns, answer.rows, _rest(answer))]


def _most_on(row: KernelLine) -> Cell:
    return Cell(UNKNOWN if row.worst_rank is None else f"rank {row.worst_rank}")


def roles(answer: RolesAnswer) -> list[Block]:
    if not answer.rows:
        return [text("no groups of ranks are known")]
    columns = [
        made("role", lambda row: Cell(row.role), left=True),
        made("groups", lambda row: Cell(_groups(row)), left=True),
        Column("exposed_ms", "exposed ms"),
        Column("wait_ms", "wait ms"),
        Column("transfer_ms", "transfer ms"),
        Column("busbw_gbs", "GB/s"),
        made("waits for", lambda row: Cell(UNKNOWN if row.waits_for_rank is None else f"rank {row.waits_for_rank}")),
    ]
    return [table(columns, answer.rows)]


def _groups(row: RoleRow) -> str:
    sizes = "/".join(map(str, row.group_sizes))
    return f"{row.groups} of {sizes}" if sizes else str(row.groups)


def made(label: str, make: Callable[[Any], Cell], *, left: bool = False) -> Column:
    return Column(label, label, number=not left, make=make)


def table(columns: Sequence[Column], rows: Sequence[Any], note: str = "") -> TableBlock:
    return TableBlock(build_table("", columns, rows, note=note))


def _rest(answer: RanksAnswer | StepsAnswer | CollectivesAnswer | KernelsAnswer | WhatIfAnswer) -> str:
    shown = len(answer.rows)
    by = "" if isinstance(answer, WhatIfAnswer) else f", most {answer.ordered_by} first"
    return f"{shown} of {answer.total}{by}" if shown < answer.total else ""
