"""The numbers behind a late rank's finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from traceops.across.cross_rank import CrossRank
from traceops.across.grown import grown
from traceops.across.lateness import CAUSES, least_share
from traceops.across.replay.graph import Steps
from traceops.across.replay.what_if import WORK_SHARED
from traceops.across.stragglers import Straggler
from traceops.across.work import MORE, WorkCompared
from traceops.core.cause_words import IN_OPERATORS
from traceops.core.findings import Evidence
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.rules.straggler_bounds import CHANCE, FELT, IMPACT_BOUNDS
from traceops.rules.straggler_conditions import operators_pct


def mean_over(run: CrossRank, *, sometimes: bool = False) -> Callable[[Steps], float]:
    """What takes the mean of times of steps, ns: over typical steps, but of a rank late `sometimes` over all."""
    if sometimes or run.what_if is None:
        return lambda steps: float(steps.mean())
    return run.what_if.mean_ns


def waiting_ms(run: CrossRank, straggler: Straggler, *, sometimes: bool = False) -> float:
    """Waiting for this rank, ms a step, mean over the other ranks and the steps that `mean_over` takes."""
    assert run.lateness is not None
    caused = run.lateness.caused[straggler.rank].sum(axis=0)
    if not sometimes and run.what_if is not None:
        caused = caused[run.what_if.chosen]
    return float(caused.mean()) / 1e6 / max(len(run.ranks) - 1, 1)


def saved_by_sharing(run: CrossRank, mean: Callable[[Steps], float]) -> float | None:
    """What even shares of the work save a step, ns; None where the replay shows no gain."""
    saved = run.what_if.saved_steps(WORK_SHARED) if run.what_if is not None else None
    shared = None if saved is None else mean(saved)
    return shared if shared is not None and shared > 0 else None


def evidence_of(
    run: CrossRank, straggler: Straggler, step: float, saved: float, *, sometimes: bool = False
) -> list[Evidence]:
    """What a late rank costs, ms: `step` and `saved` are means in ns, as `mean_over` takes them."""
    rank = straggler.rank
    total = sum(straggler.caused.values()) or 1.0
    least, words = least_share(len(run.ranks)), run.step_words
    split = " / ".join(f"{100 * straggler.caused[cause] / total:.0f}" for cause in CAUSES)
    return [
        Evidence("saved at its peers' pace", stored(saved / 1e6), words.unit("ms"), stored(step / 1e6 * 0.1), rank),
        Evidence(f"of {words.the}", round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], rank),
        Evidence(
            "waiting for it",
            stored(waiting_ms(run, straggler, sometimes=sometimes)),
            words.unit("ms") + " and rank",
            rank=rank,
        ),
        Evidence("share of all waiting", round(100 * straggler.share, 1), "%", round(100 * least, 1), rank),
        Evidence(f"cause ({' / '.join(CAUSES)})", split, "%", rank=rank),
        Evidence("late steps", f"{len(straggler.late_steps)} of {len(straggler.saved)}", rank=rank),
        Evidence("chance", round(straggler.chance, 4), "probability", CHANCE, rank),
        *_late_step_evidence(run, straggler),
        *grown_evidence(run, rank, straggler.cause),
    ]


def work_evidence(
    compared: WorkCompared | None, rank: int, step: float, shared: float | None, words: StepWords
) -> list[Evidence]:
    """What tells a slower device from more work."""
    if compared is None or compared.kind is UNSET:
        return []
    found = []
    if compared.kind == "more_work":
        found.append(Evidence("work of its peers", round(compared.work, 2), "times", MORE, rank))
    if compared.kind == "extra_kernels":
        found.append(Evidence("kernels that no peer runs", stored(compared.alone_ms), words.unit("ms"), rank=rank))
    if compared.kind == "slower" and compared.speed is not None:
        found.append(Evidence("time of its peers for the same kernels", round(compared.speed, 2), "times", rank=rank))
    if shared is not None:
        found.append(Evidence("saved with the work shared evenly", stored(shared / 1e6), words.unit("ms"), rank=rank))
        found.append(Evidence(f"of {words.the}, shared evenly", round(100 * shared / step, 1), "%", rank=rank))
    return found


def _late_step_evidence(run: CrossRank, straggler: Straggler) -> list[Evidence]:
    """The mean step that the others lose time in, and what the cure saves there; nothing where they do in all."""
    assert run.stragglers is not None
    felt = straggler.saved >= FELT * max(float(straggler.saved.max()), 1.0)
    if not felt.any() or felt.all():
        return []
    late, saved = (float(ns[felt].mean()) / 1e6 for ns in (run.stragglers.step_ns, straggler.saved))
    return [
        Evidence("late step", stored(late), "ms", rank=straggler.rank),
        Evidence("saved in a late step", stored(saved), "ms", rank=straggler.rank),
    ]


def grown_evidence(run: CrossRank, rank: int, cause: str, peers: Sequence[int] = ()) -> list[Evidence]:
    """What of `cause` takes longer on a rank than on `peers` (by default all of its program), ms a step."""
    return [
        Evidence(
            f"grew: {one.name}",
            stored(one.ms),
            run.step_words.unit("ms"),
            rank=rank,
            peers=stored(one.peers_ms),
            grown=one.name,
        )
        for one in grown(run, rank, cause, peers)
    ]


def of_operators(run: CrossRank, straggler: Straggler) -> tuple[str, tuple[Evidence, ...]]:
    """A sentence on a rank without a GPU that takes longer in its operators, and the same as a number; '' of others."""
    pct = operators_pct(run, straggler)
    if pct is None:
        return "", ()
    why = "it has more to compute, or gets less done on its cores"
    said = f" Most of what it takes longer is in operators: {why}. Which of both, these traces do not tell."
    return said, (Evidence(IN_OPERATORS, round(pct, 1), "%", rank=straggler.rank),)
