"""Communication by what its groups are for: a section, lines on the terminal, and words behind a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from traceops.core.findings import Finding
from traceops.core.units import fixed_text, ms_text
from traceops.core.words import ROLE_TOLD, ROLES
from traceops.render.cells import Cell, Column, Table, build_table, name
from traceops.render.document import Block, Section, TableBlock, soft, text
from traceops.report.cross_rows import RoleRow
from traceops.report.model import Report

_WORTH_PCT = 0.5  # of the step: exposed communication that is worth a line


def roles(report: Report, shown: Sequence[int]) -> Section | None:
    """What each kind of parallelism costs a step."""
    if not report.roles:
        return None
    blocks: list[Block] = [
        soft(
            "Exposed communication by what its groups are for, medians over the ranks that take part. Of an instant in "
            "which several wait or transfer, the first counts of: tensor, context, expert, pipeline, sharded, data "
            "parallel."
        )
    ]
    blocks += [text(sentence) for row in _worth(report) if (sentence := role_sentence(row))]
    if unknown := next((row for row in report.roles if row.role == "unknown" and row.exposed_ms), None):
        blocks.append(
            soft(
                f"What {ms_text(unknown.exposed_ms or 0.0)} ms of it are for is unknown: neither the names of the "
                "groups nor what they do tell it. Names of device meshes or group_desc= in new_group would."
            )
        )
    return Section("roles", "By kind of parallelism", (*blocks, TableBlock(roles_table(report))), "Parallelism")


def roles_table(report: Report) -> Table:
    """A row a role."""
    columns = [
        Column("role", "Role", number=False, make=lambda row: Cell(ROLES[row.role])),
        Column("told_by", "Told", number=False, make=_told_cell),
        Column("groups", "Groups", number=False, make=_groups_cell),
        Column("ranks", "Ranks", decimals=0),
        Column("exposed_ms", "Exposed ms", "communication that nothing hides, median over its ranks"),
        Column("wait_ms", "Waiting ms"),
        Column("transfer_ms", "Transfer ms"),
        Column("unmatched_ms", "Unmatched ms"),
        Column("worst_exposed_ms", "Most ms"),
        Column("worst_rank", "On rank", decimals=0),
        Column("reach", "Reach", number=False, make=lambda row: Cell(_reach(row))),
        Column("busbw_gbs", "Bus GB/s", decimals=1),
        Column("waits_for_rank", "Last comes rank", decimals=0),
        Column("waits_for_pct", "Of its waiting %", decimals=0),
        Column("saved_ms", "Saved without transfer ms"),
    ]
    return build_table("Communication by kind of parallelism", columns, report.roles, file="roles.csv")


def role_lines(report: Report) -> list[Block]:
    """The terminal's table, where there are several kinds of parallelism."""
    rows = _worth(report)
    if not _several(report) or not rows:
        return []
    cells = [
        (
            ROLES[row.role],
            fixed_text(row.exposed_ms, 2),
            fixed_text(row.wait_ms, 2),
            fixed_text(row.transfer_ms, 2),
            _reach(row),
            "" if row.waits_for_rank is None else f"rank {row.waits_for_rank} ({row.waits_for_pct:.0f} %)",
        )
        for row in rows
    ]
    columns = (
        Column("role", "by kind of parallelism", number=False),
        Column("exposed", "exposed ms"),
        Column("wait", "waiting"),
        Column("transfer", "transfer"),
        Column("reach", "groups", number=False),
        Column("last", "comes last", number=False),
    )
    table = Table("", columns, tuple(tuple(Cell(said) for said in row) for row in cells))
    return [TableBlock(table)]


def role_sentence(row: RoleRow) -> str:
    """'Tensor parallel: 9.10 ms exposed, all inside host2.'; '' without any."""
    if not row.exposed_ms or row.role == "unknown":
        return ""
    label = ROLES[row.role]
    where = f", all inside {row.host}" if row.host and row.reach == "inside" else ""
    where = f", nearly all on ranks of {row.host}" if row.host and not where else where
    fused = " Asynchronous: products communicate themselves, which counts as compute." if row.fused else ""
    return f"{label[0].upper()}{label[1:]}: {ms_text(row.exposed_ms)} ms exposed{where}.{fused}"


def role_text(report: Report, finding: Finding) -> str:
    """', first of all in tensor parallel communication'; '' where that is not told or goes without saying."""
    if finding.role is UNSET or not _several(report):
        return ""
    return f", first of all in {ROLES[finding.role]} communication"


def exposed_role(report: Report) -> str:
    """': tensor parallel 9.10 ms, all inside host2, data parallel 2.00 ms', '' where there is one role only."""
    rows = sorted(
        (row for row in report.roles if (row.transfer_ms or 0.0) >= 0.01), key=lambda row: -(row.transfer_ms or 0.0)
    )
    if not _several(report) or not rows:
        return ""
    parts = [
        f"{ROLES[row.role]} {ms_text(row.transfer_ms or 0.0)} ms"
        + (f" (all inside {row.host})" if row.host and row.reach == "inside" else "")
        for row in rows[:3]
    ]
    return f": {', '.join(parts)}"


def _several(report: Report) -> bool:
    return sum(row.role != "unknown" for row in report.roles) > 1


def _worth(report: Report) -> list[RoleRow]:
    step = report.summary.step_time_ms.typical or 0.0
    return [row for row in report.roles if 100.0 * (row.exposed_ms or 0.0) >= _WORTH_PCT * step > 0]


def _reach(row: RoleRow) -> str:
    if row.reach is None:
        return ""
    if row.reach == "between":
        return "between hosts"
    return f"inside {row.host}" if row.host else "inside hosts"


def _told_cell(row: RoleRow) -> Cell:
    return Cell(", ".join(ROLE_TOLD[told] for told in row.told_by))


def _groups_cell(row: RoleRow) -> Cell:
    sizes = " and ".join(map(str, row.group_sizes))
    count = f"{row.groups} of {sizes} ranks" if row.groups else "from rank to rank"
    return name(f"{', '.join(row.names)}: {count}", 60) if row.names else Cell(count)
