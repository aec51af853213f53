"""The type of doctor.json (its schema is made from it), and the finding on tests that failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.claims import reason
from traceops.core.documents import READABLE_VERSIONS, SCHEMA_VERSION, FileProblem, SchemaVersion, Tool, file_problems
from traceops.core.errors import InputError
from traceops.core.facts import Fact
from traceops.core.files import NotRegularError, TooLargeError, read_regular
from traceops.core.findings import Check, Evidence, Finding
from traceops.core.rule import Verdict
from traceops.doctor.model import BAD, Checkup, EnvironmentChange, Remedy, Trial
from traceops.fabric.json_types import BenchmarkJson, MachineJson, NcclJson
from traceops.fabric.model import Gpu, Machine, Measured, Path, Reference
from traceops.fabric.nccl import InspectorSpeed
from traceops.fabric.to_json import MOST_ROWS, benchmark_json, machine_json, nccl_json, reference_json
from traceops.machine.look import Look
from traceops.rules.machine.judge import TEST_FAILED, FailedTest


class RemedyJson(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried and worked."""

    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    does: str = ""
    costs: str = ""
    busbw_gbs: float | None = None
    before_gbs: float | None = None


class DoctorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a checkup found."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    tool: Tool = Tool()
    hosts: tuple[str, ...]
    backend: str
    started_at: float | None
    seconds: float | None
    machines: tuple[MachineJson, ...]
    looks: tuple[Look, ...]
    trials: tuple[Trial, ...]
    measured: tuple[Measured, ...]
    remedies: tuple[RemedyJson, ...]
    settings: RemedyJson | None
    fallback: Annotated[int, Meta(ge=1)] | None
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    references: tuple[Reference, ...] = ()
    nccl: NcclJson | None = None
    benchmarks: tuple[BenchmarkJson, ...] = ()
    inspector: tuple[InspectorSpeed, ...] = ()
    problems: tuple[FileProblem, ...] = ()


# What a checkup and its document both hold as it is.
_ALIKE = ("hosts", "backend", "looks", "trials", "measured", "fallback", "findings", "checks")


def document_of(checkup: Checkup) -> DoctorDocument:
    """The checkup as doctor.json holds it."""
    return DoctorDocument(
        **{name: getattr(checkup, name) for name in _ALIKE}, started_at=checkup.started_at, seconds=checkup.seconds,
        machines=tuple(map(machine_json, checkup.machines)), remedies=tuple(map(_remedy_json, checkup.remedies)),
        settings=None if checkup.settings is None else _remedy_json(checkup.settings),
        references=tuple(map(reference_json, checkup.references)),
        nccl=None if checkup.log is None else nccl_json(checkup.log),
        benchmarks=tuple(map(benchmark_json, checkup.benchmarks[:MOST_ROWS])),
        inspector=() if checkup.inspector is None else checkup.inspector.speeds[:MOST_ROWS],
        problems=file_problems(checkup.problems),
    )  # fmt: skip


def _remedy_json(remedy: Remedy) -> RemedyJson:
    change = msgspec.structs.asdict(remedy.change)
    return RemedyJson(**change, busbw_gbs=remedy.after_gbs, before_gbs=remedy.before_gbs)


def _remedy(found: RemedyJson) -> Remedy:
    change = EnvironmentChange(found.set, found.unset, found.does, found.costs)
    return Remedy(change, found.busbw_gbs, found.before_gbs)


def _machine(found: MachineJson) -> Machine:
    gpus = tuple(Gpu(**msgspec.structs.asdict(gpu)) for gpu in found.gpus)
    paths = {one.devices: Path(one.kind, one.count, one.gbs, back_share=one.back_share) for one in found.paths}
    return Machine(found.host, gpus, found.nics, paths, found.sources)


_LISTED = " and ".join(map(str, READABLE_VERSIONS))
_LARGEST_BYTES = 256_000_000
_OWN = (b'"looks"', b'"trials"', b'"remedies"')


class _Version(msgspec.Struct):
    schema_version: int


def read_checkup(path: str | FilePath) -> Checkup | None:
    """The checkup in a doctor.json, without NCCL's log; None where the file is not one. Raises InputError, which names
    the file, for one that is damaged or of another version."""
    try:
        content = read_regular(path, _LARGEST_BYTES)
    except (IsADirectoryError, NotRegularError, TooLargeError, FileNotFoundError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not content.lstrip().startswith(b"{") or not all(name in content for name in _OWN):
        return None
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        found = msgspec.json.decode(content, type=DoctorDocument) if version in READABLE_VERSIONS else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not a doctor.json of traceops doctor: {error}") from error
    if found is None:
        raise InputError(
            f"{path} is a doctor.json of version {version}, this traceops reads {_LISTED}; read it "
            "with the traceops that wrote it"
        )
    # A document leaves out NCCL's log, tests of others and serial numbers of GPUs.
    return Checkup(
        **{name: getattr(found, name) for name in _ALIKE}, started_at=found.started_at or 0.0,
        seconds=found.seconds or 0.0, machines=tuple(map(_machine, found.machines)),
        remedies=tuple(map(_remedy, found.remedies)),
        settings=None if found.settings is None else _remedy(found.settings), references=found.references,
        problems=tuple((one.file, one.problem) for one in found.problems),
    )  # fmt: skip


def judge_tests(trials: Sequence[Trial], hosts: Sequence[str]) -> Verdict:
    """A finding for each test that failed, hung or gave wrong results. hosts: of the checkup."""
    ran = [trial for trial in trials if trial.as_it_is and trial.outcome != "not_evaluated"]
    if not ran:
        return TEST_FAILED.not_evaluated(reason("doctor", "not_tested"))
    findings = []
    for trial in ran:
        if trial.outcome in BAD:
            proof = Evidence(Fact.TRIAL, trial.outcome, subject=trial.name)
            took = Evidence(Fact.TOOK, round(trial.seconds, 1), "s", trial.deadline_s)
            findings.append(TEST_FAILED.finding("error", "high", _failed(trial, hosts), [proof, took]))
    return TEST_FAILED.verdict(*findings, clear=reason("doctor", "all_right", count=len(ran)))


def _failed(trial: Trial, hosts: Sequence[str]) -> FailedTest:
    return FailedTest(
        test=trial.name, outcome=trial.outcome, host=trial.hosts[0] if len(trial.hosts) == 1 < len(hosts) else None,
        after_s=trial.seconds if trial.outcome == "hung" else None, said=trial.message.rstrip("."),
    )  # fmt: skip


def trial_text(trial: Trial, hosts: Sequence[str]) -> str:
    """'all_reduce hung after 30 s: rank 1 never came to it'; of several hosts with the one that it ran on."""
    return _failed(trial, hosts).sentence()
