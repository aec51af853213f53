"""TO-C001 and TO-C002 from bandwidths that were measured on a machine with nothing else running."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.analyses.links import LARGE_BYTES, link_by_name
from traceops.findings import Verdict, finding, severity_of
from traceops.model import Evidence
from traceops.topology.model import Machine, Measured, Reference

# Nothing computes beside these transfers, so less is let pass than in a trace, where 30 % is the bound.
_LOW_PCT = (50.0, 50.0, 10.0)
_LOST_PCT = 70.0  # of what this very machine gave before
_SLOW_PAIR = 2.0  # times slower than the median of pairs with the same kind of path
_LEAST_PAIRS = 3


def judge_measured(
    measured: Sequence[Measured], machines: Sequence[Machine], before: Sequence[Reference] = ()
) -> list[Verdict]:
    """TO-C001 and TO-C002 of a machine at rest; before: what it gave earlier, with the same topology."""
    return [_judge_low(measured, machines, before), _judge_pairs(measured, machines)]


def _judge_low(
    measured: Sequence[Measured], machines: Sequence[Machine], before: Sequence[Reference]
) -> Verdict:
    best = _best_all_reduce(measured)
    if best is None:
        return Verdict(
            "TO-C001", not_evaluated=f"no all-reduce of {LARGE_BYTES / 1e6:g} MB or more was measured"
        )
    names = Counter(gpu.name for machine in machines for gpu in machine.gpus if gpu.name)
    name = names.most_common(1)[0][0] if names and best.backend == "nccl" else None
    known = link_by_name(name) if len(best.gpus) > 1 else None
    expected: list[
        tuple[float, str, float]
    ] = []  # reference GB/s, what gives it, percent that must be reached
    if known is not None:
        expected.append(
            (known.busbw_gbs, f"{known.link} gives between GPUs like these ({name})", _LOW_PCT[0])
        )
    for reference in before:
        earlier = _best_all_reduce(reference.measured)
        if earlier is not None and earlier.backend == best.backend and len(earlier.gpus) == len(best.gpus):
            expected.append(
                (earlier.busbw_gbs, f"{reference.host} gave when it was measured before", _LOST_PCT)
            )
    if not expected:
        return Verdict(
            "TO-C001",
            not_evaluated=f"what this machine should give is not known; it gives {best.busbw_gbs:.1f} GB/s "
            f"({best.op} of {best.bytes / 1e6:.0f} MB)",
        )
    gbs, what, bound = max(expected, key=lambda entry: entry[0] * entry[2])
    share = 100.0 * best.busbw_gbs / gbs
    if share >= bound:
        return Verdict("TO-C001", clear=f"{best.busbw_gbs:.1f} GB/s is {share:.0f} % of what {what}")
    severity = severity_of(-share, -bound, -bound, -_LOW_PCT[2]) or "warning"
    return Verdict(
        "TO-C001",
        (
            finding(
                "TO-C001",
                severity,
                "high",
                f"An all-reduce of {best.bytes / 1e6:.0f} MB over {len(best.gpus)} GPUs moves "
                f"{best.busbw_gbs:.1f} GB/s (bus bandwidth), {share:.0f} % of the {gbs:g} GB/s that {what}.",
                [
                    Evidence("busbw", round(best.busbw_gbs, 2), "GB/s", round(gbs * bound / 100, 1)),
                    Evidence("of the reference", round(share, 1), "%", bound),
                    Evidence("reference", round(gbs, 2), "GB/s"),
                ],
            ),
        ),
    )


def _judge_pairs(measured: Sequence[Measured], machines: Sequence[Machine]) -> Verdict:
    kinds: dict[tuple[str | None, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    for row in measured:
        if row.op == "send_recv" and len(row.gpus) == 2:
            pairs = kinds[row.host, _kind(row, machines)]
            pairs[row.gpus] = max(row.busbw_gbs, pairs.get(row.gpus, 0.0))
    compared = {kind: pairs for kind, pairs in kinds.items() if len(pairs) >= _LEAST_PAIRS}
    if not compared:
        return Verdict("TO-C002", not_evaluated=f"fewer than {_LEAST_PAIRS} pairs of GPUs were measured")
    found = []
    for (host, kind), pairs in compared.items():
        usual = float(np.median(list(pairs.values())))
        slow = {pair: gbs for pair, gbs in pairs.items() if gbs * _SLOW_PAIR <= usual}
        if not slow:
            continue
        worst = min(slow, key=lambda pair: slow[pair])
        listed = ", ".join(f"{a}→{b} {slow[a, b]:.1f}" for a, b in sorted(slow)[:8])
        common = set.intersection(*(set(pair) for pair in slow))
        who = f" All of them touch GPU{min(common)}." if len(common) == 1 and len(slow) > 1 else ""
        where = f" on {host}" if host else ""
        path = f" ({kind})" if kind != "?" else ""
        found.append(
            finding(
                "TO-C002",
                "warning",
                "high",
                f"{len(slow)} of {len(pairs)} directed pairs of GPUs{where}{path} send at half the speed of the "
                f"others or less: {listed} GB/s, median {usual:.1f}.{who}",
                [
                    Evidence(
                        f"GPU{worst[0]} to GPU{worst[1]}", round(slow[worst], 2), "GB/s", round(usual / 2, 2)
                    ),
                    Evidence("median of the pairs", round(usual, 2), "GB/s"),
                    Evidence("slow pairs", len(slow), f"of {len(pairs)}"),
                ],
            )
        )
    spread = min(
        min(pairs.values()) / max(float(np.median(list(pairs.values()))), 1e-9) for pairs in compared.values()
    )
    return Verdict(
        "TO-C002",
        tuple(found),
        clear=f"the slowest pair gives {100 * spread:.0f} % of the median of its kind",
    )


def _best_all_reduce(measured: Sequence[Measured]) -> Measured | None:
    """The best large one over the most GPUs."""
    rows = [row for row in measured if row.op == "all_reduce" and row.bytes >= LARGE_BYTES]
    most = max((len(row.gpus) for row in rows), default=0)
    return max((row for row in rows if len(row.gpus) == most), key=lambda row: row.busbw_gbs, default=None)


def _kind(row: Measured, machines: Sequence[Machine]) -> str:
    """Pairs are compared with pairs of the same kind of path only."""
    for machine in machines:
        if row.host is None or machine.host is None or machine.host == row.host:
            path = machine.path(f"GPU{row.gpus[0]}", f"GPU{row.gpus[1]}")
            if path is not None:
                return path.kind if path.count is None else f"{path.kind}{path.count}"
    return "?"
