"""The short summary on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from traceops.core.claims import phrases
from traceops.core.findings import Finding, count_checks
from traceops.core.units import fixed_text
from traceops.measure.hta_tables import HtaAgreement
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, Code, Span, TableBlock, Text, soft, text
from traceops.render.finding_blocks import finding_block
from traceops.render.report.card import card_lines, card_of, shortened, told_first
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.coverage import least_note, unfit_note, unjudged_sentence, why_no_what_if
from traceops.render.report.lead import headline_of, mean_of_ranks, not_evaluated
from traceops.render.report.parallel_sections import experts_lines, host_cells, pass_lines, role_lines
from traceops.render.report.rank_groups import group_label
from traceops.render.report.rank_tables import bubble_parts
from traceops.render.report.run_text import kinds_sentence, speed_text, steps_found
from traceops.render.report.terms import BUBBLE, first_said, said
from traceops.render.report.whole_run import rows_of_run, typical_of, undisturbed_of, whole_run_sentence
from traceops.render.report.whole_run import sentence as undisturbed_sentence
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.report.detail import Alike, alike_ranks
from traceops.report.model import Report
from traceops.report.rows import RankRow
from traceops.report.step_times import StepTime

_MOST_RANKS = 8
_BAR_WIDTH = 30
_MOST_CHANGES = 3
_MOST_FINDINGS = 5
_BLANK = text("")
_WORTH_PCT = 1.0  # of the step: a change that saves less is not worth a line


def print_report(report: Report, file: TextIO, written: Path, *, verbose: bool = False) -> None:
    """The card, where the step goes, other findings, and where the report lies."""
    write_terminal(describe_summary(report, written, verbose=verbose), file)


def describe_summary(report: Report, written: Path, *, verbose: bool = False) -> list[Block]:
    """What the terminal shows of a report; `written` is where all of it lies. verbose: evidence and tables too."""
    card = card_of(report)
    blocks: list[Block] = [text(_heading(report), look="bold", indent=(0, 2)), *card_lines(card)]
    if (ledger := _ledger(report)).table.rows:
        blocks += [_BLANK, ledger]
    if verbose:
        blocks += [_BLANK, *_details(report)]
    elif others := _others(report):
        blocks += [_BLANK, *map(_finding_line, others[:_MOST_FINDINGS])]
        if more := len(others) - _MOST_FINDINGS:
            blocks += [soft(f"… and {more} more in the report")] * (more > 0)
    blocks.append(_BLANK)
    if report.hta_agreement is not None:
        blocks.append(text(hta_sentence(report.hta_agreement)))
    return [*blocks, Code((f"Report: {written}",), look="")]


def _others(report: Report) -> list[Finding]:
    told = told_first(report)
    return [finding for finding in report.findings if finding not in told]


def _finding_line(finding: Finding) -> Text:
    look = f"level-{finding.severity}"
    return text(f"{MARK[finding.severity]} {shortened(headline_of(finding))} ", Span(finding.rule, "soft"), look=look)


def _details(report: Report) -> list[Block]:
    """Tables, every finding with its evidence, and what could not be judged."""
    blocks: list[Block] = [
        *_first_steps(report),
        *_whole_run(report),
        *role_lines(report),
        *experts_lines(report),
        *pass_lines(report),
        *_what_if(report),
        *_hosts(report),
        _ranks(report),
        *(finding_block(finding, words=report.summary.step_words) for finding in report.findings),
    ]
    if unjudged := unjudged_sentence(report):
        blocks.append(soft(unjudged))
    if skipped := count_checks(report.checks).not_evaluated:
        named = ", ".join(not_evaluated(report.checks))
        blocks.append(soft(said("terminal", "missing", count=skipped, named=named)))
    if report.steps and all(found.severity == "info" for found in report.findings):
        blocks.append(soft(kernels_sentence(report)))
    return blocks


def hta_sentence(found: HtaAgreement) -> str:
    """One line that says whether HTA's own code gives the same tables."""
    return first_said(
        "terminal", "hta", own=f"HTA's own code ({found.by})" if found.by else "HTA's own code",
        none=not found.values, same=not found.differing, values=f"{found.values:,}", ranks=found.ranks,
        differing=f"{found.differing:,}", tables=", ".join(found.tables),
    )  # fmt: skip


def _heading(report: Report) -> str:
    run, step = report.run, report.summary.step_time_ms
    present = len(run.ranks_present)
    parts = [
        f"{present} of {run.world_size} ranks" if run.ranks_missing else f"{present} rank{'' if present == 1 else 's'}"
    ]
    parts[0] += f" on {len(run.hosts)} hosts" if len(run.hosts) > 1 else ""
    parts += [str(value) for value in (run.device, run.strategy) if value]
    if step.typical is not None and report.summary.steps_found_by == "window":
        parts.append(said("terminal", "window", ms=f"{step.typical:.2f}"))
    elif step.typical is not None:
        parts.append(f"step {step.typical:.2f} ms ({_typical_of(step)})")
        rows = rows_of_run(report)
        if rows is not None and rows.rounds is not None and rows.rounds.steps > 1:
            parts.append(f"round of {rows.rounds.steps} steps {fixed_text(rows.rounds.ms, 2)} ms")
        parts += [found] if (found := steps_found(report)) else []
        parts += [speed] if (speed := speed_text(report)) else []
    return f"{run.name}: {' · '.join(parts)}"


def _typical_of(step: StepTime) -> str:
    """Of how many steps the typical one is the mean, and how all of them spread; one step alone does not."""
    mean_of = step.n - len(step.left_out)
    return first_said(
        "terminal", "spread", one=step.n == 1, all=not step.left_out, count=step.n, mean_of=mean_of,
        range=f"{step.p5:.2f}–{step.p95:.2f}", is_unlike=step.unlike, ones="one" if mean_of == 1 else "ones",
        unshared=step.unshared,
    )  # fmt: skip


def _first_steps(report: Report) -> list[Block]:
    """That the recorded steps may not be like later ones, where they are a program's first, or steps settle later."""
    rows = rows_of_run(report)
    if rows is not None and rows.early_window is not None:
        note = rows.early_window.note
        return [text(f"{note[0].upper()}{note[1:]}.", indent=(0, 2))]
    if not report.summary.first_steps:
        return []
    plain = report.summary.plain_ms
    told = said("terminal", "first_steps", plain=None if plain is None else fixed_text(plain, 2))
    return [text(told, indent=(0, 2))]


def _whole_run(report: Report) -> list[Block]:
    rows, undisturbed = rows_of_run(report), undisturbed_of(report)
    said = [] if rows is None else [f"The whole run: {whole_run_sentence(rows, report)}"]
    said += [f"{kinds}."] if (kinds := kinds_sentence(report)) else []
    said += [] if undisturbed is None else [f"Undisturbed: {undisturbed_sentence(undisturbed, typical_of(report))}"]
    return [text(line, indent=(0, 2)) for line in said]


def _ledger(report: Report) -> TableBlock:
    """Buckets that take a hundredth of the step, of the median rank or of the worst one."""
    worst, whole = report.summary.ledger_worst_rank, mean_of_ranks(report)
    rows = []
    for bucket in BUCKETS:
        ms, pct = report.summary.ledger_ms.of(bucket), report.summary.ledger_pct.of(bucket)
        most = max(pct or 0.0, 100.0 * worst[bucket].ms / whole if bucket in worst and whole else 0.0)
        if most < _WORTH_PCT and (whole or not ms):
            continue
        bar = "█" * round((pct or 0) / 100 * _BAR_WIDTH)
        who = f"{worst[bucket].ms:.2f} ms on {group_label(report, worst[bucket].rank)}" if bucket in worst else ""
        rows.append((bucket, fixed_text(ms, 2), fixed_text(pct, 1), bar, who if len(report.ranks) > 1 else ""))
        if bucket == "comm_wait":
            rows += [
                (BUBBLE[part].label, fixed_text(ms, 2), fixed_text(pct, 1), "", "")
                for part, ms, pct in bubble_parts(report)
            ]
    over = ", median over ranks" if len(report.ranks) > 1 else ""
    columns = (
        Column("bucket", f"where {report.summary.step_words.the} goes{over}", number=False),
        Column("ms", "ms"),
        Column("pct", "%"),
        Column("bar", "", number=False, css="bar"),
        Column("worst", "worst rank", number=False),
    )
    return _table(columns, rows)


def _range_text(least: float | None) -> str:
    """The lower end of a range, '13.08 to '."""
    return "" if least is None else f"{fixed_text(least, 2)} to "


def _what_if(report: Report) -> list[Block]:
    """The changes that save most, and how good the replay is; why there are none."""
    rows = sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0))
    rows = [row for row in rows if (row.saved_pct or 0.0) >= _WORTH_PCT][:_MOST_CHANGES]
    if not rows:
        return [soft(why)] if (why := why_no_what_if(report, _WORTH_PCT)) else []
    cells = [
        (
            row.change,
            f"{fixed_text(row.step_time_ms, 2)} → {_range_text(row.predicted_least_ms)}"
            f"{fixed_text(row.predicted_step_time_ms, 2)}",
            fixed_text(row.saved_pct, 1),
        )
        for row in rows
    ]
    words = report.summary.step_words
    error = report.summary.replay.error_pct if report.summary.replay is not None else None
    plain = report.summary.stretched_from_ms
    within = phrases(
        "page", "terminal", "replay", error=error, steps=words.choose("steps", "window"), least=least_note(report),
        unfit=unfit_note(report), plain=None if plain is None else fixed_text(plain, 2),
    )  # fmt: skip
    columns = (
        Column("change", "what if", number=False),
        Column("step", f"{words.noun} ms"),
        Column("saved", "saved %"),
    )
    return [_table(columns, cells, "" if error is None else "; ".join(within))]


def _hosts(report: Report) -> list[TableBlock]:
    cells, rest = host_cells(report)
    if not cells:
        return []
    header = (
        "host",
        "ranks",
        f"{report.summary.step_words.noun} ms",
        "compute ms",
        "comm_wait ms",
        "inside ms",
        "between ms",
        "caused wait",
    )
    named = tuple(Column(title, title, number=number > 1) for number, title in enumerate(header))
    return [_table(named, cells, rest or "inside, between: transfer among ranks of a host, and with others")]


def _ranks(report: Report) -> TableBlock:
    rows: Sequence[RankRow] = report.ranks
    kinds: dict[int, Alike] = {}
    share: dict[int, float | None] = {}
    if len(rows) > _MOST_RANKS:  # a row a kind: keep those that the others wait for, then the idlest
        kinds = {kind.example: kind for kind in alike_ranks(rows, _MOST_RANKS)}
        share = {kind.example: _late_share(rows, kind) for kind in kinds.values()}
        rows = [row for row in rows if row.rank in kinds]
        rows = sorted(rows, key=lambda row: (-(share[row.rank] or 0), -(row.idle_pct or 0)))
    cells = [
        (
            _rank_text(row, kinds),
            fixed_text(_share_pct(row, IDLE_BUCKETS), 1),
            fixed_text(_share_pct(row, ("compute",)), 1),
            fixed_text(row.overlap_pct, 1),
            fixed_text(row.comm_wait_ms, 2),
            fixed_text(row.comm_transfer_ms, 2),
            fixed_text(None, 0) if (late := share.get(row.rank, row.late_share)) is None else f"{100 * late:.0f} %",
        )
        for row in rows
    ]
    all_ranks = len(report.ranks)
    rest = said("terminal", "kinds", ranks=all_ranks) if kinds else ""
    header = ("rank", "idle %", "compute %", "overlap %", "comm_wait ms", "comm_transfer ms", "caused wait")
    return _table(tuple(Column(title, title) for title in header), cells, rest)


def _rank_text(row: RankRow, kinds: Mapping[int, Alike]) -> str:
    """'3', or '1 (+63)' where a row stands for others too."""
    more = len(kinds[row.rank].ranks) - 1 if row.rank in kinds else 0
    return f"{row.rank} (+{more})" if more else str(row.rank)


def _late_share(rows: Sequence[RankRow], kind: Alike) -> float | None:
    """The part of all waiting that ranks which are alike cause together."""
    own = set(kind.ranks)
    known = [row.late_share for row in rows if row.rank in own and row.late_share is not None]
    return sum(known) if known else None


def _share_pct(row: RankRow, buckets: Sequence[str]) -> float | None:
    """Percent of the rank's typical step that these buckets take, as in the ledger above; None without a step."""
    own = {bucket: row.bucket_ms(bucket) or 0.0 for bucket in BUCKETS}
    whole = sum(own.values())
    return 100.0 * sum(own[bucket] for bucket in buckets) / whole if whole else None


def _table(columns: tuple[Column, ...], rows: Sequence[Sequence[str]], note: str = "") -> TableBlock:
    cells = tuple(tuple(Cell(said) for said in row) for row in rows)
    return TableBlock(Table("", columns, cells, note=note))
