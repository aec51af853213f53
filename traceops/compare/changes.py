"""What changed of a step: its ledger, its kernels, operators, collectives and blocking calls; and variables."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traceops.compare.capture import Captures, inventories
from traceops.compare.model import Change, ChangeKind, Explanation, MetricChange
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.text import short_name
from traceops.core.units import count_text, gib_text, ms_change_text, size_text
from traceops.core.words import BUCKETS, NO_STACK
from traceops.report.inventory import CollectiveUse, ComputeRows, Inventory
from traceops.report.rows import MemoryRank, MemoryRows

say = partial(reason, "compare")
"""A text of words/compare.ini, with its facts."""

_T = TypeVar("_T")

_WORTH_PCT = 1.0  # of the step: less explains nothing


class LedgerChange(Struct, frozen=True):
    """Change of each bucket in ms per step, what base and head had, and what a step of the base takes. in_noise:
    buckets whose change was tested and could be noise. device: what computes, GPU or CPU."""

    change: dict[str, float]
    base: dict[str, float]
    head: dict[str, float]
    step_ms: float
    in_noise: frozenset[str] = frozenset()
    device: str = "GPU"

    @property
    def worth_ms(self) -> float:
        """What is worth a sentence."""
        return _WORTH_PCT / 100.0 * self.step_ms


def ledger_of(metrics: Sequence[MetricChange], buckets: Sequence[str], device: str = "GPU") -> LedgerChange | None:
    """The ledger's change, None where a side has no profiled steps."""
    rows = {row.metric: row for row in metrics}
    known = [b for b in buckets if rows[b].base is not None and rows[b].head is not None]
    if (step := rows["profiled_step_time"].base) is None or not known:
        return None
    change, before, after = (
        {bucket: float(getattr(rows[bucket], name) or 0.0) for bucket in known} for name in ("change", "base", "head")
    )
    # Whether the interval, of this metric by itself, reaches 0: a bucket that moved need not prove it to others.
    ends = {bucket: (rows[bucket].low_pct, rows[bucket].high_pct) for bucket in known}
    in_noise = {b for b, (low, high) in ends.items() if low is not None and high is not None and low <= 0.0 <= high}
    return LedgerChange(change, before, after, step, frozenset(in_noise), device)


_MOST_NAME = 60


def bucket_text(bucket: str, ledger: LedgerChange) -> str:
    """What a bucket's change means, with both values."""
    ms = ledger.change[bucket]
    words = BUCKETS[bucket]
    return (
        f"{(words.longer if ms > 0 else words.shorter).format(device=ledger.device)}: {ms_change_text(ms)} per step "
        f"({ledger.base[bucket]:.2f} → {ledger.head[bucket]:.2f} ms)"
    )


def count_change_text(what: str, old: float, new: float) -> str:
    """815 kernels per step became 1,020."""
    return f"{count_text(old)} {what}{'' if round(old) == 1 else 's'} per step became {count_text(new)}"


def kernel_text(change: Change) -> str:
    """One kernel's change: new, gone, renamed, more often, or longer."""
    name = short_name(change.name, _MOST_NAME)
    if change.status == "new":
        return f"new {name}, {count_text(change.head_count or 0)} per step, {ms_change_text(change.more_ms)}"
    if change.status == "vanished":
        return f"{name} is gone, {ms_change_text(change.more_ms)}"
    if change.status == "renamed":
        return f"{name} became {short_name(change.head_name, _MOST_NAME)}, {ms_change_text(change.more_ms)}"
    if abs((change.head_count or 0) - (change.base_count or 0)) >= 0.5:
        counts = f"{count_text(change.base_count or 0)} → {count_text(change.head_count or 0)} times per step"
        return f"{name} {counts}, {ms_change_text(change.more_ms)}"
    return f"{name} takes {change.base_ms or 0:.2f} → {change.head_ms or 0:.2f} ms"


def calls_more_text(change: Change) -> str:
    """How often something is called: aten::norm 0 → 14 times per step."""
    name = short_name(change.head_name, _MOST_NAME)
    return f"{name} {count_text(change.base_count or 0)} → {count_text(change.head_count or 0)} times per step"


def operator_text(change: Change) -> str:
    """One operator's change in host time."""
    ms = (change.base_ms or 0, change.head_ms or 0)
    return say("operator", name=short_name(change.name, _MOST_NAME), base=f"{ms[0]:.2f}", head=f"{ms[1]:.2f}")


def calls_text(calls: Sequence[Change]) -> str:
    """Which calls wait for the device how often."""
    parts = []
    for change in sorted(calls, key=lambda c: -abs((c.head_count or 0) - (c.base_count or 0))):
        before, now = count_text(change.base_count or 0), count_text(change.head_count or 0)
        times = "once" if now == "1" else f"{now} times"
        parts.append(say("calls", name=short_name(change.name, _MOST_NAME), times=times, before=before))
    return joined(parts[:3])


def joined(parts: Sequence[str]) -> str:
    """a; b and c."""
    return parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])} and {parts[-1]}"


_COUNT_CHANGED = 0.5  # a step, on the average rank
_TIME_CHANGED_PCT = 5.0  # of its own time, and
_TIME_WORTH_PCT = 0.2  # of the step: less is not worth a line
_SAME_PLACE = 0.15  # of the step: a kernel launched further away is another one
_SAME_COUNT = 0.1
COPIES = ("Memcpy", "Memset")
_SEVERAL = "several values"
_OUTPUT_VARIABLES = ("NCCL_DEBUG", "TORCH_FR_DUMP", "TORCH_NCCL_DEBUG_INFO", "NCCL_TOPO_DUMP", "NCCL_GRAPH_DUMP")
# Variables that differ between any two jobs and change nothing.
_JOB_VARIABLES = frozenset(
    {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "CUDA_VISIBLE_DEVICES", "TORCH_SHOW_CPP_STACKTRACES"}
)


class Use(Struct, frozen=True):
    """Something that runs `count` times per step and takes `ms` of it, on the average rank; one thing by its `key`."""

    key: Hashable
    name: str
    count: float
    ms: float
    detail: str = ""
    context: str = ""
    place: float | None = None


def find_changes(base: Captures, head: Captures, step_ms: float) -> tuple[Change, ...]:
    """All changes, those that cost most time first; `step_ms` says what is worth a line. Captures whose report does not
    say what runs in a step count for nothing; without any on a side, only variables are compared."""
    environment = environment_changes(base, head)
    old, now = inventories(base), inventories(head)
    if not old or not now:
        return tuple(environment)
    shapes = all(any(row.shapes for one in side for row in one.operators) for side in (old, now))
    changes = [
        *_compare("kernel", old, now, _kernels, step_ms),
        *_compare("collective", old, now, _collectives, step_ms),
        *_compare("blocking_call", old, now, _calls, step_ms),
        *_compare("operator", old, now, partial(_operators, shapes=shapes), step_ms),
        *_gpu_changes(base, head, step_ms),
    ]
    return (*environment, *sorted(changes, key=lambda change: -abs(change.more_ms)))


def moved_kernels(changes: Sequence[Change], ms: float) -> list[Change]:
    """Kernels that took part in a change of `ms`, each at least a tenth of it, most first."""
    movers = [
        c
        for c in changes
        if c.kind == "kernel" and c.more_ms * ms > 0 and not c.name.startswith(COPIES)
        and abs(c.more_ms) >= 0.1 * abs(ms)
    ]  # fmt: skip
    return sorted(movers, key=lambda c: -abs(c.more_ms))


def _compare(
    kind: ChangeKind, base: Sequence[_T], head: Sequence[_T], read: Callable[[_T], Iterable[Use]], step_ms: float
) -> list[Change]:
    """What changed of one kind. read: what a capture of a side uses of it."""
    before, after = _uses(base, read), _uses(head, read)
    # In the reports' order, not a set's: the same input pairs up the same way every time.
    both = [(use, after[key]) for key, use in before.items() if key in after]
    gone = [use for key, use in before.items() if key not in after]
    new = [use for key, use in after.items() if key not in before]
    made = []
    if kind == "kernel":
        same_name, gone, new = _by_name(gone, new)
        both += same_name
        renamed, gone, new = _renamed(gone, new)
        made = [_change(kind, "renamed", old, now) for old, now in renamed]
    made += [_change(kind, "changed", old, now) for old, now in both if _differs(old, now, step_ms)]
    made += [_change(kind, "vanished", old, None) for old in gone if _is_worth(old, step_ms)]
    made += [_change(kind, "new", None, now) for now in new if _is_worth(now, step_ms)]
    return sorted(made, key=lambda change: (change.name, change.head_name, change.detail))


def _by_name(gone: list[Use], new: list[Use]) -> tuple[list[tuple[Use, Use]], list[Use], list[Use]]:
    """Pairs of the same name whose operators differ: which operator launches a kernel is not always recorded."""
    shared = {use.name for use in gone} & {use.name for use in new}

    def together(uses: list[Use], name: str) -> Use:
        same = [use for use in uses if use.name == name]
        return replace(same[0], count=sum(u.count for u in same), ms=sum(u.ms for u in same))

    pairs = [(together(gone, name), together(new, name)) for name in sorted(shared)]
    return pairs, [u for u in gone if u.name not in shared], [u for u in new if u.name not in shared]


def _renamed(gone: list[Use], new: list[Use]) -> tuple[list[tuple[Use, Use]], list[Use], list[Use]]:
    """Pairs of what vanished and what is new that do the same: launched by the same operator as often, there."""
    pairs = []
    gone, new = sorted(gone, key=lambda use: -use.ms), list(new)
    for old in list(gone):
        alike = [
            now
            for now in new
            if old.context
            and now.context == old.context
            and abs(now.count - old.count) <= _SAME_COUNT * max(old.count, now.count)
            and (old.place is None or now.place is None or abs(now.place - old.place) <= _SAME_PLACE)
        ]
        if alike:
            best = min(alike, key=lambda now: (abs((now.place or 0) - (old.place or 0)), abs(now.ms - old.ms)))
            pairs.append((old, best))
            gone.remove(old)
            new.remove(best)
    return pairs, gone, new


def _change(kind: ChangeKind, status: Any, old: Use | None, now: Use | None) -> Change:
    some = now or old
    assert some is not None
    return Change(
        kind=kind,
        status=status,
        name=(old or some).name,
        head_name=some.name,
        base_count=round(old.count, 4) if old else 0.0,
        head_count=round(now.count, 4) if now else 0.0,
        base_ms=round(old.ms, 6) if old else 0.0,
        head_ms=round(now.ms, 6) if now else 0.0,
        detail=some.detail or some.context,
    )


def _differs(old: Use, now: Use, step_ms: float) -> bool:
    if abs(now.count - old.count) >= _COUNT_CHANGED:
        return True
    delta = abs(now.ms - old.ms)
    return delta >= _TIME_WORTH_PCT / 100 * step_ms and delta >= _TIME_CHANGED_PCT / 100 * max(old.ms, now.ms)


def _is_worth(use: Use, step_ms: float) -> bool:
    return use.count >= _COUNT_CHANGED or use.ms >= _TIME_WORTH_PCT / 100 * step_ms


def _uses(side: Sequence[_T], read: Callable[[_T], Iterable[Use]]) -> dict[Hashable, Use]:
    """What captures use, mean over them; rows with one key, in one capture or several, together."""
    sums: dict[Hashable, list[Use]] = defaultdict(list)
    for one in side:
        for use in read(one):
            sums[use.key].append(use)
    return {
        key: replace(uses[0], count=sum(u.count for u in uses) / len(side), ms=sum(u.ms for u in uses) / len(side))
        for key, uses in sums.items()
    }


def _kernels(inventory: Inventory) -> Iterator[Use]:
    for row in inventory.kernels:
        operator, key = row.operator or "", (row.name, row.operator or "", row.kind)
        yield Use(key, row.name, row.count_per_step, row.ms_per_step, operator, operator, row.place)


def _collectives(inventory: Inventory) -> Iterator[Use]:
    for row in inventory.collectives:
        key = (row.op, row.group_size, row.dtype, row.elements)
        yield Use(key, row.op, row.count_per_step, row.kernel_ms_per_step, _collective_text(row))


def _calls(inventory: Inventory) -> Iterator[Use]:
    for row in inventory.blocking_calls:
        name, detail = (row.operator, row.call) if row.operator else (row.call, "")
        yield Use((row.call, row.operator or ""), name, row.count_per_step, row.ms_per_step, detail)


def _operators(inventory: Inventory, *, shapes: bool) -> Iterator[Use]:
    """Operators by name and input shapes, or by name alone where one side did not record shapes."""
    for row in inventory.operators:
        detail = row.shapes or "" if shapes else ""
        yield Use((row.name, detail), row.name, row.count_per_step, row.host_ms_per_step, detail)


def _collective_text(row: CollectiveUse) -> str:
    size = f"{row.elements} elements" if row.elements else ""
    words = (
        f"{row.group_size} ranks" if row.group_size else "",
        row.dtype or "",
        size if row.bytes is None else size_text(row.bytes),
    )
    return ", ".join(word for word in words if word)


def _gpu_changes(base: Captures, head: Captures, step_ms: float) -> list[Change]:
    """GPU time by module (or phase) and by operator and shapes; none where a side does not know its operators."""
    sides = [[c.report.compute for c in side if c.report.compute] for side in (base, head)]
    if not all(sides):
        return []
    known = all(any(row.module for one in side for row in one.operators) for side in sides)

    def modules(one: ComputeRows) -> Iterator[Use]:
        for row in one.operators:
            name = f"{row.module} ({row.phase})" if known and row.module else row.phase
            if name:
                yield Use(name, name, row.calls, row.ms)

    def operators(one: ComputeRows) -> Iterator[Use]:
        for row in one.operators:
            if row.name:  # what has no row of its own is left out
                yield Use((row.name, row.shape), row.name, row.calls, row.ms, row.shape)

    return [
        *_compare("module", sides[0], sides[1], modules, step_ms),
        *_compare("gpu_operator", sides[0], sides[1], operators, step_ms),
    ]


def environment_changes(base: Captures, head: Captures) -> list[Change]:
    """Variables that the sides do not agree on; one that differs within a side is said to be set to several values."""
    before, now = _environment(base), _environment(head)
    if before is None or now is None:
        return []
    changes = []
    for name in sorted((before.keys() | now.keys()) - _JOB_VARIABLES):
        if name.startswith(_OUTPUT_VARIABLES):
            continue
        old, new = before.get(name), now.get(name)
        if old != new or old == _SEVERAL:
            status: Any = "new" if old is None else "vanished" if new is None else "changed"
            changes.append(Change("environment", status, name, name, base_value=old, head_value=new))
    return changes


def _environment(captures: Captures) -> dict[str, str] | None:
    """What the captures of a side have set; None where none says."""
    if not (known := [capture.run.environment for capture in captures if capture.run.environment]):
        return None
    names = {name for variables in known for name in variables}
    return {
        name: str(known[0][name]) if all(v.get(name) == known[0].get(name) for v in known) else _SEVERAL
        for name in names
    }


_PLACE = re.compile(r"(?P<file>[^:]+):(?P<line>\d{1,9}) (?P<function>.+)")
_FEW = 3
_SHARE = 0.1  # of the change: less is not its reason


def memory_explanation(base: Captures, head: Captures) -> Explanation | None:
    """What grew or shrank at the peak of the rank that held most; None where that is not known on both sides."""
    before, after = _most(base), _most(head)
    if before is None or after is None or not before.peak_bytes or not after.peak_bytes:
        return None
    change = after.peak_bytes - before.peak_bytes
    old, new = _kinds(before), _kinds(after)
    parts = _by_line(before, after) or [(name, new[name] - old[name]) for name in new if name in old]
    along = sorted((part for part in parts if part[1] * change > 0), key=lambda part: -abs(part[1]))
    named = [part for part in along if abs(part[1]) >= _SHARE * abs(change)][:_FEW]
    if not change or not named:
        return None
    more = "more" if change > 0 else "less"
    names = joined([f"{gib_text(abs(size))} {more} {what}" for what, size in named])
    evidence = tuple(Evidence(Fact.CHANGE, size, "B", rank=after.rank, subject=what) for what, size in named)
    text = say("peak", rank=str(after.rank), size=gib_text(abs(change)), more=more, names=names)
    return Explanation("peak_memory", text, 0.0, (), evidence)


def _most(side: Captures) -> MemoryRank | None:
    """The rank that held most in any capture of a side."""
    rows = [capture.report.memory for capture in side]
    ranks = [rank for one in rows if isinstance(one, MemoryRows) for rank in one.ranks]
    return max(ranks, key=lambda rank: rank.peak_bytes or 0, default=None)


def _by_line(before: MemoryRank, after: MemoryRank) -> list[tuple[str, int]]:
    if not before.lines or not after.lines:
        return []
    old = {row.line: row.held_bytes for row in before.lines}
    new = {row.line: row.held_bytes for row in after.lines}
    moved = _moved(old, new)
    old = {moved.get(line, line): size for line, size in old.items()}
    return [
        (say("no_stack") if line == NO_STACK else f"made in {line}", new.get(line, 0) - old.get(line, 0))
        for line in dict.fromkeys([*new, *old])
    ]


def _moved(old: Collection[str], new: Collection[str]) -> dict[str, str]:
    """Lines of `old` -> of `new`, of functions whose lines are as many and others: code above them came or went."""
    lines, own = _by_function(old), _by_function(new)
    return {
        before: after
        for function, of_old in lines.items()
        if len(of_old) == len(own.get(function, ())) and not {*of_old} & {*own[function]}
        for before, after in zip(of_old, own[function], strict=True)
    }


def _by_function(lines: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """(file, function) -> its places `FILE:LINE FUNCTION`, in order of lines."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in lines:
        if (match := _PLACE.fullmatch(line)) is not None:
            file, number, function = match.group("file", "line", "function")
            found.setdefault((file, function), []).append((int(number), line))
    return {function: [line for _, line in sorted(of)] for function, of in found.items()}


def _kinds(row: MemoryRank) -> dict[str, int]:
    """What the peak consists of; empty where only the peak is known."""
    if row.between_steps_bytes is None or row.peak_bytes is None:
        return {}
    stored = {
        "parameters": row.parameters_bytes or 0,
        "gradients": row.gradients_bytes or 0,
        "optimizer state": row.optimizer_state_bytes or 0,
    }
    between = row.between_steps_bytes
    return {**stored, say("stays"): between - sum(stored.values()), say("within"): row.peak_bytes - between}
