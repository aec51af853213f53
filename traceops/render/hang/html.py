"""hang.html, one self-contained page of a diagnosis without scripts, and its blocks in a report."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import Check, Finding
from traceops.core.rank_text import ranks_text, who_first, who_runs
from traceops.hangs.evidence import LogEvent, RankStacks, ThreadStack
from traceops.hangs.model import Diagnosis
from traceops.render.cells import Cell, word
from traceops.render.document import (
    SURE,
    Answer,
    Block,
    Document,
    Drawing,
    Facts,
    Heading,
    Headline,
    Section,
    Span,
    TableBlock,
    bold,
    code,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.finding_blocks import checks_block, findings_section, not_used
from traceops.render.hang import tables as hang_tables
from traceops.render.hang.graph import LINE, PADDING, WIDTH, wait_graphs
from traceops.render.writers.html import write_html
from traceops.report.hang_rows import merged_ranks, shown_waits
from traceops.report.hang_seen import seen_lines, what_would_decide
from traceops.report.hang_text import (
    hang_level,
    hang_sentence,
    known_ranks,
    read_text,
    root_advice,
    root_label,
    root_sentence,
    shown_path,
    stall_text,
    unknown_ranks,
)


def hang_answer(diagnosis: Diagnosis, proof: str) -> Answer | None:
    """Of the first cause; None without one. proof: '#id' of the section that shows who waits for whom."""
    if not diagnosis.roots:
        return None
    root = diagnosis.roots[0]
    lines: list[tuple[str, tuple[Block, ...]]] = []
    if root.ranks:
        hosts = {status.host for status in diagnosis.ranks if status.rank in set(root.ranks) and status.host}
        on = f" on {' and '.join(sorted(hosts))}" if 1 <= len(hosts) <= 2 else ""
        named = f"Rank{'' if len(root.ranks) == 1 else 's'} {ranks_text(root.ranks, 8)}"
        lines.append(("Where", (text(f"{named}{on}"),)))
    if root.waiting:
        waits = f"Rank{'' if len(root.waiting) == 1 else 's'} {ranks_text(root.waiting, 8)}"
        lines.append(("Waiting", (text(waits),)))
    if advice := root_advice(root):
        lines.append(("Do", (text(advice),)))
    lines.append(("How sure", (text(f"{SURE[root.confidence]}."),)))
    lines.append(("Proof", (text(Span("who waits for whom, and what each rank does", href=proof)),)))
    return Answer(tuple(lines))


_MOST_STACKS = 16
_MOST_FRAMES = 60
_MOST_FILES = 200
_BOX = {"width": WIDTH, "line": LINE, "padding": PADDING}


def hang_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """All of a diagnosis under one heading, for a report that holds more than the hang."""
    stacks = stacks_blocks(diagnosis)
    opening: tuple[Block, ...] = () if diagnosis.roots else (text(hang_sentence(diagnosis)),)
    return (
        *opening,
        *(text(bold(line)) for line in other_roots(diagnosis)),
        *waits_blocks(diagnosis),
        Heading("Ranks"),
        ranks_block(diagnosis),
        *((Heading("Stacks"), *stacks) if stacks else ()),
        Heading("What was read"),
        *sources_blocks(diagnosis),
    )


def other_roots(diagnosis: Diagnosis) -> list[str]:
    """A line for each cause after the one that the verdict tells."""
    return [f"{root_sentence(root)} {root_label(root)}" for root in diagnosis.roots[1:]]


def waits_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """The graph of who waits for whom, and the same as a table."""
    graphs = wait_graphs(diagnosis) or ()
    blocks: list[Block] = []
    if graphs:
        blocks.append(soft("An arrow leads from who waits to whom it waits for; boxes with a red edge are the cause."))
    for graph, css in zip(graphs, ("wide", "tall"), strict=False):
        blocks.append(Drawing("hang_graph", (graph, css, _BOX)))
    table = hang_tables.waits_table(diagnosis)
    if table is not None:
        return (*blocks, fold("The arrows as a table", TableBlock(table), open=not graphs))
    nobody = (
        "No rank waits for one that is missing; the findings have all there is."
        if diagnosis.roots
        else "These files show no rank waiting for another one."
    )
    return (*blocks, text(nobody, _unknown(diagnosis)))


def ranks_block(diagnosis: Diagnosis) -> TableBlock:
    """What each rank was in."""
    return TableBlock(hang_tables.ranks_table(diagnosis, merged_ranks(diagnosis, hang_tables.MOST_ROWS)))


def stacks_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Stacks of the causes' ranks, then of one rank that waits to compare with."""
    held = diagnosis.evidence.stacks
    causes = list(dict.fromkeys(rank for root in diagnosis.roots for rank in root.ranks if rank in held))
    waiting = [wait.rank for wait in diagnosis.waits if wait.rank in held and wait.rank not in causes]
    shown = [(rank, "") for rank in causes[:_MOST_STACKS]]
    shown += [(rank, ", which waits, to compare") for rank in waiting[:1]]
    folded: list[Block] = [
        fold(f"Rank {rank}{why}", *_threads(held[rank]), open=not place) for place, (rank, why) in enumerate(shown)
    ]
    more = len(causes) - _MOST_STACKS
    if more > 0:
        folded.append(soft(f"Stacks of {more} more ranks lie in the evidence folder."))
    return tuple(folded)


def sources_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """What was read, what could not be used, and what the reader should know of it."""
    evidence, stall = diagnosis.evidence, stall_text(diagnosis)
    blocks: list[Block] = [text(f"{stall}. " if stall else "", f"Read: {read_text(diagnosis)}.", _unknown(diagnosis))]
    if seen := [_seen_line(diagnosis, event, said_by) for event, said_by in seen_lines(diagnosis)]:
        blocks += [soft("What logs tell of trouble besides:"), items(seen, "files")]
    if wanted := what_would_decide(diagnosis):
        blocks.append(text(wanted))
    if evidence.problems:
        blocks.append(not_used([(shown_path(diagnosis, path), said) for path, said in evidence.problems]))
    if diagnosis.notes:
        blocks.append(items(diagnosis.notes, "notes"))
    if evidence.files:
        files = [code(shown_path(diagnosis, path)) for path in evidence.files[:_MOST_FILES]]
        more = len(evidence.files) - _MOST_FILES
        rest = (soft(f"{more} more."),) if more > 0 else ()
        blocks.append(fold(f"Files read ({len(evidence.files)})", items(files, "files"), *rest))
    return tuple(blocks)


def _seen_line(diagnosis: Diagnosis, event: LogEvent, said_by: Sequence[int]) -> str:
    by = f"{who_first(said_by)}: " if said_by else ""
    return f"{shown_path(diagnosis, event.path)}:{event.line}: {by}{event.text}"


def _unknown(diagnosis: Diagnosis) -> str:
    unknown = unknown_ranks(diagnosis)
    return f" Nothing is known of {who_runs(unknown)}." if unknown else ""


def _threads(stacks: RankStacks) -> list[Block]:
    """The main thread's frames at once, those of the others folded."""
    blocks: list[Block] = []
    for thread in sorted(stacks.threads, key=lambda thread: not thread.main):
        frames = [str(frame) for frame in thread.frames[:_MOST_FRAMES]]
        listed = items(frames, "frames", ordered=True)
        if thread.main or len(stacks.threads) == 1:
            blocks += [Heading(_title(thread), 4), listed]
            if len(thread.frames) > _MOST_FRAMES:
                blocks.append(soft(f"{len(thread.frames) - _MOST_FRAMES} outer frames left out."))
        else:
            blocks.append(fold(f"{_title(thread)}: {frames[0] if frames else 'no frames'}", listed))
    return blocks


def _title(thread: ThreadStack) -> str:
    title = "main thread" if thread.main else f"thread {thread.name or ''}".strip()
    return title + (" (compiled code too)" if thread.native else "")


def render_hang_html(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> bytes:
    """The page in UTF-8: no script, nothing from outside, everything that came from a file escaped."""
    return write_html(describe(diagnosis, findings, checks))


def describe(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> Document:
    """A diagnosis with its findings as a document."""
    name, stacks = diagnosis.evidence.name, stacks_blocks(diagnosis)
    sections = [
        Section("waits", "Who waits for whom", waits_blocks(diagnosis)),
        findings_section(findings, checks),
        Section("ranks", "Ranks", (ranks_block(diagnosis),)),
        Section("stacks", "Stacks", (soft("Innermost frame first."), *stacks)),
        Section("read", "What was read", sources_blocks(diagnosis)),
        Section("checks", "Checks", (checks_block(checks, "What each rule says about this run"),)),
    ]
    return Document(
        title=f"{name}: hang",
        heading=spans(name),
        command="traceops diagnose",
        verdict=Headline(hang_level(diagnosis), hang_sentence(diagnosis)),
        intro=(
            *([answer] if (answer := hang_answer(diagnosis, "#waits")) is not None else []),
            *(text(line, look="verdict level-error another") for line in other_roots(diagnosis)),
            Facts(tuple(_facts(diagnosis))),
        ),
        sections=tuple(section for section in sections if section.id != "stacks" or stacks),
        footer="the same is in hang.json, hang_ranks.csv and hang_waits.csv beside this page",
        styles=("summary.css", "hang.css"),
    )


def _facts(diagnosis: Diagnosis) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    evidence = diagnosis.evidence
    unknown = unknown_ranks(diagnosis)
    known = len(known_ranks(diagnosis))
    stall = evidence.stall
    dumps = sum(record.source == "flight recorder" for record in evidence.records.values())
    versions = {record.nccl_version for record in evidence.records.values() if record.nccl_version}
    hosts = {status.host for status in diagnosis.ranks if status.host}
    waiting = {wait.rank for wait in shown_waits(diagnosis)}
    return [
        ("Ranks", word(evidence.world_size)),
        ("Evidence of", _ranks(known)),
        ("No evidence of", Cell(who_runs(unknown), css="bad") if unknown else Cell("no rank")),
        ("Waiting", _ranks(len(waiting))),
        ("Stalled for", Cell(f"{stall.stalled_s:.0f} s") if stall else word(None)),
        ("Hosts", word(len(hosts) or None)),
        ("NCCL", word(", ".join(sorted(versions)))),
        ("Flight-recorder dumps", _ranks(dumps)),
        ("Stacks", _ranks(len(evidence.stacks))),
        ("Files read", Cell(str(len(evidence.files)))),
        ("Not used", Cell(str(len(evidence.problems)), css="bad") if evidence.problems else Cell("none")),
    ]


def _ranks(count: int) -> Cell:
    return Cell(f"{count} rank{'' if count == 1 else 's'}")
