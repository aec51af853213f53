"""What traceops really says of real runs: the sentences of verdicts and findings, with where each is from."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from verdict_kinds import Kind, finding_kind, headline_kind

from traceops.compare import CompareConfig, compare
from traceops.compare.capture import read_capture
from traceops.core.errors import InputError, UsageError
from traceops.core.findings import Finding
from traceops.doctor.checkup import judge_saved
from traceops.doctor.saved import read_checkup
from traceops.fabric.discover import named_fabric
from traceops.hangs.diagnose import diagnose
from traceops.pipeline.analyze import analyze
from traceops.render.comparison.text import VERDICT_LEVEL
from traceops.render.doctor.text import doctor_verdict, look_text, looks_not_ok
from traceops.render.report.verdict import verdict
from traceops.report.hang_text import hang_level, hang_sentence
from traceops.rules.diagnosis import judge_diagnosis
from traceops.rules.fabric import judge_fabric
from traceops.rules.regression import REGRESSED

_TRACES = (".trace.json", ".trace.json.gz", ".json.gz")
_ARCHIVES = (".tar.gz", ".tar.xz")
_TEXTS = (".txt", ".log", ".xml")
_REPORT = ".report.gz"
_BY_HAND = ("nccl_tests", "fuzz")  # folders of tests/data that hold no real run
_NO_EVIDENCE = ("README", "LICENSE", "truth.json", "clock.txt")


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
        for file in sorted(files):
            path, where = here / file, f"{run}/{file}"
            if file.startswith(_NO_EVIDENCE):
                continue
            if file.endswith(_ARCHIVES):
                yield from _of_archive(path, where)
            elif file.endswith(_REPORT):
                continue  # two make a comparison, below
            elif file == "doctor.json":
                yield from _of_doctor(path, where)
            elif file.endswith(_TEXTS):
                yield from _of_text(path, where)
        yield from _of_comparisons([here / file for file in files if file.endswith(_REPORT)], run)


def _of_comparisons(reports: Sequence[Path], run: str) -> Iterator[Said]:
    """Each pair of reports with one beginning, and all against ``ddp``, as the folder's README has them."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {}
        for path in sorted(reports):
            kept[path.name.removesuffix(_REPORT)] = plain = Path(folder, f"{path.name}.json")
            plain.write_bytes(gzip.decompress(path.read_bytes()))
        for (base, one), (head, other) in permutations(kept.items(), 2):
            if (base != "ddp" and base.rpartition("_")[0] != head.rpartition("_")[0]) or (
                "_" in head and base == "ddp"
            ):
                continue
            try:
                found = compare([read_capture(str(one))], [read_capture(str(other))], CompareConfig())
            except (InputError, UsageError):  # runs of different kinds
                continue
            level = VERDICT_LEVEL[found.verdict]
            where = f"{run}/{base} and {head}"
            yield Said(Kind("compare", found.verdict), level, found.sentence, where, opens=True)
            if found.verdict == "regression":
                yield Said(Kind(REGRESSED.id), level, found.sentence, where)


def _of_run(folder: Path, run: str) -> Iterator[Said]:
    try:
        report = analyze(str(folder))
    except InputError:
        return
    head = verdict(report)
    yield Said(headline_kind(report, head), head.level, head.sentence, run, opens=True)
    for finding in report.findings:
        yield _of_finding(finding, run)


def _of_finding(finding: Finding, run: str) -> Said:
    return Said(finding_kind(finding), finding.severity, finding.message, run)


def _of_archive(path: Path, where: str) -> Iterator[Said]:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        inside = list(said_of(where, Path(folder)))
        yield from inside or _of_hang(Path(folder), where)


def _of_hang(path: Path, where: str) -> Iterator[Said]:
    try:
        diagnosis = diagnose(str(path))
    except InputError:
        return
    if not (diagnosis.roots or diagnosis.waits):
        return
    level = hang_level(diagnosis)
    yield Said(
        Kind("diagnose", "cause" if diagnosis.roots else "waits"),
        level,
        hang_sentence(diagnosis),
        where,
        opens=True,
    )
    for judged in judge_diagnosis(diagnosis):
        for finding in judged.findings:
            yield _of_finding(finding, where)


def _of_text(path: Path, where: str) -> Iterator[Said]:
    hung = list(_of_hang(path, where))
    yield from hung
    if hung:
        return
    try:
        fabric = named_fabric([path])
    except InputError:
        return
    checkup = judge_saved(fabric, judge_fabric(fabric))
    head = doctor_verdict(checkup)
    yield Said(Kind("doctor", "files"), head.level, head.sentence, where, opens=True)
    for finding in checkup.findings:
        yield _of_finding(finding, where)


def _of_doctor(path: Path, where: str) -> Iterator[Said]:
    checkup = read_checkup(path)
    if checkup is None:
        return
    head = doctor_verdict(checkup)
    kind = "settings" if checkup.settings else "fallback" if checkup.fallback else "machine"
    yield Said(Kind("doctor", kind), head.level, head.sentence, where, opens=True)
    for look in looks_not_ok(checkup):
        if look.rule:
            yield Said(Kind(look.rule, ""), look.level, look_text(look), where)
    for finding in checkup.findings:
        yield _of_finding(finding, where)
