"""What communication has to do with it: other collectives, or the same ones slower."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceops.analyses.ledger import COMM_BUCKETS
from traceops.compare.capture import Capture
from traceops.compare.explanation_text import ms_text, number, size_text
from traceops.compare.metrics import BY_NAME
from traceops.compare.model import Change, Explanation
from traceops.model import Evidence

if TYPE_CHECKING:
    from traceops.compare.explain import Ledger

_COUNT_PCT = 10.0  # more or fewer collectives than this are another pattern
_BYTES_PCT = 5.0
_SLOWER_PCT = 10.0  # bus bandwidth
_TRANSPORT = ("NCCL_", "RCCL_", "GLOO_", "FI_", "UCX_")


def collectives_explanation(
    ledger: Ledger, changes: Sequence[Change], base: Sequence[Capture], head: Sequence[Capture]
) -> Explanation | None:
    """Other collectives ('collectives'), or the same ones at another bandwidth ('bandwidth'), or neither."""
    old, new = _totals(base), _totals(head)
    rows = tuple(c for c in changes if c.kind == "collective")
    before, now = sum(count for count, _ in old.values()), sum(count for count, _ in new.values())
    moved, moves = _bytes(old), _bytes(new)
    bytes_changed = moved is not None and moves is not None and _pct(moved, moves) >= _BYTES_PCT
    if _pct(before, now) >= _COUNT_PCT or bytes_changed:
        return _other_pattern(ledger, rows, old, new, head)
    return _other_bandwidth(ledger, rows, changes, base, head)


def _other_pattern(
    ledger: Ledger,
    rows: tuple[Change, ...],
    old: dict[str, tuple[float, float | None]],
    new: dict[str, tuple[float, float | None]],
    head: Sequence[Capture],
) -> Explanation:
    """12 all-reduces a step became 1, with the same bytes."""
    parts = []
    for op in sorted(
        old.keys() | new.keys(), key=lambda op: -abs(new.get(op, (0, 0))[0] - old.get(op, (0, 0))[0])
    ):
        (was, was_bytes), (now, now_bytes) = old.get(op, (0.0, 0.0)), new.get(op, (0.0, 0.0))
        if _pct(was, now) < _COUNT_PCT and _pct(was_bytes or 0, now_bytes or 0) < _BYTES_PCT:
            continue
        parts.append(_became(op, was, was_bytes, now, now_bytes))
    exposed = ledger.sum(*COMM_BUCKETS)
    text = "; ".join(parts)
    rules = {f.get("rule") for c in head for f in c.report["findings"]}
    if "TO-O003" in rules:
        text += "; communication starts only after backward"
    elif "TO-O002" in rules:
        text += "; many small ones: latency sets their time"
    verb = "exposes" if exposed >= 0 else "hides"
    text += f". That {verb} {abs(exposed):.2f} ms {'more' if exposed >= 0 else 'of'} communication a step"
    transfer = ledger.sum("comm_transfer")
    if abs(transfer - exposed) >= ledger.worth_ms:
        text += f" (transfer {ms_text(transfer)}, waiting {ms_text(ledger.sum('comm_wait'))})"
    none = (0.0, None)
    evidence = tuple(
        Evidence(f"{op}_per_step", round(new.get(op, none)[0], 3), peers=round(old.get(op, none)[0], 3))
        for op in sorted(old.keys() | new.keys())
    )
    return Explanation("collectives", text, exposed, COMM_BUCKETS, evidence, rows)


def _became(op: str, was: float, was_bytes: float | None, now: float, now_bytes: float | None) -> str:
    name = (
        op.rpartition(":")[2]
        .replace("_", "-")
        .replace("allreduce", "all-reduce")
        .replace("allgather", "all-gather")
    )
    same = was_bytes is not None and now_bytes is not None and _pct(was_bytes, now_bytes) < _BYTES_PCT
    if was and now:
        text = f"{number(was)} {name}{'s' if round(was) != 1 else ''} a step became {number(now)}"
        if same and was_bytes:
            return f"{text} (the same {size_text(was_bytes)})"
        if was_bytes is not None and now_bytes is not None:
            return f"{text} ({size_text(was_bytes)} became {size_text(now_bytes)})"
        return text
    count, nbytes = (now, now_bytes) if now else (was, was_bytes)
    what = f"{number(count)} {name}{'s' if round(count) != 1 else ''} a step"
    return f"{what}{f' ({size_text(nbytes)})' if nbytes else ''} {'came in' if now else 'are gone'}"


def _other_bandwidth(
    ledger: Ledger,
    rows: tuple[Change, ...],
    changes: Sequence[Change],
    base: Sequence[Capture],
    head: Sequence[Capture],
) -> Explanation | None:
    """The same collectives at another bandwidth."""
    ms = ledger.sum("comm_transfer")
    if abs(ms) < ledger.worth_ms:
        return None
    busbw = BY_NAME["busbw"]
    values = [[float(s[0]) for c in side if len(s := busbw.series(c))] for side in (base, head)]
    if not all(values):
        return None
    was, now = (sum(side) / len(side) for side in values)
    slower = now < was
    if _pct(was, now) < _SLOWER_PCT or slower != (ms > 0):
        return None
    text = (
        f"the same collectives move at {now:.3g} GB/s of bus bandwidth, {was:.3g} before: "
        f"{ms_text(ms)} of exposed transfer a step"
    )
    variables = [c for c in changes if c.kind == "environment" and c.name.startswith(_TRANSPORT)]
    if variables:
        named = ", ".join(f"{c.name}={c.head_value or '(not set)'}" for c in variables[:3])
        text += f"; head has {named}"
    evidence = (Evidence("busbw", round(now, 3), "GB/s", peers=round(was, 3)),)
    return Explanation("bandwidth", text, ms, ("comm_transfer",), evidence, (*variables, *rows))


def _totals(side: Sequence[Capture]) -> dict[str, tuple[float, float | None]]:
    """Operation -> how many a step and their bytes (None where a size is not known), mean over captures."""
    counts: dict[str, float] = defaultdict(float)
    nbytes: dict[str, float | None] = {}
    for capture in side:
        rows: list[dict[str, Any]] = (capture.report.get("inventory") or {}).get("collectives") or []
        for row in rows:
            op, count, size = str(row.get("op")), row.get("count_per_step") or 0.0, row.get("bytes")
            counts[op] += count
            known = nbytes.get(op, 0.0)
            nbytes[op] = None if size is None or known is None else known + size * count
    n = max(len(side), 1)
    return {op: (count / n, None if (b := nbytes[op]) is None else b / n) for op, count in counts.items()}


def _bytes(totals: dict[str, tuple[float, float | None]]) -> float | None:
    sizes = [size for _, size in totals.values()]
    return None if None in sizes else float(sum(size or 0.0 for size in sizes))


def _pct(old: float, new: float) -> float:
    """How far apart two numbers are, percent of the larger of them."""
    most = max(abs(old), abs(new))
    return 100.0 * abs(new - old) / most if most else 0.0
