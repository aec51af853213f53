"""TO-C001 and TO-C002 from bandwidths that were measured with nothing else on the links."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import Evidence, Finding, severity_of
from traceops.core.rule import Verdict
from traceops.doctor.assess import (
    FAR_BELOW,
    OF_ITS_PAST,
    OF_SIBLINGS,
    large_all_reduce,
    link_of,
    shared_by,
    shared_text,
    slow_pairs,
)
from traceops.fabric.host_names import same_host
from traceops.fabric.model import Machine, Measured
from traceops.rules.bandwidth import LOW_BANDWIDTH, SLOWER_THAN_SIBLINGS

_ERROR_PCT = 10.0  # of the reference, as in a trace


def judge_measured(measured: Sequence[Measured], machines: Sequence[Machine], before: Measured | None) -> list[Verdict]:
    """Both rules over the machines; before: the large all-reduce of the same GPUs when they were measured earlier."""
    of_host = [
        (machine, [row for row in measured if row.host is None or same_host(row.host, machine.host)])
        for machine in machines
    ]
    return [_judge_low(of_host, before), _judge_pairs(of_host)]


def _judge_low(of_host: Sequence[tuple[Machine, list[Measured]]], before: Measured | None) -> Verdict:
    found, said, unknown = [], [], []
    for machine, rows in of_host:
        large = large_all_reduce(rows)
        if large is None or len(large.gpus) < 2:
            continue
        expected = _expected(large, machine, before)
        if not expected:
            unknown.append(f"{machine.host or 'it'} gives {large.busbw_gbs:.4g} GB/s")
            continue
        gbs, what, bound = max(expected, key=lambda entry: entry[0] * entry[2])
        share = 100.0 * large.busbw_gbs / gbs
        if share >= bound:
            said.append(f"{large.busbw_gbs:.4g} GB/s is {share:.0f} % of what {what}")
        else:
            found.append(_low(large, machine, gbs, what, bound, share))
    if found or said:
        return LOW_BANDWIDTH.verdict(*found, clear="; ".join(said))
    if unknown:
        return LOW_BANDWIDTH.not_evaluated(f"what this machine should give is not known; {'; '.join(unknown)}")
    return LOW_BANDWIDTH.not_evaluated("no all-reduce was measured")


def _expected(large: Measured, machine: Machine, before: Measured | None) -> list[tuple[float, str, float]]:
    """References that are known: GB/s, what gives it, and the percentage of it that must be reached."""
    expected: list[tuple[float, str, float]] = []
    link = link_of(machine, large.gpus) if large.backend == "nccl" else None
    if link is not None:
        expected.append((link.busbw_gbs, f"{link.link} gives between GPUs like these", 100 * FAR_BELOW))
    if before is not None and before.backend == large.backend and same_host(before.host, large.host):
        expected.append((before.busbw_gbs, "this machine gave before", 100 * OF_ITS_PAST))
    return expected


def _low(large: Measured, machine: Machine, gbs: float, what: str, bound: float, share: float) -> Finding:
    severity = severity_of(-share, -bound, -bound, -_ERROR_PCT) or "warning"
    where = f" on {machine.host}" if machine.host else ""
    return LOW_BANDWIDTH.finding(
        severity,
        "high",
        f"An all-reduce of {large.bytes / 1e6:.0f} MB over {len(large.gpus)} GPUs{where} moves {large.busbw_gbs:.4g} "
        f"GB/s (bus bandwidth), {share:.0f} % of the {gbs:.4g} GB/s that {what}.",
        [
            Evidence("busbw", round(large.busbw_gbs, 2), "GB/s", round(gbs * bound / 100, 1)),
            Evidence("of the reference", round(share, 1), "%", bound),
            Evidence("reference", round(gbs, 2), "GB/s"),
        ],
    )


def _judge_pairs(of_host: Sequence[tuple[Machine, list[Measured]]]) -> Verdict:
    found = []
    pairs_seen = 0
    for machine, rows in of_host:
        pairs = [row for row in rows if row.op == "send_recv" and len(row.gpus) == 2]
        pairs_seen = max(pairs_seen, len({frozenset(row.gpus) for row in pairs}))
        slow = slow_pairs(rows, machine)
        if not slow:
            continue
        gbs = {pair: min(row.busbw_gbs for row in pairs if set(row.gpus) == set(pair)) for pair in slow}
        worst = min(gbs, key=lambda pair: gbs[pair])
        listed = ", ".join(f"{one}–{other} {gbs[one, other]:.3g}" for one, other in sorted(slow)[:8])
        who = f" {named}." if (named := shared_text(shared_by(slow))) else ""
        where = f" on {machine.host}" if machine.host else ""
        found.append(
            SLOWER_THAN_SIBLINGS.finding(
                "warning",
                "high",
                f"{len(slow)} of {len({frozenset(row.gpus) for row in pairs})} pairs of GPUs{where} send at less than "
                f"{OF_SIBLINGS:.0%} of what pairs with the same kind of path give: {listed} GB/s.{who}",
                [
                    Evidence(f"GPU{worst[0]} and GPU{worst[1]}", round(gbs[worst], 2), "GB/s"),
                    Evidence("slow pairs", len(slow), "pairs"),
                ],
            )
        )
    if pairs_seen < 3:
        return SLOWER_THAN_SIBLINGS.not_evaluated("fewer than 3 pairs of GPUs were measured")
    return SLOWER_THAN_SIBLINGS.verdict(*found, clear=f"{pairs_seen} pairs of GPUs give what their like give")
