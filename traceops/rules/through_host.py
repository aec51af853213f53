"""TO-C003: GPUs whose data goes through their hosts, as gloo moves it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.links import LinkReference, collective_bytes, overall_busbw
from traceops.across.replay.what_if import REFERENCE
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.core.units import ms_text, stored

THROUGH_HOST = Rule(
    id="TO-C003",
    title="GPUs exchange data through their hosts",
    fires=(
        "The hosts run the collectives of what is on the GPUs (gloo), and no computation hides their transfer: info "
        "from 2 % of the step, warning from 5 %, error from 20 %. Waiting for late ranks is not counted. What NCCL "
        "would save is told where the link between the GPUs is known, and run.json says that each rank has a GPU of "
        "its own. Else at most a warning."
    ),
    advice=(
        "Use NCCL for what is on GPUs: init_process_group('nccl'), or 'cpu:gloo,cuda:nccl' where hosts exchange data "
        "of their own too. NCCL needs a GPU of its own for each rank: where ranks share one, start fewer ranks with "
        "larger batches."
    ),
)
RULES = (THROUGH_HOST,)

SAVED_WITH_NCCL = "saved with NCCL over the link"
_BOUNDS = (2.0, 5.0, 20.0)  # percent of the step


def judge_through_host(run: CrossRank) -> Verdict:
    """TO-C003: what the way through the hosts costs of the step."""
    if not any(times.summary.on_gpu for times in run.ranks):
        return THROUGH_HOST.not_evaluated("the traces hold no GPU activity")
    if run.world < 2:
        return THROUGH_HOST.not_evaluated("there is only one rank")
    told = [times.summary.exchanges_of_gpu for times in run.ranks]
    if not run.through_host and any(told):
        return THROUGH_HOST.not_evaluated(
            "gloo moves data of GPUs beside collectives that run on the GPUs: only those are matched across ranks"
        )
    if not run.through_host:
        return THROUGH_HOST.clear("no collective of a GPU's data is known to go through the hosts")
    if not any(told):
        return THROUGH_HOST.not_evaluated(
            "what the hosts exchange waits for no GPU in these traces: it may be the hosts' own data"
        )
    if not run.split:
        return THROUGH_HOST.not_evaluated("no collective could be matched across ranks")
    words, step = run.step_words, run.step_ms
    exposed = float(np.median([times.mean_ms("comm_transfer") for times in run.ranks]))
    pct = 100.0 * exposed / step if step else 0.0
    severity = severity_of(pct, *_BOUNDS)
    if severity is None:
        return THROUGH_HOST.clear(
            f"transfer through the hosts takes {pct:.1f} % of {words.the} (bound {_BOUNDS[0]:g} %)"
        )
    link, saved = _link(run), None
    if link is not None and run.what_if is not None:
        saved = run.what_if.saved_ns(REFERENCE)
    if saved is None and severity == "error":
        severity = "warning"
    gbs = overall_busbw(run.matching.collectives)
    speed = f", at {gbs:.1f} GB/s (bus bandwidth)" if gbs else ""
    message = (
        f"The ranks' GPUs exchange data through their hosts (gloo): {ms_text(exposed)} ms of {words.each} "
        f"({pct:.0f} %) is transfer that no computation hides{speed}."
    )
    evidence = [
        Evidence("exposed transfer", stored(exposed), words.unit("ms")),
        Evidence("exposed transfer, of the step", round(pct, 1), "%", _BOUNDS[0]),
    ]
    if gbs:
        evidence.append(Evidence("busbw", round(gbs, 2), "GB/s"))
    if link is not None and saved is not None:
        then = max(step - max(saved, 0.0) / 1e6, 0.0)
        message += f" With NCCL over {link.link} {words.the} would take about {then:.2f} ms or less, not {step:.2f}."
        evidence.append(Evidence("reference", round(link.busbw_gbs, 2), "GB/s"))
        evidence.append(Evidence(SAVED_WITH_NCCL, stored(max(saved, 0.0) / 1e6), words.unit("ms")))
    elif run.own_gpus is False:
        message += " Ranks share GPUs here, which NCCL does not do."
    return THROUGH_HOST.verdict(
        THROUGH_HOST.finding(
            severity,
            "high" if saved is not None else "medium",
            message,
            evidence,
            ranks=_ranks(run),
            impact_ms=None if saved is None else stored(max(saved, 0.0) / 1e6),
        )
    )


def _ranks(run: CrossRank) -> Sequence[int]:
    return [times.summary.rank for times in run.ranks if times.summary.through_host]


def _link(run: CrossRank) -> LinkReference | None:
    """The link that the most bytes would go over, where NCCL can use it."""
    moved: dict[tuple[int, ...], int] = {}
    for one in run.matching.collectives:
        moved[one.group] = moved.get(one.group, 0) + (collective_bytes(one) or 0)
    most = max(moved, key=lambda group: moved[group], default=())
    return run.link(most) if moved.get(most) else None
