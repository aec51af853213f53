"""What communication has to do with it: other collectives, or the same ones slower."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from traceops.compare.capture import ComparedCapture, inventories
from traceops.compare.ledger import LedgerChange
from traceops.compare.metrics import BY_NAME
from traceops.compare.model import Change, Explanation
from traceops.core.findings import Evidence
from traceops.core.units import count_text, ms_change_text, size_text
from traceops.measure.ledger import COMM_BUCKETS
from traceops.rules.overlap import LATE_START
from traceops.rules.overlap_small import SMALL_COLLECTIVES

_COUNT_PCT = 10.0  # more or fewer collectives than this are another pattern
_BYTES_PCT = 5.0
_SLOWER_PCT = 10.0  # bus bandwidth
_MUCH_SLOWER_PCT = 50.0
_Totals = dict[str, tuple[float, float | None]]
_NAMES = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "allgather_base": "all-gather",
    "all_gather_base": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "allgather_into_tensor": "all-gather",
    "reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
}
_COALESCED = "_coalesced"
_TRANSPORT = ("NCCL_", "RCCL_", "GLOO_", "FI_", "UCX_")


def collectives_explanation(
    ledger: LedgerChange,
    left: dict[str, float],
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
) -> Explanation | None:
    """Other collectives than before: 12 all-reduces a step became 1, with the same bytes. None if they are the same.

    `left` is what of the ledger is still to be explained: what a straggler or a slower link takes is not theirs.
    """
    old, new = _totals(base), _totals(head)
    if old is None or new is None or _same_pattern(old, new):
        return None
    none = (0.0, 0.0)
    before, after = _by_name(old), _by_name(new)
    parts = []
    for name in sorted(
        before.keys() | after.keys(),
        key=lambda name: (-abs(after.get(name, none)[0] - before.get(name, none)[0]), name),
    ):
        (was, was_bytes), (now, now_bytes) = before.get(name, none), after.get(name, none)
        if _pct(was, now) >= _COUNT_PCT or _pct(was_bytes or 0, now_bytes or 0) >= _BYTES_PCT:
            parts.append(_became(name, was, was_bytes, now, now_bytes))
    text = "; ".join(parts)
    rules = {found.rule for capture in head for found in capture.report.findings}
    if LATE_START.id in rules:
        text += "; communication starts only after backward"
    elif SMALL_COLLECTIVES.id in rules:
        text += "; many small ones: latency sets their time"
    buckets = tuple(bucket for bucket in COMM_BUCKETS if bucket in left)
    exposed = sum(left[bucket] for bucket in buckets)
    if abs(exposed) >= 0.005:
        more = f"exposes {exposed:.2f} ms more" if exposed > 0 else f"hides {-exposed:.2f} ms of"
        text += f". That {more} communication a step"
    transfer = left.get("comm_transfer", 0.0)
    if abs(transfer - exposed) >= ledger.worth_ms:
        text += f" (transfer {ms_change_text(transfer)}, waiting {ms_change_text(left.get('comm_wait', 0.0))})"
    evidence = tuple(
        Evidence(f"{op}_per_step", round(new.get(op, none)[0], 3), peers=round(old.get(op, none)[0], 3))
        for op in sorted(old.keys() | new.keys())
    )
    rows = tuple(c for c in changes if c.kind == "collective")
    return Explanation("collectives", text, exposed, buckets, evidence, rows)


def _same_pattern(old: _Totals, new: _Totals) -> bool:
    before, now = sum(count for count, _ in old.values()), sum(count for count, _ in new.values())
    moved, moves = _bytes(old), _bytes(new)
    bytes_changed = moved is not None and moves is not None and _pct(moved, moves) >= _BYTES_PCT
    return _pct(before, now) < _COUNT_PCT and not bytes_changed


def _name(op: str) -> str:
    """'all-gather' of '_allgather_base', 'coalesced all-reduce' of 'allreduce_coalesced'."""
    plain = op.rpartition(":")[2].strip("_")
    one = plain.removesuffix(_COALESCED)
    name = _NAMES.get(one) or (one.replace("_", "-") if one.islower() else one)
    return name if one == plain else f"coalesced {name}"


def _by_name(totals: _Totals) -> _Totals:
    """The same, what readers know by one name together: ways to call it differ between versions of a library."""
    named: _Totals = {}
    for op, (count, nbytes) in totals.items():
        so_far, held = named.get(_name(op), (0.0, 0.0))
        named[_name(op)] = so_far + count, None if nbytes is None or held is None else held + nbytes
    return named


def _became(name: str, was: float, was_bytes: float | None, now: float, now_bytes: float | None) -> str:
    same = was_bytes is not None and now_bytes is not None and _pct(was_bytes, now_bytes) < _BYTES_PCT
    if was and now:
        text = f"{count_text(was)} {name}{'' if count_text(was) == '1' else 's'} a step became {count_text(now)}"
        if same and was_bytes:
            return f"{text} (the same {size_text(was_bytes)})"
        if was_bytes is not None and now_bytes is not None:
            return f"{text} ({size_text(was_bytes)} became {size_text(now_bytes)})"
        return text
    count, nbytes = (now, now_bytes) if now else (was, was_bytes)
    what = f"{count_text(count)} {name}{'' if count_text(count) == '1' else 's'} a step"
    went = "came in" if now else "is gone" if count_text(count) == "1" else "are gone"
    return f"{what}{f' ({size_text(nbytes)})' if nbytes else ''} {went}"


def bandwidth_explanation(
    ledger: LedgerChange,
    left: dict[str, float],
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
) -> Explanation | None:
    """The same collectives at another bandwidth; of other collectives only where it is half or double."""
    ms = left.get("comm_transfer", 0.0)
    if abs(ms) < ledger.worth_ms:
        return None
    busbw = BY_NAME["busbw"]
    values = [[float(s[0]) for c in side if len(s := busbw.series(c))] for side in (base, head)]
    if not all(values):
        return None
    was, now = (sum(side) / len(side) for side in values)
    old, new = _totals(base), _totals(head)
    same = old is None or new is None or _same_pattern(old, new)
    if _pct(was, now) < (_SLOWER_PCT if same else _MUCH_SLOWER_PCT) or (now < was) != (ms > 0):
        return None
    what = "the same collectives move" if same else "collectives move"
    text = f"{what} at {now:.3g} GB/s of bus bandwidth, {was:.3g} before: "
    text += f"{ms_change_text(ms)} of exposed transfer a step"
    variables = [c for c in changes if c.kind == "environment" and c.name.startswith(_TRANSPORT)]
    named = [f"{c.name}={c.head_value}" for c in variables if c.head_value is not None]
    gone = [f"{c.name}={c.base_value}" for c in variables if c.head_value is None]
    text += f"; head has {', '.join(named[:3])}" if named else ""
    text += f"; only base has {', '.join(gone[:3])}" if gone else ""
    rows = [c for c in changes if c.kind == "collective"]
    evidence = (Evidence("busbw", round(now, 3), "GB/s", peers=round(was, 3)),)
    return Explanation("bandwidth", text, ms, ("comm_transfer",), evidence, (*variables, *rows))


def _totals(side: Sequence[ComparedCapture]) -> _Totals | None:
    """Operation -> how many a step and their bytes (None where a size is not known), mean over captures.

    None where no capture says what runs in a step.
    """
    known = inventories(side)
    if not known:
        return None
    counts: dict[str, float] = defaultdict(float)
    nbytes: dict[str, float | None] = {}
    for inventory in known:
        for row in inventory.collectives:
            op, count, size = row.op, row.count_per_step, row.bytes
            counts[op] += count
            before = nbytes.get(op, 0.0)
            nbytes[op] = None if size is None or before is None else before + size * count
    n = len(known)
    return {op: (count / n, None if (b := nbytes[op]) is None else b / n) for op, count in counts.items()}


def _bytes(totals: _Totals) -> float | None:
    sizes = [size for _, size in totals.values()]
    return None if None in sizes else float(sum(size or 0.0 for size in sizes))


def _pct(old: float, new: float) -> float:
    """How far apart two numbers are, percent of the larger of them."""
    most = max(abs(old), abs(new))
    return 100.0 * abs(new - old) / most if most else 0.0
