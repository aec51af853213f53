"""Scores reports against what was planted: found, missed, false alarm, wrong rank or cause, and the what-if."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.planted.cases import BY_NAME, QUIET, STRAGGLER, Expectation, ExpectedFinding, expectation

CAUSES = ("none", "gpu_compute", "host", "input", "copy", "other")
FOUND = (*CAUSES, "unknown")
WHAT_IF_LIMIT_PCT = 10.0
LEAST_COST_PCT = 2.0  # of the step: a fault that costs less need not be told, if its twin shows that

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """One case. pairs: planted and found cause, one a plant and one a false alarm. problems: what is wrong.

    what_if_error_pct: predicted step without the stragglers against the healthy run, None where not asked.
    cost_ms: what the faults really cost a step, by the healthy run.
    """

    case: str
    expected: str
    found: str
    first: str
    pairs: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    impact_ms: float | None = None
    cost_ms: float | None = None
    what_if_error_pct: float | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


def score_findings(expected: Expectation, findings: Sequence[Json]) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs of planted and found cause, and what is wrong with `findings`; see `Score`."""
    pairs: list[tuple[str, str]] = []
    problems: list[str] = []
    stragglers = [f for f in findings if f["rule"] in STRAGGLER]
    for wanted in expected.findings:
        found, wrong = _look_for(wanted, stragglers)
        pairs.append((wanted.cause, found))
        problems += wrong
    for rule in expected.rules:
        fired = any(f["rule"] == rule for f in findings)
        pairs.append(("other", "other" if fired else "none"))
        if not fired:
            problems.append(f"{rule} missed")
    for finding in stragglers:
        if _false_alarm(finding, expected):
            pairs.append(("none", _cause(finding)))
            problems.append(f"false alarm: {_describe(finding)}")
    for finding in findings:
        if finding["rule"] not in STRAGGLER and finding["rule"] in expected.quiet and _above_info(finding):
            pairs.append(("none", "other"))
            problems.append(f"false alarm: {_describe(finding)}")
    return pairs or [("none", "none")], problems


def _look_for(wanted: ExpectedFinding, stragglers: Sequence[Json]) -> tuple[str, list[str]]:
    """The cause that was found for the rank of `wanted`, and what is wrong with it."""
    naming = [f for f in stragglers if wanted.rank in f["ranks"]]
    naming.sort(key=lambda f: f["rule"] != wanted.rule)
    if not naming:
        return "none", [f"rank {wanted.rank} missed"]
    best, wrong = naming[0], []
    if best["rule"] != wanted.rule:
        wrong.append(f"rank {wanted.rank}: {best['rule']} instead of {wanted.rule}")
    if best.get("cause") != wanted.cause:
        wrong.append(f"rank {wanted.rank}: {best.get('cause')} instead of {wanted.cause}")
    if wanted.step is not None and wanted.step not in best.get("steps", ()):
        wrong.append(f"rank {wanted.rank}: steps {best.get('steps')} without step {wanted.step}")
    return _cause(best), wrong


def _false_alarm(finding: Json, expected: Expectation) -> bool:
    """Whether a straggler finding names somebody it should not.

    Where a rank is at fault no other may be named at all; where none is, an info may name one.
    """
    ranks, at_fault = set(finding["ranks"]), {*expected.ranks, *expected.spared}
    if _above_info(finding):
        return bool(ranks - set(expected.ranks)) or not (ranks or expected.ranks)
    return bool(at_fault and ranks - at_fault)


def _above_info(finding: Json) -> bool:
    return bool(finding["severity"] != "info")


def _cause(finding: Json) -> str:
    cause = finding.get("cause") or "unknown"
    return cause if cause in FOUND else "unknown"


def _describe(finding: Json) -> str:
    words = [finding["rule"], finding["severity"]]
    if finding.get("ranks") and finding["rule"] in STRAGGLER:
        words.append("ranks " + ",".join(map(str, finding["ranks"])))
    if finding.get("cause"):
        words.append(str(finding["cause"]))
    return " ".join(words)


def what_if_error_pct(report: Json, ranks: Sequence[int], healthy_ms: float) -> float | None:
    """How far the predicted step time without those stragglers is from the healthy one; None if not predicted."""
    for row in report.get("what_if") or ():
        predicted: float | None = row["predicted_step_time_ms"]
        names = str(row["change"]).startswith("rank") and sorted(row["ranks"]) == sorted(ranks)
        if names and predicted is not None:
            return 100.0 * (predicted - healthy_ms) / healthy_ms
    return None


def score(truths: Mapping[str, Json], reports: Mapping[str, Json]) -> list[Score]:
    """Score every case that has a truth; a case without a report is a problem of its own."""
    shown = {name for name in (BY_NAME[truth["case"]].healthy for truth in truths.values()) if name}
    healthy = {name: _step_ms(reports[name]) for name in shown if name in reports}
    for name in shown & truths.keys() - healthy.keys():  # its traces stayed behind
        healthy[name] = truths[name]["step_ms"]["profiled"]
    return [score_case(truth, reports.get(name), healthy) for name, truth in truths.items()]


def score_case(truth: Json, report: Json | None, healthy: Mapping[str, float | None]) -> Score:
    """Score one case; `healthy`: median profiled step of the runs without a fault, by name of the case."""
    case = BY_NAME[truth["case"]]
    # From the registry, not from the file: an expectation may be corrected after the runs were made.
    expected = expectation(case, truth["world"], truth["shift"], truth["late_step"])
    wanted = [f"{f.rule} rank {f.rank} {f.cause}" for f in expected.findings] + list(expected.rules)
    text = "; ".join(wanted) or "nothing"
    if report is None:
        pairs = tuple((f.cause, "none") for f in expected.findings)
        return Score(case.name, text, "no report", "", pairs, ("it could not be analysed",))
    findings = report["findings"]
    healthy_ms = healthy.get(case.healthy) if case.healthy else None
    step_ms = _step_ms(report)
    cost_ms = step_ms - healthy_ms if step_ms and healthy_ms else None
    if case.twin and cost_ms is not None and healthy_ms and 100 * cost_ms < LEAST_COST_PCT * healthy_ms:
        expected, text = replace(expected, rules=()), "nothing: it costs next to nothing"
    pair_list, problems = score_findings(expected, findings)
    silent = {c["rule"]: c["reason"] for c in report.get("checks") or () if c["status"] == "not_evaluated"}
    for rule in dict.fromkeys([*(f.rule for f in expected.findings), *expected.rules]):
        if rule in silent:
            problems.append(f"{rule} not evaluated: {silent[rule]}")
    relevant = [f for f in findings if f["rule"] in (*QUIET, *expected.rules)]
    error = None
    whole = len(expected.findings) == len(case.plants)  # with other faults, a cure leaves no healthy run
    if (
        case.comparable
        and healthy_ms
        and whole
        and expected.findings
        and all(f.rule == "TO-S001" for f in expected.findings)
    ):
        error = what_if_error_pct(report, expected.ranks, healthy_ms)
        alone = len(expected.ranks) == 1  # fixing one of two is another question, and may be all that is asked
        if error is None and alone:
            problems.append("no what-if")
        elif error is not None and abs(error) > WHAT_IF_LIMIT_PCT:
            problems.append(f"what-if off by {error:+.0f} %")
    first = findings[0] if findings else None
    return Score(
        case.name, text, "; ".join(_describe(f) for f in relevant) or "nothing", _describe(first) if first else "",
        tuple(pair_list), tuple(problems), impact_ms=next((f["impact_ms"] for f in relevant), None),
        cost_ms=cost_ms, what_if_error_pct=error,
    )  # fmt: skip


def _step_ms(report: Json) -> float | None:
    median: float | None = report["summary"]["step_time_ms"]["median"]
    return median


def confusion(scores: Iterable[Score]) -> dict[str, dict[str, int]]:
    """How often each planted cause was found as which."""
    counts = Counter(pair for score in scores for pair in score.pairs)
    return {planted: {found: counts[planted, found] for found in FOUND} for planted in CAUSES}


def totals(scores: Sequence[Score]) -> dict[str, int]:
    """Cases, those that are right, and over all plants: found, missed, wrong cause, false alarms."""
    pairs = [pair for score in scores for pair in score.pairs]
    planted = [(row, column) for row, column in pairs if row != "none"]
    return {
        "cases": len(scores),
        "ok": sum(score.ok for score in scores),
        "planted": len(planted),
        "found": sum(row == column for row, column in planted),
        "missed": sum(column == "none" for _, column in planted),
        "wrong_cause": sum(column not in ("none", row) for row, column in planted),
        "false_alarms": sum(row == "none" != column for row, column in pairs),
    }


def markdown(scores: Sequence[Score]) -> str:
    """The table of cases, the confusion matrix and the totals."""
    lines = [
        "| case | expected | found | first finding | impact ms | true cost ms | what-if error % | ok |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in scores:
        numbers = [_number(s.impact_ms), _number(s.cost_ms), _number(s.what_if_error_pct, sign=True)]
        verdict = "yes" if s.ok else "**no**: " + "; ".join(s.problems)
        lines.append("| " + " | ".join([s.case, s.expected, s.found, s.first, *numbers, verdict]) + " |")
    lines += ["", "| planted \\ found | " + " | ".join(FOUND) + " |", "|---" * (len(FOUND) + 1) + "|"]
    for planted, row in confusion(scores).items():
        lines.append(f"| {planted} | " + " | ".join(str(row[found]) for found in FOUND) + " |")
    lines += ["", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in totals(scores).items())]
    return "\n".join(lines)


def _number(value: float | None, sign: bool = False) -> str:
    return "–" if value is None else f"{value:+.1f}" if sign else f"{value:.1f}"
