"""What stayed as it was, in words: it narrows down where to look as much as what changed."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.compare.capture import ComparedCapture, inventories
from traceops.compare.metrics import BY_NAME
from traceops.compare.model import Change, MetricChange
from traceops.core.units import count_text, size_text


def unchanged(
    metrics: Sequence[MetricChange],
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
) -> tuple[str, ...]:
    """Sentences without a full stop; nothing is said of what is not known on both sides."""
    rows = {row.metric: row for row in metrics}
    same = {name for name in rows if _is_the_same(name, base, head)}
    said = []
    for metric, what in (("kernels", "kernel"), ("collectives", "collective"), ("blocking_calls", "blocking call")):
        row = rows.get(metric)
        if row is not None and metric in same and row.base:
            said.append(f"{count_text(row.base)} {what}{'' if round(row.base) == 1 else 's'} a step")
    row = rows.get("collective_bytes")
    if row is not None and row.metric in same and row.base:
        said.append(f"{size_text(row.base)} communicated a step")
    row = rows.get("peak_memory")
    if row is not None and row.metric in same and row.base:
        said.append(f"peak memory {size_text(row.base)}")
    same_kernels = _names(base) & _names(head)
    if same_kernels and not any(c.kind == "kernel" and c.status != "changed" for c in changes):
        said.append(f"the same {len(same_kernels)} kernels")
    if not any(c.kind == "environment" for c in changes) and all(c.run.environment for c in (*base, *head)):
        said.append("the same environment variables")
    return tuple(said)


def _is_the_same(name: str, base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> bool:
    """Whether an exact metric has one value, on both sides, in all captures and steps."""
    metric = BY_NAME.get(name)
    if metric is None or not metric.exact:
        return False
    sides = [{float(value) for capture in side for value in metric.series(capture)} for side in (base, head)]
    return len(sides[0]) == 1 and sides[0] == sides[1]


def _names(side: Sequence[ComparedCapture]) -> set[str]:
    return {row.name for inventory in inventories(side) for row in inventory.kernels}
