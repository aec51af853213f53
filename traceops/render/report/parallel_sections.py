"""Communication by what its groups are for: a section, lines on the terminal, and words behind a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rank_text import ranks_text
from traceops.core.words import ROLE_TOLD, ROLES, STEP, StepWords
from traceops.render.cells import NOT_KNOWN, Cell, name, table_of
from traceops.render.document import Block, Section, TableBlock, soft, text
from traceops.render.report.terms import say, section_of
from traceops.report.model import Report
from traceops.report.rows import ExpertsRow, PassRow, RoleRow

_WORTH_PCT = 0.5  # of the step: exposed communication that is worth a line


def roles(report: Report, shown: Sequence[int]) -> Section | None:
    """What each kind of parallelism costs a step."""
    if not report.roles:
        return None
    blocks: list[Block] = [soft(say("roles", "intro"))]
    blocks += [text(sentence) for row in _worth(report) if (sentence := role_sentence(row))]
    if unknown := next((row for row in report.roles if row.role == "unknown" and row.exposed_ms), None):
        blocks.append(soft(say("roles", "unknown", unknown=unknown.exposed_ms)))
    named = ", ".join(dict.fromkeys(ROLES[row.role] for row in report.roles))
    cells = {
        "role": lambda row: Cell(ROLES[row.role]),
        "told_by": lambda row: Cell(", ".join(ROLE_TOLD[told] for told in row.told_by)),
        "groups": _groups_cell,
        "reach": lambda row: Cell(_reach(row)),
    }
    return section_of("roles", (*blocks, TableBlock(table_of("roles", report.roles, make=cells))), roles=named)


def role_lines(report: Report) -> list[Block]:
    """The terminal's table, where there are several kinds of parallelism."""
    rows = _worth(report)
    if not rows or sum(row.role != "unknown" for row in report.roles) < 2:
        return []
    cells = {
        "role": lambda row: Cell(ROLES[row.role]),
        "reach": lambda row: Cell(_reach(row)),
        "waits_for_rank": lambda row: Cell(
            "" if row.waits_for_rank is None else f"rank {row.waits_for_rank} ({row.waits_for_pct:.0f} %)"
        ),
    }
    return [TableBlock(table_of("terminal_roles", rows, make=cells))]


def role_sentence(row: RoleRow) -> str:
    """'Tensor parallel: 9.10 ms exposed, all inside host2.'; '' without any."""
    if not row.exposed_ms or row.role == "unknown":
        return ""
    label = ROLES[row.role]
    inside = row.host if row.reach == "inside" else None
    return say(
        "roles", "sentence", label=f"{label[0].upper()}{label[1:]}", exposed=row.exposed_ms, inside=inside,
        mostly=row.host, fused=row.fused,
    )  # fmt: skip


def _worth(report: Report) -> list[RoleRow]:
    step = report.summary.step_time_ms.typical or 0.0
    return [row for row in report.roles if 100.0 * (row.exposed_ms or 0.0) >= _WORTH_PCT * step > 0]


def _reach(row: RoleRow) -> str:
    if row.reach is None:
        return ""
    if row.reach == "between":
        return "between hosts"
    return f"inside {row.host}" if row.host else "inside hosts"


def _groups_cell(row: RoleRow) -> Cell:
    sizes = " and ".join(map(str, row.group_sizes))
    count = f"{row.groups} of {sizes} ranks" if row.groups else say("roles", "no_groups")
    return name(f"{', '.join(row.names)}: {count}", 60) if row.names else Cell(count)


# Experts: a section of the page, and a line on the terminal.

_UNEVEN = 1.05  # times the mean: a rank that gets more is worth a line


def experts(report: Report, shown: Sequence[int]) -> Section | None:
    """What the experts of each rank and layer get and compute."""
    if not report.experts:
        return None
    words = report.summary.step_words
    blocks: list[Block] = [soft(say("experts", "intro", words))]
    for row in report.experts:
        blocks += [
            text(experts_sentence(row, words)),
            TableBlock(table_of("experts", sorted(row.times, key=lambda t: (t.layer, t.rank)))),
        ]
    return section_of("experts", blocks)


def experts_lines(report: Report) -> list[Block]:
    """The terminal's line for each group whose ranks do not get as much."""
    return [
        text(experts_sentence(row, report.summary.step_words), indent=(0, 2))
        for row in report.experts
        if row.imbalance >= _UNEVEN
    ]


def experts_sentence(row: ExpertsRow, words: StepWords = STEP) -> str:
    """'Experts of ranks 0–1, 6 layers: rank 1 gets 1.50 times the mean (1.50 to 1.50 in its steps). …'"""
    got = {rank: sum(t.received_bytes for t in row.times if t.rank == rank) for rank in row.ranks}
    most = max(row.ranks, key=lambda rank: got[rank])
    shares = [one.share for one in row.imbalance_by_step]
    mean, even = sum(got.values()) / len(got), row.imbalance < _UNEVEN
    return say(
        "experts", "sentence", words, ranks=ranks_text(row.ranks, 8), layers=row.layers, even=even,
        most=None if even else most, times=got[most] / mean if mean else 1.0, low=min(shares), high=max(shares),
        dispatch=row.dispatch_ms, dispatch_gbs=row.dispatch_gbs, combine=row.combine_ms, combine_gbs=row.combine_gbs,
        reference=row.reference_gbs, saves=row.even_saves_ms or None,
    )  # fmt: skip


# Prefill and decode passes of an inference server: a section, and lines on the terminal.

_LABELS = {"prefill": "Prefill", "mixed": "Prefill and decode in one", "decode": "Decode"}


def passes(report: Report, shown: Sequence[int]) -> Section | None:
    """What each kind of pass takes."""
    if not report.passes:
        return None
    table = table_of("passes", report.passes, make={"kind": lambda row: Cell(_LABELS[row.kind])})
    sentences = map(pass_sentence, report.passes)
    return section_of("passes", (soft(say("passes", "intro")), *map(text, sentences), TableBlock(table)))


def pass_sentence(row: PassRow) -> str:
    """'Decode: 128 passes, 3.20 ms on the device each; 0.80 ms before each the device waits for the host.'"""
    moved = row.waiting_ms is not None and row.transfer_ms is not None and row.waiting_ms + row.transfer_ms > 0
    return say(
        "passes", "sentence", label=_LABELS[row.kind], count=row.count, device=row.device_ms, several=row.count != 1,
        between=row.between_ms, scheduling=row.scheduling_ms or None, waiting=row.waiting_ms if moved else None,
        transfer=row.transfer_ms if moved else None,
    )  # fmt: skip


def pass_lines(report: Report) -> list[Block]:
    """The terminal's table, a line a kind of pass."""
    return [TableBlock(table_of("terminal_passes", report.passes))] if report.passes else []


_MOST_HOSTS = 8  # on the terminal


def hosts(report: Report, shown: Sequence[int]) -> Section | None:
    """The table of hosts; None where there are not several."""
    if not report.hosts:
        return None
    words = report.summary.step_words
    cells = {"host": lambda row: name(row.host), "ranks": lambda row: Cell(ranks_text(row.ranks))}
    table = table_of("hosts", report.hosts, words, make=cells)
    blocks = soft(say("hosts", "intro", words)), TableBlock(table)
    return section_of("hosts", blocks, hosts=len(report.hosts))


def host_lines(report: Report) -> list[Block]:
    """The terminal's table: the hosts that others wait for first."""
    if not report.hosts:
        return []
    cells = {
        "ranks": lambda row: Cell(ranks_text(row.ranks)),
        "late_share": lambda row: NOT_KNOWN if row.late_share is None else Cell(f"{100 * row.late_share:.0f} %"),
    }
    rows = sorted(report.hosts, key=lambda row: -(row.late_share or 0.0))
    words, note = report.summary.step_words, say("hosts", "terminal")
    return [TableBlock(table_of("terminal_hosts", rows, words, make=cells, note=note, most=_MOST_HOSTS))]
