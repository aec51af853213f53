"""The short summary on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import replace

from traceops.core.claims import phrases
from traceops.core.units import fixed_text
from traceops.measure.hta_tables import HtaAgreement
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.cells import NOT_KNOWN, Cell, table_of
from traceops.render.document import Block, Code, Span, TableBlock, soft, text
from traceops.render.finding_blocks import finding_block
from traceops.render.report.card import card_lines, card_of, judged_pct, shortened, told_first
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.coverage import least_note, unfit_note, unjudged_sentence, why_no_what_if
from traceops.render.report.lead import headline_of, mean_of_ranks
from traceops.render.report.parallel_sections import experts_lines, host_lines, pass_lines, role_lines
from traceops.render.report.rank_groups import group_label
from traceops.render.report.step_sections import bubble_parts
from traceops.render.report.terms import BUBBLE, kinds_sentence, say, say_first, speed_text, steps_found
from traceops.render.report.whole_run import rows_of_run, typical_of, undisturbed_of, whole_run_sentence
from traceops.render.report.whole_run import sentence as undisturbed_sentence
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.report.detail import Alike, alike_ranks
from traceops.report.model import Report
from traceops.report.rows import RankRow, WhatIfRow
from traceops.report.step_times import StepTime
from traceops.rules.compute import SPEED

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
    else:
        lead = told_first(report)
        others = [finding for finding in report.findings if finding not in lead]
        blocks += [_BLANK] * bool(others)
        for finding in others[:_MOST_FINDINGS]:
            sentence = f"{MARK[finding.severity]} {shortened(headline_of(finding))} "
            blocks.append(text(sentence, Span(finding.rule, "soft"), look=f"level-{finding.severity}", indent=(0, 2)))
        if len(others) > _MOST_FINDINGS:
            blocks.append(soft(say("terminal", "more_findings", more=len(others) - _MOST_FINDINGS)))
    blocks.append(_BLANK)
    if report.hta_agreement is not None:
        blocks.append(text(hta_sentence(report.hta_agreement)))
    return [*blocks, Code((f"Report: {written}",), look="")]


def _details(report: Report) -> list[Block]:
    """Tables, every finding with its evidence, and what could not be judged."""
    rows, undisturbed = rows_of_run(report), undisturbed_of(report)
    sentences = [] if rows is None else [f"The whole run: {whole_run_sentence(rows, report)}"]
    sentences += [f"{kinds}."] if (kinds := kinds_sentence(report)) else []
    if undisturbed is not None:
        sentences.append(f"Undisturbed: {undisturbed_sentence(undisturbed, typical_of(report))}")
    # that the recorded steps may not be like later ones, where they are a program's first, or steps settle later
    if (rows := rows_of_run(report)) is not None and rows.early_window is not None:
        note = rows.early_window.note
        first_steps = [text(f"{note[0].upper()}{note[1:]}.", indent=(0, 2))]
    elif not report.summary.first_steps:
        first_steps = []
    else:
        plain = report.summary.plain_ms
        told = say("terminal", "first_steps", plain=None if plain is None else fixed_text(plain, 2))
        first_steps = [text(told, indent=(0, 2))]
    blocks: list[Block] = [
        *first_steps,
        *[text(line, indent=(0, 2)) for line in sentences],
        *role_lines(report),
        *experts_lines(report),
        *pass_lines(report),
        *(_what_if(report) if report.summary.no_replay != "one_rank" else []),
        *host_lines(report),
        *([_ranks(report)] if len(report.ranks) > 1 else []),
        *(finding_block(finding, words=report.summary.step_words) for finding in report.findings),
    ]
    if unjudged := unjudged_sentence(report):
        blocks.append(soft(unjudged))
    if judged_pct(report) is not None and all(it.severity == "info" and it.rule != SPEED.id for it in report.findings):
        blocks.append(soft(kernels_sentence(report)))
    return blocks


def hta_sentence(found: HtaAgreement) -> str:
    """One line that says whether HTA's own code gives the same tables."""
    by = f" ({found.by})" if found.by else ""
    return say_first(
        "terminal", "hta", own=f"HTA's own code{by}", by=by, none=not found.values, same=not found.differing,
        values=f"{found.values:,}", ranks=found.ranks, differing=f"{found.differing:,}",
        tables=", ".join(found.tables), first=found.first,
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
        # Show how long the recording is where the window without marked steps is only a part of it.
        facts = next((one.facts for one in report.findings if one.kind == "no_steps_marked"), None)
        parts.append(
            say_first("terminal", "window", ms=f"{step.typical:.2f}", recorded=facts.get("recorded") if facts else None)
        )
    elif step.typical is not None:
        parts.append(f"step {step.typical:.2f} ms ({_typical_of(step)})")
        if (rows := rows_of_run(report)) is not None and rows.rounds is not None and rows.rounds.steps > 1:
            parts.append(say("terminal", "round", steps=rows.rounds.steps, ms=fixed_text(rows.rounds.ms, 2)))
        parts += [found] if (found := steps_found(report)) else []
        parts += [speed] if (speed := speed_text(report)) else []
    return f"{run.name}: {' · '.join(parts)}"


def _typical_of(step: StepTime) -> str:
    """Of how many steps the typical one is the mean, and how all of them spread; one step alone does not."""
    mean_of = step.n - len(step.left_out)
    return say_first(
        "terminal", "spread", one=step.n == 1, all=not step.left_out, count=step.n, mean_of=mean_of,
        range=f"{step.p5:.2f}–{step.p95:.2f}", is_unlike=step.unlike, ones="one" if mean_of == 1 else "ones",
        unshared=step.unshared,
    )  # fmt: skip


def _ledger(report: Report) -> TableBlock:
    """Buckets that take a hundredth of the step, of the median rank or of the worst one."""
    summary, whole, several = report.summary, mean_of_ranks(report), len(report.ranks) > 1
    rows: list[dict[str, Any]] = []
    for bucket in BUCKETS:
        ms, pct = summary.ledger_ms.of(bucket), summary.ledger_pct.of(bucket)
        worst = summary.ledger_worst_rank.get(bucket)
        most = max(pct or 0.0, 100.0 * worst.ms / whole if worst is not None and whole else 0.0)
        if most < _WORTH_PCT and (whole or not ms):
            continue
        bar = "█" * round((pct or 0) / 100 * _BAR_WIDTH)
        who = f"{worst.ms:.2f} ms on {group_label(report, worst.rank)}" if worst is not None and several else ""
        rows.append({"bucket": bucket, "ms": ms, "pct": pct, "bar": bar, "worst": who})
        if bucket == "comm_wait":
            rows += [
                {"bucket": BUBBLE[part].label, "ms": ms, "pct": pct, "bar": "", "worst": ""}
                for part, ms, pct in bubble_parts(report)
            ]
    over = {"over": ", median over ranks" if several else ""}
    cells = {"bar": lambda row: Cell(row["bar"]), "worst": lambda row: Cell(row["worst"])}  # blank is not unknown
    return TableBlock(table_of("terminal_ledger", rows, summary.step_words, make=cells, facts=over))


def _what_if(report: Report) -> list[Block]:
    """The changes that save most, and how good the replay is; why there are none."""
    rows = sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0))
    rows = [row for row in rows if (row.saved_pct or 0.0) >= _WORTH_PCT][:_MOST_CHANGES]
    if not rows:
        return [soft(why)] if (why := why_no_what_if(report, _WORTH_PCT)) else []

    def step(row: WhatIfRow) -> Cell:
        least = "" if row.predicted_least_ms is None else f"{row.predicted_least_ms:.2f} to "
        return Cell(f"{fixed_text(row.step_time_ms, 2)} → {least}{fixed_text(row.predicted_step_time_ms, 2)}")

    words, plain = report.summary.step_words, report.summary.stretched_from_ms
    error = report.summary.replay.error_pct if report.summary.replay is not None else None
    within = phrases(
        "page", "terminal", "replay", error=error, steps=words.choose("steps", "window"), least=least_note(report),
        unfit=unfit_note(report), plain=None if plain is None else fixed_text(plain, 2),
    )  # fmt: skip
    note = "" if error is None else "; ".join(within)
    return [TableBlock(table_of("terminal_what_if", rows, words, make={"step": step}, note=note))]


def _ranks(report: Report) -> TableBlock:
    rows, kinds = list(report.ranks), dict[int, Alike]()
    if len(rows) > _MOST_RANKS:  # a row a kind: keep those that the others wait for, then the idlest
        kinds = {kind.example: kind for kind in alike_ranks(rows, _MOST_RANKS)}
        rows = [replace(row, late_share=_late_share(rows, kinds[row.rank])) for row in rows if row.rank in kinds]
        rows.sort(key=lambda row: (-(row.late_share or 0), -(row.idle_pct or 0)))

    def rank(row: RankRow) -> Cell:  # '3', or '1 (+63)' where a row stands for others too
        more = len(kinds[row.rank].ranks) - 1 if row.rank in kinds else 0
        return Cell(f"{row.rank} (+{more})" if more else str(row.rank))

    cells = {
        "rank": rank,
        "idle": lambda row: Cell(fixed_text(_share_pct(row, IDLE_BUCKETS), 1)),
        "compute": lambda row: Cell(fixed_text(_share_pct(row, ("compute",)), 1)),
        "late_share": lambda row: NOT_KNOWN if row.late_share is None else Cell(f"{100 * row.late_share:.0f} %"),
    }
    note = say("terminal", "kinds", ranks=len(report.ranks)) if kinds else ""
    return TableBlock(table_of("terminal_ranks", rows, make=cells, note=note))


def _late_share(rows: Sequence[RankRow], kind: Alike) -> float | None:
    """The part of all waiting that ranks which are alike cause together."""
    known = [row.late_share for row in rows if row.rank in set(kind.ranks) and row.late_share is not None]
    return sum(known) if known else None


def _share_pct(row: RankRow, buckets: Sequence[str]) -> float | None:
    """Percent of the rank's typical step that these buckets take, as in the ledger above; None without a step."""
    own = {bucket: row.bucket_ms(bucket) or 0.0 for bucket in BUCKETS}
    whole = sum(own.values())
    return 100.0 * sum(own[bucket] for bucket in buckets) / whole if whole else None
