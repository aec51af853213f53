"""TO-I001 to TO-I003: why the device was idle, judged on the rank where it hurts most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traceops.across.cross_rank import CrossRank, RankTimes, mean_ms
from traceops.across.replay.what_if import HOST_IN_TIME, NO_LOADING
from traceops.core.findings import Confidence, Evidence, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.rules.inputs import Inputs

HOST_BOUND = Rule(
    id="TO-I001",
    title="GPUs starve: kernels wait for the host to launch them",
    fires=(
        "Idle time that ends with a kernel launched after the idle time began, on the worst rank: info from "
        "10 % of the step, warning from 20 %, error from 40 %."
    ),
    advice=(
        "Give the GPU more work per launch: a larger batch, torch.compile or CUDA graphs, fused optimizers "
        "(fused=True); look for Python work in the step, and for too few CPU cores per rank."
    ),
    loses=("has nothing to run because the host launches too late for", "have nothing to run for up to"),
)

INPUT_BOUND = Rule(
    id="TO-I002",
    title="Waiting for input",
    fires=(
        "Idle time in which the launching thread was inside data loading, on the worst rank: info from 5 % of "
        "the step, warning from 10 %, error from 30 %."
    ),
    advice=(
        "Load ahead of need: more DataLoader workers (num_workers), prefetch_factor, pin_memory with "
        "non_blocking copies, cheaper transforms, data nearer to the node."
    ),
    loses=("waits for input for", "wait for input for up to"),
)

BLOCKED_ON_DEVICE = Rule(
    id="TO-I003",
    title="The host blocks on the device inside the step",
    fires=(
        "Idle time that began while the launching thread waited in a device synchronisation, on the worst "
        "rank: info from 1 % of the step, warning from 3 %, error from 15 %."
    ),
    advice=(
        "Keep values on the device: no .item(), .cpu(), print or `if tensor` in the step; log every N steps; "
        "use non_blocking=True and torch.where."
    ),
    loses=(
        "runs dry while the host blocks on the device for",
        "run dry while the host blocks on the device for up to",
    ),
)
RULES = (HOST_BOUND, INPUT_BOUND, BLOCKED_ON_DEVICE)

_SLOWED = 1.2  # profiled ÷ unprofiled step from which host times are mostly the profiler's


@dataclass(frozen=True)
class IdleJudgement:
    """Which bucket a rule judges, and from which percent of the step it is how severe."""

    rule: Rule
    bucket: str
    bounds: tuple[float, float, float]  # info, warning, error
    cause: str
    gpu_only: bool
    change: str  # of traceops.across.replay.what_if
    message: str  # {where}, {ms}, {pct}
    detail: Callable[[RankTimes], tuple[Evidence, ...]] = lambda _: ()


def judge(inputs: Inputs) -> list[Verdict]:
    """Why the device was idle."""
    return judge_idle(inputs.run, inputs.slowdown)


def judge_idle(run: CrossRank, profiler_slowdown: float | None) -> list[Verdict]:
    """One verdict a rule. `profiler_slowdown` (profiled ÷ unprofiled step) lowers confidence in host causes."""
    return [_judge(kind, run, profiler_slowdown) for kind in _JUDGEMENTS]


def _judge(kind: IdleJudgement, run: CrossRank, profiler_slowdown: float | None) -> Verdict:
    judged = [times for times in run.ranks if times.summary.on_gpu or not kind.gpu_only]
    if not judged:
        return kind.rule.not_evaluated("the traces hold no GPU activity")
    # What a damaged trace lost looks like idle time: it is judged only where there is no whole one.
    judged = [times for times in judged if not times.summary.damage] or judged
    damaged = bool(judged[0].summary.damage)
    shares = {
        times.summary.rank: share for times in judged if (share := _share(times, kind.bucket)) is not None
    }
    if not shares:
        return kind.rule.not_evaluated("the traces hold no complete step")
    hit = [times for times in judged if shares.get(times.summary.rank, 0.0) >= kind.bounds[0]]
    worst_share = max(shares.values())
    severity = severity_of(worst_share, *kind.bounds)
    if severity is None:
        return kind.rule.clear(
            f"at most {worst_share:.1f} % of the step on any rank (bound {kind.bounds[0]:g} %)",
        )
    worst = max(hit, key=lambda times: shares[times.summary.rank])
    impact = mean_ms(worst.buckets[kind.bucket])
    saved = _saved_ms(run, kind)
    ranks = [times.summary.rank for times in hit]
    evidence = (
        Evidence(kind.bucket, round(impact, 3), "ms/step", rank=worst.summary.rank),
        Evidence(f"{kind.bucket}_pct", round(worst_share, 1), "%", kind.bounds[0], rank=worst.summary.rank),
        Evidence(
            f"{kind.bucket}_pct (least, median, most over ranks)",
            " / ".join(
                f"{v:.1f}" for v in (min(shares.values()), np.median(list(shares.values())), worst_share)
            ),
            "%",
        ),
        *(() if saved is None else (Evidence("saved without it", round(saved, 3), "ms/step"),)),
        *kind.detail(worst),
    )
    message = kind.message.format(where=_where(ranks, len(run.ranks)), ms=impact, pct=worst_share)
    if kind.bucket == "idle_host" and profiler_slowdown is not None and profiler_slowdown > _SLOWED:
        message += f" The profiler made the step {profiler_slowdown:.2f} times as long, most of it host time."
    return kind.rule.verdict(
        kind.rule.finding(
            severity,
            "low" if damaged else _confidence(kind, profiler_slowdown),
            message,
            evidence,
            ranks=ranks,
            impact_ms=round(impact if saved is None else min(impact, saved), 3),
            cause=kind.cause,
        )
    )


def _saved_ms(run: CrossRank, kind: IdleJudgement) -> float | None:
    """What the replay says that a step gains without this idle time on any rank; None without a replay."""
    saved = run.what_if.saved_ns(kind.change) if run.what_if is not None else None
    return None if saved is None else max(saved, 0.0) / 1e6


def _confidence(kind: IdleJudgement, profiler_slowdown: float | None) -> Confidence:
    """The profiler costs host time, so a claim about the host is as good as what is known of that cost."""
    if kind.bucket != "idle_host":
        return "high"
    if profiler_slowdown is None:
        return "medium"
    return "low" if profiler_slowdown > _SLOWED else "high"


def _share(times: RankTimes, bucket: str) -> float | None:
    total = int(times.duration.sum())
    return 100.0 * int(times.buckets[bucket].sum()) / total if total > 0 else None


def _where(ranks: list[int], count: int) -> str:
    if len(ranks) == count:
        return "all ranks" if count > 1 else f"rank {ranks[0]}"
    return (
        ("rank " if len(ranks) == 1 else "ranks ")
        + ", ".join(map(str, ranks[:8]))
        + (" …" if len(ranks) > 8 else "")
    )


def _loading(times: RankTimes) -> tuple[Evidence, ...]:
    host = times.summary.host
    steps = max(len(times.duration), 1)
    return (
        Evidence("time in data loading", round(host.input_ms / steps, 3), "ms/step", rank=times.summary.rank),
        Evidence("seen as", ", ".join(host.input_names)[:200], rank=times.summary.rank),
    )


def _blocking(times: RankTimes) -> tuple[Evidence, ...]:
    steps = max(len(times.duration), 1)
    counted: Counter[str] = Counter()
    for call in times.summary.host.blocking:
        counted[f"{call.call} in {call.operator}" if call.operator else call.call] += call.count
    return tuple(
        Evidence(what, round(count / steps, 1), "calls/step", rank=times.summary.rank)
        for what, count in counted.most_common(3)
    )


_JUDGEMENTS: tuple[IdleJudgement, ...] = (
    IdleJudgement(
        HOST_BOUND,
        "idle_host",
        (10.0, 20.0, 40.0),
        "host",
        True,
        HOST_IN_TIME,
        "On {where} the GPU has nothing to run because the host has not launched it yet: up to {ms:.2f} ms of each "
        "step ({pct:.0f} %).",
    ),
    IdleJudgement(
        INPUT_BOUND,
        "idle_input",
        (5.0, 10.0, 30.0),
        "input",
        False,
        NO_LOADING,
        "On {where} nothing runs while the next batch is loaded: up to {ms:.2f} ms of each step ({pct:.0f} %).",
        _loading,
    ),
    IdleJudgement(
        BLOCKED_ON_DEVICE,
        "idle_sync",
        (1.0, 3.0, 15.0),
        "host",
        True,
        HOST_IN_TIME,
        "On {where} the host waits for the device inside the step, and the device then runs dry: up to {ms:.2f} ms "
        "of each step ({pct:.1f} %).",
        _blocking,
    ),
)
