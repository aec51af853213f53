"""What traceops really says of real runs: the sentences of verdicts and findings, with where each is from."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.verdicts.kinds import Kind, finding_kind, headline_kind
from traceops.compare import CompareConfig, compare
from traceops.compare.capture import read_capture
from traceops.core.errors import InputError, UsageError
from traceops.core.findings import Finding
from traceops.core.words import STEP
from traceops.doctor.checkup import check_files
from traceops.doctor.document import read_checkup
from traceops.hangs.diagnose import diagnose
from traceops.machine.look import Look
from traceops.memory.run_memory import read_run
from traceops.pipeline.analyze import analyze
from traceops.pipeline.observed_run import snapshots_of, with_lines
from traceops.render.comparison.text import VERDICT_LEVEL
from traceops.render.doctor.text import doctor_verdict, look_text, looks_not_ok, other_findings
from traceops.render.report.card import card_of
from traceops.report.hang_text import hang_level, hang_sentence, timed_out
from traceops.report.model import Report
from traceops.rules.explained import judge_diagnosis
from traceops.rules.inputs import Inputs
from traceops.rules.memory import judge as judge_memory
from traceops.rules.regression import REGRESSED

_TRACES = (".trace.json", ".trace.json.gz", ".json.gz")
_ARCHIVES = (".tar.gz", ".tar.xz")
_TEXTS = (".txt", ".log", ".xml", ".out", ".valid")
_REPORT = ".report.gz"
_THREADS = "logs.txt"
_OF_A_FINDING = ("rule", "severity", "confidence", "title", "message", "cause", "advice")
_BY_HAND = ("nccl_tests", "fuzz")  # folders of tests/data that hold no real run
_NO_EVIDENCE = ("README", "LICENSE", "truth.json", "clock.txt")
_OF_A_JOB = {"train.log", "nccl.log"}  # beside each other in a folder: what was saved of one job


@dataclass(frozen=True)
class Said:
    """A sentence as it was said. kind: what it is an example of. run: where, from the root that was given.

    opens: it stands at the top, rather than among the findings.
    """

    kind: Kind
    level: str
    text: str
    run: str
    opens: bool = False


def said_of(name: str, root: Path) -> Iterator[Said]:
    """Everything that is said of the runs below a folder, which the page calls `name`, in order of their paths."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(set(names) - set(_BY_HAND))
        here = Path(folder)
        run = "/".join((name, *here.relative_to(root).parts))
        if any(file.endswith(_TRACES) for file in files) or "run.json" in files:
            yield from _of_run(here, run)
            if "run.json" in files:  # its evidence and logs are a part of it
                names.clear()
            continue
        if _OF_A_JOB.issubset(files):
            yield from _of_hang(here, run)
            continue
        for file in sorted(files):
            path, where = here / file, f"{run}/{file}"
            if file.startswith(_NO_EVIDENCE):
                continue
            if file.endswith(_ARCHIVES):
                yield from _of_archive(path, where)
            elif file.endswith(_REPORT):
                yield from _of_report(path, where)  # and two make a comparison, below
            elif file == _THREADS:
                yield from _of_threads(path)
            elif file == "doctor.json":
                yield from _of_doctor(path, where)
            elif file.endswith(_TEXTS):
                yield from _of_text(path, where)
        yield from _of_comparisons([here / file for file in files if file.endswith(_REPORT)], run)


def _of_comparisons(reports: Sequence[Path], run: str) -> Iterator[Said]:
    """Each pair of reports with one beginning, and all against ``ddp``, as the folder's README has them.

    ``base_1``, ``head_1`` and so on in a folder of their own are several captures a side.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = {}
        for path in sorted(reports):
            kept[path.name.removesuffix(_REPORT)] = plain = Path(folder, f"{path.name}.json")
            plain.write_bytes(gzip.decompress(path.read_bytes()))
        if "base_1" in kept:
            before, after = (
                [path for name, path in kept.items() if name.startswith(side)] for side in ("base_", "head_")
            )
            yield from _of_comparison(before, after, run)
            return
        for (base, one), (head, other) in permutations(kept.items(), 2):
            if (base != "ddp" and base.rpartition("_")[0] != head.rpartition("_")[0]) or (
                "_" in head and base == "ddp"
            ):
                continue
            yield from _of_comparison([one], [other], f"{run}/{base} and {head}")


def _of_comparison(base: Sequence[Path], head: Sequence[Path], where: str) -> Iterator[Said]:
    try:
        before, after = ([read_capture(str(path)) for path in side] for side in (base, head))
        found = compare(before, after, CompareConfig())
    except (InputError, UsageError):  # runs of different kinds, or findings alone
        return
    level = VERDICT_LEVEL[found.verdict]
    yield Said(Kind("compare", found.verdict), level, found.sentence, where, opens=True)
    if found.verdict == "regression":
        yield Said(Kind(REGRESSED.id), level, found.sentence, where)


def _of_run(folder: Path, run: str) -> Iterator[Said]:
    try:
        report = analyze(str(folder))
    except InputError:  # it ended before a step was recorded, or its traces were not kept
        yield from _of_hang(folder, run)
        yield from _of_memory(folder, run)
        return
    yield from _of_analysed(report, run)


def _of_memory(folder: Path, run: str) -> Iterator[Said]:
    """What is said of the memory of a run whose traces were not kept: TO-M… look at what was observed."""
    try:
        uses = read_run(folder).uses
    except InputError:  # nothing of it tells
        return
    uses = with_lines(uses, snapshots_of(str(folder), uses))
    on_gpu = SimpleNamespace(summary=SimpleNamespace(on_gpu=True))
    no_traces = cast(Any, SimpleNamespace(bubbles=(), experts=(), step_ms=0.0, step_words=STEP, ranks=[on_gpu]))
    manifest = json.loads((folder / "run.json").read_text())
    found = cast(Any, SimpleNamespace(manifest=manifest, root=str(folder)))
    for judged in judge_memory(Inputs(found, no_traces, memory=uses)):
        for finding in judged.findings:
            yield _of_finding(finding, run)


def _of_report(path: Path, where: str) -> Iterator[Said]:
    """The findings of a report that was kept in place of its traces, where these are large."""
    if path.parent.name != "faults":
        return
    for told in json.loads(gzip.decompress(path.read_bytes()))["findings"]:
        finding = Finding(**{key: told[key] for key in _OF_A_FINDING}, evidence=())
        yield _of_finding(finding, where)


def _of_analysed(report: Report, run: str) -> Iterator[Said]:
    card = card_of(report)
    yield Said(headline_kind(report, card), card.level, f"{card.headline}.", run, opens=True)
    for finding in report.findings:
        yield _of_finding(finding, run)


def _of_finding(finding: Finding, run: str) -> Said:
    return Said(finding_kind(finding), finding.severity, finding.message, run)


def _of_look(look: Look, where: str) -> Said:
    return Said(Kind(look.rule), "info" if look.level == "note" else look.level, look_text(look), where)


def _of_archive(path: Path, where: str) -> Iterator[Said]:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        inside = list(said_of(where, Path(folder))) or list(_of_hang(Path(folder), where))
        yield from (replace(one, text=one.text.replace(f"{folder}/", "")) for one in inside)


def _of_hang(path: Path, where: str) -> Iterator[Said]:
    try:
        diagnosis = diagnose(str(path))
    except InputError:
        return
    if not (diagnosis.roots or diagnosis.waits or timed_out(diagnosis)):
        return
    level = hang_level(diagnosis)
    yield Said(
        Kind("diagnose", "cause" if diagnosis.roots else "waits"), level, hang_sentence(diagnosis), where, opens=True
    )
    for judged in judge_diagnosis(diagnosis):
        for finding in judged.findings:
            yield _of_finding(finding, where)


def _of_threads(path: Path) -> Iterator[Said]:
    """Logs that people posted, one after the other, each below its name and where it was posted."""
    with tempfile.TemporaryDirectory() as folder:
        for part in path.read_text(encoding="utf-8").split("=== ")[1:]:
            head, _, text = part.partition("\n")
            log = Path(folder, "train.log")
            log.write_text(text, encoding="utf-8")
            yield from _of_hang(log, head.partition(" | ")[2])


def _of_text(path: Path, where: str) -> Iterator[Said]:
    hung = list(_of_hang(path, where))
    yield from hung
    if hung:
        return
    try:
        checkup = check_files([path])
    except InputError:
        return
    head = doctor_verdict(checkup)
    yield Said(Kind("doctor", "files"), head.level, head.sentence, where, opens=True)
    for look in checkup.looks:
        if look.rule and look.level not in ("ok", "not_evaluated"):
            yield _of_look(look, where)
    for finding in other_findings(checkup):
        yield _of_finding(finding, where)


def _of_doctor(path: Path, where: str) -> Iterator[Said]:
    checkup = read_checkup(path)
    if checkup is None:
        return
    head = doctor_verdict(checkup)
    kind = "fallback" if checkup.fallback is not None else "settings" if checkup.settings else "machine"
    yield Said(Kind("doctor", kind), head.level, head.sentence, where, opens=True)
    for look in looks_not_ok(checkup):
        if look.rule and look.level != "not_evaluated":
            yield _of_look(look, where)
    for finding in checkup.findings:
        yield _of_finding(finding, where)
