"""A checkup as rows: CSV files, bandwidth between every two GPUs, and alternatives with what came of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from traceops.doctor.model import BAD, Checkup, EnvironmentChange, Outcome, Trial
from traceops.fabric.model import Measured
from traceops.render.topology.shape import SLOW_PAIR
from traceops.render.writers.csv import csv_text, findings_csv
from traceops.words.catalogue import texts

DOCTOR_CSV_FILES = ("looks.csv", "trials.csv", "bandwidth.csv", "findings.csv")
_LOOK_COLUMNS = ("host", "area", "what", "found", "level", "why", "advice", "rule")
_TRIAL_COLUMNS = (
    "name", "outcome", "gpus", "seconds", "deadline_s", "set", "unset", "transports", "message", "said",
    "hosts",
)  # fmt: skip
_BANDWIDTH_COLUMNS = ("host", "backend", "op", "gpus", "bytes", "time_us", "busbw_gbs", "set", "unset")


class PairMatrix(Struct, frozen=True):
    """GB/s from one GPU to another, of the largest message, and what became of pairs that were tested. gbs: by (from,
    to); a pair measured once counts both ways. outcomes: of pairs that did not come out right. slow: far below the
    median pair; none among ranks of one CPU, whose pairs differ by what else runs there."""

    host: str | None
    gpus: tuple[int, ...]
    gbs: dict[tuple[int, int], float]
    outcomes: dict[tuple[int, int], Outcome]
    slow: frozenset[tuple[int, int]]
    kind: str = "GPU"

    def name(self, number: int) -> str:
        """What one of them is called: a rank, where no GPUs were measured."""
        return f"{self.kind}{number}"


class Attempt(Struct, frozen=True):
    """One change that was tried. gbs: its largest all-reduce, None where not measured or it did not work."""

    change: str
    works: bool
    gbs: float | None
    said: str
    chosen: bool


def render_doctor_csv(checkup: Checkup) -> dict[str, str]:
    """File name -> text. A value that is not known is an empty cell, never 0."""
    trials = [{**asdict(trial), "set": _pairs(trial.set), "said": " | ".join(trial.said)} for trial in checkup.trials]
    tried = {one for trial in checkup.trials for one in trial.measured}
    measured: list[dict[str, object]] = [asdict(one) for one in checkup.measured if one not in tried]
    measured += [
        {**asdict(one), "set": _pairs(trial.set), "unset": trial.unset}
        for trial in checkup.trials
        for one in trial.measured
    ]
    return {
        "looks.csv": csv_text(list(map(asdict, checkup.looks)), _LOOK_COLUMNS),
        "trials.csv": csv_text(trials, _TRIAL_COLUMNS),
        "bandwidth.csv": csv_text(measured, _BANDWIDTH_COLUMNS),
        "findings.csv": findings_csv(checkup.findings),
    }


def measured_with(checkup: Checkup) -> EnvironmentChange:
    """The change that the checkup's bandwidths were measured with; none where that was the environment as it is."""
    rows = set(checkup.measured)
    for trial in checkup.trials:
        if not trial.as_it_is and not rows.isdisjoint(trial.measured):
            return EnvironmentChange(trial.set, trial.unset)
    return EnvironmentChange()


def change_text(change: EnvironmentChange) -> str:
    """'NCCL_P2P_DISABLE=1 and without NCCL_ALGO'."""
    parts = [f"{name}={value}" for name, value in change.set.items()]
    parts += [f"without {name}" for name in change.unset]
    return " and ".join(parts) if parts else texts("views", "doctor")["environment"]


def pair_matrices(checkup: Checkup) -> list[PairMatrix]:
    """One a host on which pairs were measured or tested; none for a single pair that came out right."""
    hosts = dict.fromkeys(one.host for one in checkup.measured if _of_pair(one))
    outcomes = _pair_outcomes(checkup.trials)
    if not hosts and outcomes:
        hosts = dict.fromkeys(checkup.hosts[:1])
    made = []
    for host in hosts:
        pairs = [one for one in checkup.measured if _of_pair(one) and one.host == host]
        pairs.sort(key=lambda one: -one.bytes)
        one_way = {(one.gpus[0], one.gpus[1]): one.busbw_gbs for one in reversed(pairs)}  # the largest message counts
        gbs = {(b, a): value for (a, b), value in one_way.items()} | one_way
        wrong = outcomes if len(hosts) == 1 else {}
        gpus = tuple(sorted({gpu for pair in (*gbs, *wrong) for gpu in pair}))
        middle = median(gbs.values()) if gbs else 0.0
        on_gpus = checkup.backend == "nccl"
        limit = SLOW_PAIR * middle if on_gpus or host is None else 0.0
        slow = frozenset(pair for pair, value in gbs.items() if value < limit)
        kind = "GPU" if on_gpus else "rank "
        made.append(PairMatrix(host, gpus, gbs, wrong, slow, kind))
    return made


def attempts(checkup: Checkup) -> list[Attempt]:
    """Changes that were tried, in order, the environment as it is first."""
    chosen = None if checkup.settings is None else checkup.settings.change
    gbs = {change_text(remedy.change): remedy.after_gbs for remedy in checkup.remedies}
    gbs |= {change_text(EnvironmentChange()): remedy.before_gbs for remedy in checkup.remedies[:1]}
    most = max((len(trial.gpus) for trial in checkup.trials), default=0)
    trials: dict[tuple[Any, ...], list[Trial]] = defaultdict(list)
    for trial in checkup.trials:
        if not len(trial.gpus) == 1 < most:  # one device alone shows nothing of how several get on
            trials[tuple(trial.set.items()), trial.unset].append(trial)
    if len(trials) < 2:
        return []
    made = []
    for (changed, unset), own in trials.items():
        text = change_text(EnvironmentChange(dict(changed), unset))
        failed = [trial for trial in own if trial.outcome not in ("ok", "not_evaluated")]
        measured = [one for trial in own for one in trial.measured if one.op == "all_reduce"]
        best = max(measured, key=lambda one: (len(one.gpus), one.bytes), default=None)
        is_chosen = chosen is not None and (dict(changed), unset) == (chosen.set, chosen.unset)
        sentence = "; ".join(f"{t.name} {t.outcome}{': ' + t.message if t.message else ''}" for t in failed)
        known = gbs.get(text, None if best is None else best.busbw_gbs)
        works = {"ok"} <= {trial.outcome for trial in own} <= {"ok", "not_evaluated"}
        made.append(Attempt(text, works, known if works else None, sentence, is_chosen))
    return made


def _pair_outcomes(trials: Sequence[Trial]) -> dict[tuple[int, int], Outcome]:
    """Pairs that did not come out right with the environment as it is, in both directions."""
    found: dict[tuple[int, int], Outcome] = {}
    for state in (state for trial in trials if trial.as_it_is for state in trial.pairs):
        if state.outcome in BAD:
            one, other = state.gpus
            found[one, other] = found[other, one] = state.outcome
    return found


def _of_pair(one: Measured) -> bool:
    return one.op == "send_recv" and len(one.gpus) == 2


def _pairs(variables: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())
