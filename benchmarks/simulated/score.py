"""Scores what `analyze` says of simulated runs, whose truth is simulated too.

    python -m benchmarks.simulated.score --seeds 0-999 [--keep FOLDER] [--show]

Of every ten seeds five are for work and five are set aside (--half).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from benchmarks.simulated.cures import OF_RANKS, Truths
from benchmarks.simulated.draw import draw
from benchmarks.simulated.spec import OF_A_RANK, Spec, Trouble
from benchmarks.simulated.written import write_run
from traceops.core.findings import Finding
from traceops.pipeline.analyze import analyze

MATTERS, NEAR = (0.10, 0.8)  # of the step: a trouble that has to be named; of the best cure's gain: as good as first
FALSE, FALSE_STEP = 0.4, 0.03  # of what is said, and of the step: a cure that saves less is none
NAMES: dict[str, tuple[str, ...]] = {
    "slow_loader": ("TO-I002",), "tiny_buckets": ("TO-O002", "TO-O001"), "one_bucket": ("TO-O003", "TO-O001"),
    "slow_link": ("TO-C001", "TO-C002", "TO-O001", "TO-O003", "TO-B003"), "item_sync": ("TO-I003",),
    "exposed_copy": ("TO-I004", "TO-I003"), "slow_stage": ("TO-B001", *OF_RANKS),
    "gc_by_turns": ("TO-T001", "TO-I001", *OF_RANKS), "slow_node": (*OF_RANKS, "TO-I001"),
}  # fmt: skip
CAUSES: dict[str, tuple[str, ...]] = {
    "late_host": ("host",), "late_loader": ("input",), "slow_gpu": ("gpu_compute",),
    "gc": ("host", "garbage_collection"),
    "extra_kernel": ("gpu_compute",), "uneven_batch": ("gpu_compute",), "slow_copy": ("copy", "host"),
    "evaluation": ("gpu_compute", "evaluation", "host"), "hot_expert": ("gpu_compute",),
    "throttled": ("gpu_compute",), "checkpoint": ("host", "checkpoint"),
}  # fmt: skip


@dataclass
class Scored:
    """One run: what was wrong with the answer, as (question, what)."""

    seed: int
    kind: str
    step: float
    troubles: list[tuple[str, float, float]]  # kind, size, true gain in ms
    said: list[tuple[str, str, list[int], str | None, float | None, float | None]]  # …, promised, true
    wrong: list[tuple[str, str]] = field(default_factory=list)
    judged: Counter[str] = field(default_factory=Counter)


def score_run(seed: int, folder: Path) -> Scored:
    """Simulate it, analyse it, compare."""
    spec = draw(seed)
    truths = Truths(spec)
    write_run(truths.run, spec, folder)
    report = analyze(folder, jobs=1, cache=False)
    findings = [one for one in report.findings if not one.rule.startswith("TO-V")]
    unlike = report.summary.step_time_ms.unlike if spec.marked and report.summary.step_time_ms else ()
    gains = {trouble: truths.gain(trouble) for trouble in spec.troubles}
    uneven = sorted({rank for one in findings if one.computes_longer == "more_work" for rank in one.ranks})
    told = [(one, truths.gain_of(one, uneven, unlike)) for one in findings]
    scored = Scored(
        seed, spec.kind, truths.step, [(t.kind, t.size, gain) for t, gain in gains.items()],
        [(f.rule, f.severity, list(f.ranks), f.cause, f.impact_ms, gain) for f, gain in told],
    )  # fmt: skip
    doubt = " ".join(one.reason for one in report.checks if one.rule in OF_RANKS and one.status == "not_evaluated")
    _judge(scored, spec, truths.step, gains, told, doubt)
    return scored


def _judge(
    scored: Scored,
    spec: Spec,
    step: float,
    gains: dict[Trouble, float],
    told: list[tuple[Finding, float | None]],
    doubt: str,
) -> None:
    """doubt: what the report says why ranks could not be judged: where it names the rank, it abstains."""

    def judge(question: str, right: bool, what: str) -> None:
        scored.judged[question] += 1
        if not right:
            scored.wrong.append((question, what))

    false = [f for f, gain in told if f.severity != "info" and gain is not None and _is_false(f, gain, step)]
    judge("nothing false", not false, "; ".join(f"{f.rule} {f.cause or ''}" for f in false))
    by_gain = sorted((one for one in gains if gains[one] >= MATTERS * step), key=lambda one: -gains[one])
    if by_gain and by_gain[0].kind in OF_A_RANK and f"rank {by_gain[0].rank} " in doubt:
        judge("abstains", True, "")
        by_gain = []
    if by_gain:
        first, gain = told[0] if told else (None, 0.0)
        right = first is not None and (names(first, by_gain[0], spec) or (gain or 0) >= NEAR * gains[by_gain[0]])
        judge("first", right, f"{by_gain[0].kind}: {first.rule if first else 'nothing'}")
    for place, trouble in enumerate(by_gain):
        naming = [f for f, _ in told if names(f, trouble, spec)]
        judge("named" if place == 0 else "second named", bool(naming), trouble.kind)
        if naming and (causes := CAUSES.get(trouble.kind)) and naming[0].rule in OF_RANKS:
            if not spec.loader and trouble.kind == "late_loader":
                causes = (*causes, "host")
            others = {c for t in by_gain if t.rank == trouble.rank for c in CAUSES.get(t.kind, ())}
            cause = naming[0].cause or ""
            right = cause in {*causes, *others} or (cause == "unknown" and len(others) > len(causes))
            judge("cause", right, f"{trouble.kind}: {cause}")
    for finding, gain in told:
        if gain is None or finding.impact_ms is None:
            continue
        up_to = finding.rule not in (*OF_RANKS, "TO-B001")
        off = finding.impact_ms - gain
        near = max(0.1 * gain, min(1.0, 0.02 * step))
        judge("promise, at most" if up_to else "promise", off <= near and (up_to or off >= -near),
              f"{finding.rule} {finding.cause or ''} {'too much' if off > 0 else 'too little'}")  # fmt: skip


def _is_false(finding: Finding, gain: float, step: float) -> bool:
    return gain < FALSE_STEP * step and gain < FALSE * (finding.impact_ms or step)


def names(finding: Finding, trouble: Trouble, spec: Spec) -> bool:
    """Whether the finding is about this trouble: its rank, or the rule that tells of it."""
    rules = NAMES.get(trouble.kind)
    if trouble.kind == "slow_node" and finding.rule in OF_RANKS:
        return any(rank // spec.per_host == trouble.rank // spec.per_host for rank in finding.ranks)
    if trouble.kind == "slow_loader" and not spec.loader and finding.rule == "TO-I001":
        return True  # the trace does not note that data is loaded
    if rules is not None and finding.rule in rules:
        if trouble.kind != "slow_stage" or finding.rule == "TO-B001":
            return True
        return any(spec.stage(rank) == trouble.rank for rank in finding.ranks)
    if trouble.kind not in OF_A_RANK:
        return False
    if finding.rule == "TO-T001":
        return bool(trouble.steps)
    if finding.rule == "TO-I002" and trouble.kind == "late_loader":
        return trouble.rank in finding.ranks
    if finding.rule == "TO-I004" and trouble.kind == "slow_copy":
        return trouble.rank in finding.ranks
    return finding.rule in (*OF_RANKS, "TO-B001") and trouble.rank in finding.ranks


def seeds_of(text: str) -> list[int]:
    """'0-9,20' → 0 to 9 and 20."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def table(runs: list[Scored]) -> str:
    """How many of each question are right, and what is wrong most often."""
    asked, wrong = Counter[str](), Counter[str]()
    what: dict[str, Counter[str]] = {}
    for run in runs:
        asked += run.judged
        for question, answer in run.wrong:
            wrong[question] += 1
            what.setdefault(question, Counter())[answer] += 1
    lines = ["| question | runs | wrong | most often |", "|---|--:|--:|---|"]
    for question, count in asked.items():
        often = ", ".join(f"{answer} {n}" for answer, n in what.get(question, Counter()).most_common(8))
        lines.append(f"| {question} | {count} | {wrong[question]} | {often} |")
    return "\n".join(lines)


def main() -> None:
    """Score the seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-99")
    parser.add_argument("--half", choices=("work", "aside"))
    parser.add_argument("--keep", type=Path, help="write traces and scores here")
    parser.add_argument("--show", action="store_true", help="print each wrong run")
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds_of(args.seeds):
            if args.half and (seed // 5 % 2 == 0) != (args.half == "work"):
                continue
            folder = (args.keep or Path(scratch)) / str(seed)
            runs.append(score_run(seed, folder))
            if args.keep is None:
                for file in folder.iterdir():
                    file.unlink()
            if args.show and runs[-1].wrong:
                print(json.dumps(vars(runs[-1])), flush=True)
    print(table(runs))


if __name__ == "__main__":
    main()
