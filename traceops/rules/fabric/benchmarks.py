"""TO-P007 and TO-P008: what nccl-tests measured: wrong values, and bandwidth against what the links give."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from traceops.across.links import reference_of
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rule import Verdict, described
from traceops.core.units import message_text
from traceops.fabric.fabric import Fabric, hosts_text, quoted
from traceops.fabric.model import same_host
from traceops.fabric.nccl import Benchmark, BenchmarkSize
from traceops.fabric.reference import ring_limit
from traceops.rules.fabric.claims import BOUNDS, FallingTest, LateTest, SlowTest, WrongValues
from traceops.rules.fabric.graph import LINK_NAMES

WRONG_VALUES = described("fabric", "TO-P007")
SLOW_TEST = described("fabric", "TO-P008")
RULES = (WRONG_VALUES, SLOW_TEST)

# Those whose bus bandwidth is the links' whatever their topology: rings and trees use all of them.
_JUDGED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_SMALL_BYTES = 1 << 10
_FEW_RANKS = 64  # of more, a ring alone takes long
_FEW_PEERS = 16  # of more, what sends to each of them in turn takes long
_TO_EACH = ("alltoall", "alltoallv", "gather", "scatter", "hypercube")
_MOST_LISTED = 4


class _Expected(Struct, frozen=True):
    """GB/s, what gives it, by its source, and the share of it that must be reached."""

    gbs: float
    source: str
    link: str
    share: float


def judge_benchmarks(fabric: Fabric) -> list[Verdict]:
    """Both rules over all tests in the logs."""
    checked = [one for one in fabric.benchmarks if one.wrong is not None and not one.alone]
    wrong = WRONG_VALUES.verdict(
        *(_wrong(one) for one in checked if one.wrong), clear=reason("fabric", "right_values", count=len(checked))
    )
    if not checked:
        wrong = WRONG_VALUES.not_evaluated(reason("fabric", "unchecked" if fabric.benchmarks else "no_tests"))
    return [wrong, _judge_slow(fabric)]


def _test(one: Benchmark) -> dict[str, Any]:
    """What each claim about a test has."""
    return {"op": one.op, "gpus": len(one.ranks) or None, "hosts": tuple(one.hosts)}


def _wrong(one: Benchmark) -> Finding:
    rows = [row for row in one.sizes if row.wrong]
    more = len(rows) - _MOST_LISTED
    sizes = tuple(message_text(row.bytes) for row in rows[:_MOST_LISTED])
    claim = WrongValues(**_test(one), wrong=one.wrong or 0, sizes=sizes, more=more if more > 0 else None)
    quotes = quoted((row.quote for row in rows or (one.sizes[-1],)), Fact.NCCL_TESTS)
    evidence = [Evidence(Fact.WRONG_VALUES, one.wrong or 0, "elements", 0), *quotes]
    return WRONG_VALUES.finding("error", "high", claim, evidence)


def _judge_slow(fabric: Fabric) -> Verdict:
    if not fabric.benchmarks:
        return SLOW_TEST.not_evaluated(reason("fabric", "no_tests"))
    findings, fast, whys = [], [], []
    for one in fabric.benchmarks:
        findings += _late(one)
        large = one.large
        why = _not_judged(one, large)
        end = None if alone_text(one) else one.falls_to
        falls = [] if large is None or end is None else [_falls(one, large, end)]
        expected = None if why or large is None else _expected(one, fabric)
        if large is None or why or expected is None:
            whys.append(why or reason("fabric", "test_unknown", where=_where(one)))
            findings += falls
            continue
        reached = large.busbw_gbs / expected.gbs
        if reached < expected.share:
            findings.append(_slow(one, large, expected, reached))
        elif not falls:
            facts = {"gbs": large.busbw_gbs, "limit": expected.gbs, "source": expected.source, "link": expected.link}
            fast.append(reason("fabric", "test_fast", op=one.op, where=_where(one), **facts))
        findings += falls
    if not findings and not fast:
        return SLOW_TEST.not_evaluated("; ".join(list(dict.fromkeys(whys))[:_MOST_LISTED]))
    more = f"; and {len(fast) - _MOST_LISTED} more tests" if len(fast) > _MOST_LISTED else ""
    return SLOW_TEST.verdict(*findings, clear=f"{'; '.join(fast[:_MOST_LISTED])}{more}")


def _slow(one: Benchmark, large: BenchmarkSize, expected: _Expected, reached: float) -> Finding:
    claim = SlowTest(
        **_test(one),
        gbs=large.busbw_gbs,
        message_size=message_text(large.bytes),
        pct=100 * reached,
        limit=expected.gbs,
        source=expected.source,
        link=expected.link,
    )
    evidence = [
        Evidence(Fact.BUSBW, large.busbw_gbs, "GB/s", round(expected.gbs * expected.share, 1)),
        Evidence(Fact.REFERENCE, round(expected.gbs, 1), "GB/s"),
        Evidence(Fact.TIME_OF_THE_SMALLEST_MESSAGE, one.smallest.time_us, "µs"),
        *quoted((large.quote,), Fact.NCCL_TESTS),
    ]
    severity: Severity = "error" if reached < BOUNDS.measured_share[1] else "warning"
    return SLOW_TEST.finding(severity, "high", claim, evidence)


def _falls(one: Benchmark, best: BenchmarkSize, end: BenchmarkSize) -> Finding:
    best_size, last_size = message_text(best.bytes), message_text(end.bytes)
    claim = FallingTest(**_test(one), best=best.busbw_gbs, best_size=best_size, last=end.busbw_gbs, last_size=last_size)
    evidence = [
        Evidence(Fact.BUSBW_OF_THE_LARGEST_MESSAGE, end.busbw_gbs, "GB/s", round(best.busbw_gbs / 2, 1)),
        Evidence(Fact.BEST_BUSBW, best.busbw_gbs, "GB/s"),
        *quoted((best.quote, end.quote), Fact.NCCL_TESTS),
    ]
    return SLOW_TEST.finding("warning", "medium", claim, evidence, cause="falls")


def _late(one: Benchmark) -> list[Finding]:
    """Small messages that take milliseconds, whatever their bandwidth."""
    small = [row for row in one.sizes if row.bytes <= _SMALL_BYTES]
    few = _FEW_PEERS if one.op in _TO_EACH else _FEW_RANKS
    if alone_text(one) or not small or not 1 < len(one.ranks) <= few:
        return []
    least = min(small, key=lambda row: row.time_us)
    if least.time_us < 1000 * BOUNDS.late_ms:
        return []
    claim = LateTest(**_test(one), ms=least.time_us / 1000, message_size=message_text(least.bytes))
    small_message = Evidence(Fact.TIME_OF_A_SMALL_MESSAGE, least.time_us, "µs", 1000 * BOUNDS.late_ms)
    evidence = [small_message, *quoted((least.quote,), Fact.NCCL_TESTS)]
    return [SLOW_TEST.finding("warning", "medium", claim, evidence, cause="late")]


def _not_judged(one: Benchmark, large: BenchmarkSize | None) -> str:
    """Why the bandwidth of a test shows nothing of its links; empty where it may."""
    if alone := alone_text(one):
        return alone
    if not one.ranks:
        return reason("fabric", "test_no_gpus")
    if large is None:
        return reason("fabric", "test_small", size=message_text(max(row.bytes for row in one.sizes)))
    if one.op is None:
        return reason("fabric", "test_no_op")
    return "" if one.op in _JUDGED else reason("fabric", "test_other_op", op=one.op)


def alone_text(one: Benchmark) -> str:
    """That no rank had another one to talk to, and how to correct it; empty where there were several."""
    if not one.alone and len(one.ranks) != 1:
        return ""
    return reason("fabric", "test_split", processes=one.alone) if one.alone else reason("fabric", "test_alone")


def _expected(one: Benchmark, fabric: Fabric) -> _Expected | None:
    """What the links between the ranks give: as the doctor measured, as NCCL expects, by name or by topology."""
    group = tuple(range(len(one.ranks)))
    hosts: dict[int, str | None] = {place: rank.host for place, rank in enumerate(one.ranks)}
    if (known := reference_of(group, one.gpu, hosts, len(group), fabric)) is not None:
        expects = known.source == "graph"
        share = BOUNDS.expected_share if expects else BOUNDS.measured_share[0]
        return _Expected(known.busbw_gbs, "expects" if expects else "gives", known.link, share)
    if len(one.hosts) > 1:
        return None
    for machine in fabric.machines:
        if machine.host is not None and not same_host(machine.host, one.hosts[0]):
            continue
        by_bus_id = {gpu.bus_id: gpu for gpu in machine.gpus if gpu.bus_id}
        found = [by_bus_id[rank.bus_id] for rank in one.ranks if rank.bus_id in by_bus_id]
        limit = ring_limit(machine, found) if len(found) == len(one.ranks) > 1 else None
        if limit is not None and limit.whole and limit.kind in LINK_NAMES:
            return _Expected(limit.gbs, "links", LINK_NAMES[limit.kind], BOUNDS.measured_share[0])
    return None


def benchmark_text(one: Benchmark) -> str:
    """'all_reduce of nccl-tests over 8 GPUs on node-1'."""
    return reason("fabric", "benchmark", op=one.op or "A test", where=_where(one))


def _where(one: Benchmark) -> str:
    count = len(one.ranks)
    gpus = f"{count or 'unknown'} GPU{'' if count == 1 else 's'}"
    return f"{gpus}{hosts_text(one.hosts, 'on')}"
