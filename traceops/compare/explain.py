"""Why the step changed: from the ledger's buckets down to what is called more often, longer, or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.compare.capture import Captures, findings_of_most, inventories
from traceops.compare.changes import (
    COPIES,
    LedgerChange,
    bucket_text,
    calls_more_text,
    calls_text,
    count_change_text,
    joined,
    kernel_text,
    moved_kernels,
    operator_text,
    say,
)
from traceops.compare.metrics import BY_NAME
from traceops.compare.model import Change, Explanation
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.units import count_text, ms_change_text, size_text
from traceops.core.words import CAUSES
from traceops.measure.ledger import COMM_BUCKETS
from traceops.rules import stragglers
from traceops.rules.overlap import LATE_START, SMALL_COLLECTIVES

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
_NONE = (0.0, 0.0)
_TRANSPORT = ("NCCL_", "RCCL_", "GLOO_", "FI_", "UCX_")


class _Case(Struct, frozen=True):
    """What an explanation looks at. left: what of the ledger is still to be explained, which `explain` takes from."""

    ledger: LedgerChange
    left: dict[str, float]
    changes: Sequence[Change]
    base: Captures
    head: Captures

    def of_kind(self, kind: str) -> list[Change]:
        """What changed of a kind."""
        return [change for change in self.changes if change.kind == kind]

    def is_worth(self, ms: float) -> bool:
        """Whether a change of the step's time is worth a sentence."""
        return abs(ms) >= self.ledger.worth_ms


def collectives_explanation(case: _Case) -> Explanation | None:
    """Other collectives than before: 12 all-reduces per step became 1, with the same bytes. None if they are the same.
    What of the ledger a straggler or a slower link takes is not theirs."""
    old, new = _totals(case.base), _totals(case.head)
    if old is None or new is None or _same_pattern(old, new):
        return None
    rules = {found.rule for capture in case.head for found in capture.report.findings}
    hints = {"late_start": LATE_START, "small_ones": SMALL_COLLECTIVES}
    text = "; ".join([*_other_pattern(old, new), *[say(key) for key, rule in hints.items() if rule.id in rules][:1]])
    buckets = tuple(bucket for bucket in COMM_BUCKETS if bucket in case.left)
    exposed = sum(case.left[bucket] for bucket in buckets)
    if abs(exposed) >= 0.005:
        text += f". {say('exposes' if exposed > 0 else 'hides', ms=f'{abs(exposed):.2f}')}"
    transfer = case.left.get("comm_transfer", 0.0)
    if case.is_worth(transfer - exposed):
        text += f" (transfer {ms_change_text(transfer)}, waiting {ms_change_text(case.left.get('comm_wait', 0.0))})"
    evidence = tuple(
        Evidence(
            Fact.CALLS_PER_STEP, round(new.get(op, _NONE)[0], 3), peers=round(old.get(op, _NONE)[0], 3), subject=op
        )
        for op in sorted(old.keys() | new.keys())
    )
    return Explanation("collectives", text, exposed, buckets, evidence, tuple(case.of_kind("collective")))


def _other_pattern(old: _Totals, new: _Totals) -> list[str]:
    """What became of each collective whose number or bytes changed, the largest change first."""
    before, after = _by_name(old), _by_name(new)

    def more(name: str) -> float:
        return abs(after.get(name, _NONE)[0] - before.get(name, _NONE)[0])

    parts = []
    for name in sorted(before.keys() | after.keys(), key=lambda name: (-more(name), name)):
        (was, was_bytes), (now, now_bytes) = before.get(name, _NONE), after.get(name, _NONE)
        if _pct(was, now) >= _COUNT_PCT or _pct(was_bytes or 0, now_bytes or 0) >= _BYTES_PCT:
            parts.append(_became(name, was, was_bytes, now, now_bytes))
    return parts


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
        text = f"{count_text(was)} {name}{'' if count_text(was) == '1' else 's'} per step became {count_text(now)}"
        if same and was_bytes:
            return f"{text} (the same {size_text(was_bytes)})"
        if was_bytes is not None and now_bytes is not None:
            return f"{text} ({size_text(was_bytes)} became {size_text(now_bytes)})"
        return text
    count, nbytes = (now, now_bytes) if now else (was, was_bytes)
    what = f"{count_text(count)} {name}{'' if count_text(count) == '1' else 's'} per step"
    went = "came in" if now else "is gone" if count_text(count) == "1" else "are gone"
    return f"{what}{f' ({size_text(nbytes)})' if nbytes else ''} {went}"


def bandwidth_explanation(case: _Case) -> Explanation | None:
    """The same collectives at another bandwidth; of other collectives only where it is half or double."""
    ms = case.left.get("comm_transfer", 0.0)
    was, now = _bandwidth_of(case.base), _bandwidth_of(case.head)
    if was is None or now is None or not case.is_worth(ms):
        return None
    old, new = _totals(case.base), _totals(case.head)
    same = old is None or new is None or _same_pattern(old, new)
    if _pct(was, now) < (_SLOWER_PCT if same else _MUCH_SLOWER_PCT) or (now < was) != (ms > 0):
        return None
    variables = [change for change in case.of_kind("environment") if change.name.startswith(_TRANSPORT)]
    text = say(
        "bus_bandwidth",
        what="the same collectives" if same else "collectives",
        now=now,
        was=was,
        more=ms_change_text(ms),
        head=", ".join([f"{c.name}={c.head_value}" for c in variables if c.head_value is not None][:3]),
        base=", ".join([f"{c.name}={c.base_value}" for c in variables if c.head_value is None][:3]),
    )
    evidence = (Evidence(Fact.BUSBW, round(now, 3), "GB/s", peers=round(was, 3)),)
    changes = (*variables, *case.of_kind("collective"))
    return Explanation("bandwidth", text, ms, ("comm_transfer",), evidence, changes)


def _bandwidth_of(side: Captures) -> float | None:
    """Bus bandwidth in GB/s, mean over the captures that know it; None where none does."""
    values = [float(series[0]) for capture in side if len(series := BY_NAME["busbw"].series(capture))]
    return sum(values) / len(values) if values else None


def _totals(side: Captures) -> _Totals | None:
    """Operation -> how many a step and their bytes (None where a size is not known), mean over captures. None where no
    capture says what runs in a step."""
    if not (known := inventories(side)):
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


# Ranks that make the others wait on one side only.

_FEW = 3  # kernels named, and numbers of evidence
_OWN_BUCKET = {"input": "idle_input", "host": "idle_host", "gpu_compute": "compute", "copy": "memory"}


def straggler_explanation(case: _Case) -> Explanation | None:
    """Ranks that make the others wait on one side only, or on both and longer on one; None without."""
    new, gone, both = _late_ranks(case)
    waiting = case.left.get("comm_wait", 0.0)
    found = new if new and (waiting > 0 or not gone) else gone
    if not found and case.is_worth(waiting):
        found = both  # the same ranks, more or less
    causes = {finding.cause for finding in found}
    buckets = ("comm_wait", *sorted(_OWN_BUCKET[cause] for cause in _OWN_BUCKET.keys() & causes))
    ms = sum(case.left.get(bucket, 0.0) for bucket in buckets)
    if not found or not case.is_worth(ms) or (found == new and ms < 0) or (found == gone and ms > 0):
        return None
    kernels = moved_kernels(case.changes, ms) if "gpu_compute" in causes else []
    key = "late_now" if found == new else "late_no_longer" if found == gone else "both"
    text = _late_text(key, found, gone if found == new else [], ms, kernels)
    evidence = tuple(Evidence(one.fact, one.value, one.unit, subject=one.subject) for one in found[0].evidence[:_FEW])
    return Explanation("straggler", text, ms, buckets, evidence, tuple(kernels))


def _late_ranks(case: _Case) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Stragglers of head alone, of base alone, and of both as head has them."""
    before, now = _stragglers(case.base), _stragglers(case.head)
    new = [finding for key, finding in now.items() if key not in before]
    gone = [finding for key, finding in before.items() if key not in now]
    return new, gone, [finding for key, finding in now.items() if key in before]


def _late_text(
    key: str, found: Sequence[Finding], gone: Sequence[Finding], ms: float, kernels: Sequence[Change]
) -> str:
    """key: `both` where both sides have these ranks. gone: those that no longer make the others wait."""
    makes = "make" if len(found) > 1 or len(found[0].ranks) > 1 else "makes"
    key = ("later" if ms > 0 else "less_late") if key == "both" else key
    text = say(key, who=joined([_who_and_why(finding) for finding in found]), makes=makes, more=ms_change_text(ms))
    text += f"; {joined([_who_and_why(one) for one in gone])} no longer" if gone else ""
    return text + (f". Over all ranks: {joined([kernel_text(c) for c in kernels[:_FEW]])}" if kernels else "")


def _who_and_why(finding: Finding) -> str:
    words = CAUSES.get(finding.cause or "unknown") or CAUSES["unknown"]
    why = words.changed_several if len(finding.ranks) > 1 else words.changed
    sometimes = finding.rule == stragglers.SOMETIMES_LATE.id
    return say("late_sometimes" if sometimes else "late", ranks=finding.ranks, why=why)


def _stragglers(side: Captures) -> dict[Hashable, Finding]:
    """Straggler findings, warnings and errors, that most captures of a side have, by rank and cause."""
    return findings_of_most(side, lambda found: (found.ranks, found.cause), stragglers.IDS)


_SHARE = 0.2  # of the change: less is not its reason
_ONE_CALL = 0.9  # a step: some windows begin or end with half a step
_KERNELS = "kernels"


def explain(
    ledger: LedgerChange,
    changes: Sequence[Change],
    base: Captures,
    head: Captures,
    wanted_ms: float | None = None,
    regressed: Sequence[str] = (),
) -> tuple[Explanation, ...]:
    """Reasons for the change, the most important first.

    wanted_ms: change of the step that is to be explained, None where it is too small to ask for a reason. Where it
    is known, what goes its way and is a fifth of it comes first. Within that, what can be counted comes before what
    was only timed: other collectives, new blocking calls, work that was not there. A bucket that one reason accounts
    for is not explained again by the next. Of the metrics that `regressed`, the number of kernels is explained by
    what is called more often. What noise alone could do is left out, unless nothing else is left.
    """
    counted: list[Explanation] = []
    timed: list[Explanation] = []
    left = dict(ledger.change)

    def keep(found: Explanation | None, *, sure: bool) -> None:
        if found is not None:
            for bucket in found.buckets:
                left.pop(bucket, None)
            (counted if sure else timed).append(found)

    case = _Case(ledger, left, changes, base, head)
    keep(straggler_explanation(case), sure=False)
    keep(bandwidth_explanation(case), sure=False)
    keep(collectives_explanation(case), sure=True)
    keep(_blocking(case), sure=True)
    compute = _compute(case)
    # Whether most of it is work that was not there before, or that is gone: counted, not only timed
    other = sum(
        c.more_ms
        for c in (compute.changes if compute is not None else ())
        if c.status in ("new", "vanished") or abs(_more_calls(c)) >= max(1.0, 0.1 * (c.base_count or 0.0))
    )
    keep(compute, sure=compute is not None and abs(other) >= 0.5 * abs(compute.ms))
    known = ("idle_input", "idle_host", "memory", "comm_wait", "comm_transfer", "idle_sync")
    timed += [_of_bucket(bucket, left[bucket], case) for bucket in known if case.is_worth(left.get(bucket, 0.0))]
    timed += [
        Explanation("other", bucket_text(b, ledger), left[b], (b,))
        for b in ("idle_dependency", "idle_unknown", "idle_gap", "comm_unmatched")
        if case.is_worth(left.get(b, 0.0))
    ]
    keep(_more_kernels(changes) if _KERNELS in regressed else None, sure=True)
    beyond = [e for e in timed if not ledger.in_noise.issuperset(e.buckets)]
    return _in_order(counted, beyond or ([] if counted else timed[:1]), sum(ledger.change.values()), wanted_ms)


def _in_order(
    counted: list[Explanation], timed: list[Explanation], total_ms: float, wanted_ms: float | None
) -> tuple[Explanation, ...]:
    along = 1.0 if (wanted_ms if wanted_ms is not None else total_ms) >= 0 else -1.0
    sure = sorted(counted, key=lambda e: -abs(e.ms))
    rest = sorted(timed, key=lambda e: -e.ms * along)
    if wanted_ms is None:
        return (*sure, *rest)
    most = max((e.ms * along for e in (*sure, *rest)), default=0.0)
    bound = _SHARE * min(abs(wanted_ms), most) if most > 0 else float("inf")
    first = [e for e in (*sure, *rest) if e.ms * along >= bound]
    then = sorted((e for e in (*sure, *rest) if e.ms * along < bound), key=lambda e: -e.ms * along)
    return (*first, *then)


def _blocking(case: _Case) -> Explanation | None:
    """Calls that wait for the device and are called more often than before, or less."""
    calls = [change for change in case.of_kind("blocking_call") if abs(_more_calls(change)) >= _ONE_CALL]
    if not calls:
        return None
    more = sum(map(_more_calls, calls))
    buckets = tuple(b for b in ("idle_sync", "idle_host") if case.left.get(b, 0.0) * more > 0)
    ms = sum(case.left[bucket] for bucket in buckets)
    if not case.is_worth(ms) and abs(more) < 2.0 and all(call.status == "changed" for call in calls):
        return None
    idle = say("idles", device=case.ledger.device, ms=ms_change_text(ms)) if ms else ""
    base = round(sum(change.base_count or 0.0 for change in calls), 2)
    head = round(sum(change.head_count or 0.0 for change in calls), 2)
    evidence = (Evidence(Fact.BLOCKING_CALLS, head, "", peers=base),)
    return Explanation(
        "blocking_calls", calls_text(calls) + idle, ms, buckets or ("idle_sync",), evidence, tuple(calls)
    )


def _more_calls(change: Change) -> float:
    """How many more there are in a step of head."""
    return (change.head_count or 0.0) - (change.base_count or 0.0)


def _compute(case: _Case) -> Explanation | None:
    ms = case.left.get("compute", 0.0)
    if not case.is_worth(ms):
        return None
    movers = moved_kernels(case.changes, ms)
    named = movers[:_FEW]
    how = joined([kernel_text(c) for c in named]) if named else say("no_kernel")
    text = f"compute {ms_change_text(ms)} per step: {how}"
    return Explanation("compute", text, ms, ("compute",), (), tuple(movers))


def _more_kernels(changes: Sequence[Change]) -> Explanation | None:
    """What is launched more often than before, most calls first."""
    more = [c for c in changes if c.kind == "kernel" and _more_calls(c) >= 0.5]
    if not more:
        return None
    more.sort(key=_more_calls, reverse=True)
    names = joined([calls_more_text(c) for c in more[:_FEW]])
    return Explanation("compute", f"more is launched: {names}", sum(c.more_ms for c in more), (), (), tuple(more))


def _of_bucket(bucket: str, ms: float, case: _Case) -> Explanation:
    """One bucket that nothing else accounts for, with what may be behind it."""
    cause = {
        "idle_input": "input", "idle_host": "launch", "memory": "memory", "comm_wait": "waiting",
        "comm_transfer": "bandwidth", "idle_sync": "blocking_calls",
    }[bucket]  # fmt: skip
    operators = _moved_operators(case, ms)
    behind: list[Change] = []
    text = bucket_text(bucket, case.ledger)
    if bucket == "idle_input":
        behind = [c for c in operators if "load" in c.name.lower() or "fetch" in c.name.lower()][:_FEW]
    elif bucket == "idle_host":
        behind = operators[:_FEW]
        if (kernels := _kernel_count(case.base, case.head)) is not None:
            text += f"; {count_change_text('kernel', *kernels)}"
    elif bucket == "memory":
        behind = [c for c in case.of_kind("kernel") if c.name.startswith(COPIES) and c.more_ms * ms > 0][:_FEW]
    if behind:
        texts = [operator_text(c) if c.kind == "operator" else kernel_text(c) for c in behind]
        text += f" ({joined(texts)})"
    return Explanation(cause, text, ms, (bucket,), (), tuple(behind))


def _moved_operators(case: _Case, ms: float) -> list[Change]:
    """Operators whose host time took part in a change of `ms`, all shapes together, most first."""
    by_name: dict[str, Change] = {}
    for own in case.of_kind("operator"):
        before = by_name.get(own.name, Change("operator", own.status, own.name, own.head_name, 0.0, 0.0, 0.0, 0.0))
        by_name[own.name] = replace(
            before,
            base_count=(before.base_count or 0.0) + (own.base_count or 0.0),
            head_count=(before.head_count or 0.0) + (own.head_count or 0.0),
            base_ms=(before.base_ms or 0.0) + (own.base_ms or 0.0),
            head_ms=(before.head_ms or 0.0) + (own.head_ms or 0.0),
        )
    movers = [c for c in by_name.values() if c.more_ms * ms > 0 and abs(c.more_ms) >= 0.1 * abs(ms)]
    return sorted(movers, key=lambda c: -abs(c.more_ms))


def _kernel_count(base: Captures, head: Captures) -> tuple[float, float] | None:
    """Kernels a step on both sides, where their number differs by a tenth."""
    counts = []
    for side in (base, head):
        rows = [row.kernels for capture in side for row in capture.report.steps]
        known = sorted(float(count) for count in rows if count is not None)
        counts.append(known[len(known) // 2] if known else 0.0)
    old, new = counts
    return (old, new) if old and abs(new - old) >= 0.1 * old else None
