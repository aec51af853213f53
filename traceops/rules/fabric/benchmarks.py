"""TO-P007 and TO-P008: what nccl-tests measured: wrong values, and bandwidth against what the links give."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from traceops.across.links import reference_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Verdict, described
from traceops.core.units import message_text, rate_text
from traceops.fabric.fabric import Fabric, hosts_text, quoted
from traceops.fabric.measured import Benchmark, BenchmarkSize
from traceops.fabric.model import Gpu, Machine, same_host
from traceops.fabric.reference import ring_limit

WRONG_VALUES = described("fabric", "TO-P007")
SLOW_TEST = described("fabric", "TO-P008")
RULES = (WRONG_VALUES, SLOW_TEST)

_OF_LINKS = 0.5  # as the doctor judges what it measures itself: nothing computes beside
_OF_EXPECTED = 0.3  # of what NCCL's search expects, as TO-C001
_ERROR = 0.1
# Those whose bus bandwidth is the links' whatever their topology: rings and trees use all of them.
_JUDGED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_SMALL_BYTES = 1 << 10
_LATE_US = 2_000.0
_FEW_RANKS = 64  # of more, a ring alone takes long
_FEW_PEERS = 16  # of more, what sends to each of them in turn takes long
_TO_EACH = ("alltoall", "alltoallv", "gather", "scatter", "hypercube")
_MOST_LISTED = 4


class _Expected(Struct, frozen=True):
    """GB/s, what gives it, and the share of it that must be reached."""

    gbs: float
    what: str
    share: float


def judge_benchmarks(fabric: Fabric) -> list[Verdict]:
    """Both rules over all tests in the logs."""
    return [_judge_wrong(fabric.benchmarks), _judge_slow(fabric)]


def _judge_wrong(benchmarks: Sequence[Benchmark]) -> Verdict:
    checked = [one for one in benchmarks if one.wrong is not None and not one.alone]
    if not checked:
        why = "the tests in the logs did not check their values" if benchmarks else _no_tests()
        return WRONG_VALUES.not_evaluated(why)
    findings = [_wrong(one) for one in checked if one.wrong]
    count = len(checked)
    return WRONG_VALUES.verdict(
        *findings, clear=f"{count} test{'' if count == 1 else 's'} of nccl-tests got right values"
    )


def _wrong(one: Benchmark) -> Finding:
    rows = [row for row in one.sizes if row.wrong]
    at = f" at {', '.join(message_text(row.bytes) for row in rows[:_MOST_LISTED])}" if rows else ""
    more = f" and {len(rows) - _MOST_LISTED} more sizes" if len(rows) > _MOST_LISTED else ""
    return WRONG_VALUES.finding(
        "error",
        "high",
        f"{benchmark_text(one)} got {one.wrong:,} wrong value{'' if one.wrong == 1 else 's'}{at}{more}.",
        [
            Evidence(Fact.WRONG_VALUES, one.wrong or 0, "elements", 0),
            *quoted((row.quote for row in rows or (one.sizes[-1],)), Fact.NCCL_TESTS),
        ],
    )


def _judge_slow(fabric: Fabric) -> Verdict:
    if not fabric.benchmarks:
        return SLOW_TEST.not_evaluated(_no_tests())
    findings, said, whys = [], [], []
    for one in fabric.benchmarks:
        findings += _late(one)
        large = one.large
        why = _not_judged(one, large)
        end = None if alone_text(one) else one.falls_to
        falls = [] if large is None or end is None else [_falls(one, large, end)]
        expected = None if why or large is None else _expected(one, fabric)
        if large is None or why or expected is None:
            whys.append(why or f"what the links of {_where(one)} give is not known")
            findings += falls
            continue
        reached = large.busbw_gbs / expected.gbs
        if reached < expected.share:
            findings.append(_slow(one, large, expected, reached))
        elif not falls:
            said.append(
                f"{one.op} moves {rate_text(large.busbw_gbs)} GB/s over {_where(one)} "
                f"({rate_text(expected.gbs)} GB/s is what {expected.what})"
            )
        findings += falls
    if not findings and not said:
        return SLOW_TEST.not_evaluated("; ".join(list(dict.fromkeys(whys))[:_MOST_LISTED]))
    more = f"; and {len(said) - _MOST_LISTED} more tests" if len(said) > _MOST_LISTED else ""
    return SLOW_TEST.verdict(*findings, clear=f"{'; '.join(said[:_MOST_LISTED])}{more}")


def _slow(one: Benchmark, large: BenchmarkSize, expected: _Expected, reached: float) -> Finding:
    return SLOW_TEST.finding(
        "error" if reached < _ERROR else "warning",
        "high",
        f"{benchmark_text(one)} moves {rate_text(large.busbw_gbs)} GB/s (bus bandwidth) at "
        f"{message_text(large.bytes)}, {100 * reached:.0f} % of the {rate_text(expected.gbs)} GB/s that "
        f"{expected.what}.",
        [
            Evidence(Fact.BUSBW, large.busbw_gbs, "GB/s", round(expected.gbs * expected.share, 1)),
            Evidence(Fact.REFERENCE, round(expected.gbs, 1), "GB/s"),
            Evidence(Fact.TIME_OF_THE_SMALLEST_MESSAGE, one.smallest.time_us, "µs"),
            *quoted((large.quote,), Fact.NCCL_TESTS),
        ],
    )


def _falls(one: Benchmark, best: BenchmarkSize, end: BenchmarkSize) -> Finding:
    first, last = (f"{rate_text(row.busbw_gbs)} GB/s" for row in (best, end))
    return SLOW_TEST.finding(
        "warning",
        "medium",
        f"{benchmark_text(one)} moves {first} (bus bandwidth) at {message_text(best.bytes)} and {last} at "
        f"{message_text(end.bytes)}: large messages are slower than smaller ones.",
        [
            Evidence(Fact.BUSBW_OF_THE_LARGEST_MESSAGE, end.busbw_gbs, "GB/s", round(best.busbw_gbs / 2, 1)),
            Evidence(Fact.BEST_BUSBW, best.busbw_gbs, "GB/s"),
            *quoted((best.quote, end.quote), Fact.NCCL_TESTS),
        ],
        cause="falls",
    )


def _late(one: Benchmark) -> list[Finding]:
    """Small messages that take milliseconds, whatever their bandwidth."""
    small = [row for row in one.sizes if row.bytes <= _SMALL_BYTES]
    few = _FEW_PEERS if one.op in _TO_EACH else _FEW_RANKS
    if alone_text(one) or not small or not 1 < len(one.ranks) <= few:
        return []
    least = min(small, key=lambda row: row.time_us)
    if least.time_us < _LATE_US:
        return []
    return [
        SLOW_TEST.finding(
            "warning",
            "medium",
            f"{benchmark_text(one)} takes {least.time_us / 1000:.1f} ms for {message_text(least.bytes)}.",
            [
                Evidence(Fact.TIME_OF_A_SMALL_MESSAGE, least.time_us, "µs", _LATE_US),
                *quoted((least.quote,), Fact.NCCL_TESTS),
            ],
            cause="late",
        )
    ]


def _not_judged(one: Benchmark, large: BenchmarkSize | None) -> str:
    """Why the bandwidth of a test says nothing of its links; empty where it may."""
    if alone := alone_text(one):
        return alone
    if not one.ranks:
        return "the log does not say which GPUs nccl-tests ran on"
    if large is None:
        most = max(row.bytes for row in one.sizes)
        return f"the largest message is {message_text(most)}; nccl-tests -e 1G measures what links give"
    if one.op is None:
        return "the log does not say which operation nccl-tests ran"
    if one.op not in _JUDGED:
        return f"{one.op} does not use all links of a GPU on every machine"
    return ""


def alone_text(one: Benchmark) -> str:
    """That no rank had another one to talk to, and how to mend it; empty where there were several."""
    if not one.alone and len(one.ranks) != 1:
        return ""
    several = f"{one.alone} processes" if one.alone else "one process"
    built = ": build nccl-tests with MPI=1, so that the processes are one job" if one.alone else ""
    return f"nccl-tests ran on {several} of one rank, so nothing was sent{built}"


def _expected(one: Benchmark, fabric: Fabric) -> _Expected | None:
    """What the links between the ranks give: as the doctor measured, as NCCL expects, by name or by topology."""
    group = tuple(range(len(one.ranks)))
    hosts: dict[int, str | None] = {place: rank.host for place, rank in enumerate(one.ranks)}
    known = reference_of(group, one.gpu, hosts, len(group), fabric)
    if known is not None:
        share = _OF_EXPECTED if known.source == "graph" else _OF_LINKS
        what = f"{known.link} {'expects' if known.source == 'graph' else 'gives'}"
        return _Expected(known.busbw_gbs, what, share)
    if len(one.hosts) > 1:
        return None
    for machine in fabric.machines:
        if machine.host is not None and not same_host(machine.host, one.hosts[0]):
            continue
        gpus = [_gpu_of(machine, rank.bus_id) for rank in one.ranks]
        found = [gpu for gpu in gpus if gpu is not None]
        limit = ring_limit(machine, found) if len(found) == len(gpus) > 1 else None
        if limit is not None and limit.whole and limit.kind in ("NV", "XGMI"):
            name = "NVLinks" if limit.kind == "NV" else "XGMI links"
            return _Expected(limit.gbs, f"the {name} between them give, as NCCL counts them", _OF_LINKS)
    return None


def _gpu_of(machine: Machine, bus_id: str | None) -> Gpu | None:
    return next((gpu for gpu in machine.gpus if bus_id is not None and gpu.bus_id == bus_id), None)


def benchmark_text(one: Benchmark) -> str:
    """'all_reduce of nccl-tests over 8 GPUs on node-1'."""
    return f"{one.op or 'A test'} of nccl-tests over {_where(one)}"


def _where(one: Benchmark) -> str:
    count = len(one.ranks)
    gpus = f"{count or 'unknown'} GPU{'' if count == 1 else 's'}"
    return f"{gpus}{hosts_text(one.hosts, 'on')}"


def _no_tests() -> str:
    return "no log holds results of nccl-tests or rccl-tests"
