"""A checkup on the terminal: what is wrong and what to do first, then what was tried and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, TextIO

from msgspec.structs import astuple

from traceops.core.units import UNKNOWN, rate_text, size_text
from traceops.doctor.model import BAD, Checkup, Trial
from traceops.doctor.settings import shell_lines
from traceops.machine.cluster import NodeKind
from traceops.machine.look import count_levels
from traceops.render.cells import Cell, Column, Table
from traceops.render.doctor.rows import PairMatrix, attempts, pair_matrices
from traceops.render.doctor.text import (
    WORDS,
    alike_looks,
    bandwidth_text,
    benchmark_line,
    changed_text,
    doctor_verdict,
    fallback_lines,
    largest,
    log_text,
    looks_not_ok,
    machine_lines,
    measured_devices,
    nccl_warnings,
    other_findings,
    read_text,
    say,
    trial_devices,
    works_text,
)
from traceops.render.document import Block, Code, TableBlock, soft, text
from traceops.render.finding_blocks import finding_block
from traceops.render.writers.terminal import MARK, write_terminal

_WIDTHS = (40, 110)  # lines longer than that are hard to read in a log
_MOST_HOSTS = 8  # lines of machines
_MOST_MATRIX = 16  # devices
_MOST_WARNINGS = 5
_MOST_SAID = 3  # lines of a failed test's output
_MOST_PROBLEMS = 5
_MOST_BENCHMARKS = 8
_ITEM = (0, 2)  # columns of an item's first line and of the further ones
_INNER = (4, 6)
_LEVEL = {"note": "info", "ok": "clear"}


def print_cluster(kinds: Sequence[NodeKind], file: TextIO) -> None:
    """A row for nodes that are alike; what is not known is a dash."""
    left, sizes = ("partition", "GPU", "fabric"), ("GPU memory", "memory")
    titles = ("partition", "nodes", "free", "away", "GPUs each", "GPU", "GPU memory", "memory", "cores", "fabric")

    def cell(title: str, value: Any) -> str:
        return UNKNOWN if value in (None, "") else size_text(value) if title in sizes else str(value)

    rows = [[cell(title, value) for title, value in zip(titles, astuple(kind), strict=True)] for kind in kinds]
    columns = tuple(_column(title, number=title not in left) for title in titles)
    write_terminal([_table(columns, rows), soft(say("cluster"))], file, widths=_WIDTHS)


def print_doctor(checkup: Checkup, file: TextIO, written: Sequence[Path] = (), *, verbose: bool = False) -> None:
    """The verdict first, then the rest; verbose: also what is all right. `written`: the files, the page first."""
    blocks: list[Block] = []
    for what, joined in machine_lines(checkup.machines)[:_MOST_HOSTS]:
        blocks.append(text(what, look="bold", indent=_ITEM))
        if joined:
            blocks.append(text(joined, indent=_ITEM))
    only_log = checkup.log if not checkup.trials else None
    if only_log is not None:
        blocks.append(text(log_text(only_log), indent=_ITEM))
    verdict = doctor_verdict(checkup)
    blocks.append(text(f"{MARK[verdict.level]} {verdict.sentence}", look=f"level-{verdict.level}", indent=_ITEM))
    if read := read_text(checkup):
        blocks.append(soft(read))
    if only_log is not None:
        quoted = {(one.file, one.line) for finding in checkup.findings for one in finding.evidence}
        warned = [one for one in nccl_warnings(only_log) if (one.path, one.line) not in quoted]
        for quote in warned[:_MOST_WARNINGS]:
            sentence = f"{PurePath(quote.path).name}:{quote.line}: {quote.text}"
            blocks.append(text(sentence, look="soft", indent=(0, 4)))
    blocks += [finding_block(finding) for finding in other_findings(checkup)]
    blocks += _looks(checkup, verbose)
    blocks += _trials(checkup, verbose)
    blocks += _attempts(checkup)
    blocks += _bandwidth(checkup)
    document = next((str(path) for path in written if path.suffix == ".json"), "doctor.json")
    blocks += _settings(checkup, document)
    for path, problem in checkup.problems[:_MOST_PROBLEMS]:
        blocks.append(text(f"Not used: {path}: {problem}", look="level-warning", indent=_ITEM))
    if written:
        names = ", ".join(path.name for path in written[1:])
        blocks.append(Code((f"Report: {written[0]}{f' (beside it {names})' if names else ''}",), look=""))
    write_terminal(blocks, file, widths=_WIDTHS)


def _looks(checkup: Checkup, verbose: bool) -> Iterator[Block]:
    """A line a look that is not ok, with its advice below; what could not be looked at only counted, unless verbose."""
    wrong = looks_not_ok(checkup)
    shown = [look for look in wrong if verbose or look.level != "not_evaluated"]
    shown += [look for look in checkup.looks if look.level == "ok"] if verbose else []
    several = len(checkup.hosts) > 1
    for look, hosts in alike_looks(shown):
        some = several and len(hosts) < len(checkup.hosts)
        where = f" ({', '.join(hosts)})" if some else ""
        level = _LEVEL.get(look.level, look.level)
        rule = f"{look.rule} " if look.rule and look.level != "ok" else ""
        why = f"; {look.why}" if look.why else ""
        sentence = f"{MARK.get(level, '·')} {rule}{look.area}, {look.what}{where}: {look.found}{why}"
        yield text(sentence, look="soft" if level == "not_evaluated" else f"level-{level}", indent=_ITEM)
        if look.advice:
            yield text(f"→ {look.advice}", indent=_INNER)
    levels = count_levels(checkup.looks)
    if checkup.looks:
        unseen, count = levels.not_evaluated or None, len(checkup.looks)
        yield soft(say("looks_right", right=str(levels.ok), all=count, not_evaluated=unseen, brief=not verbose))


def _trials(checkup: Checkup, verbose: bool) -> Iterator[Block]:
    """The tests with the environment as it is; verbose: with each change too."""
    shown = [trial for trial in checkup.trials if verbose or trial.as_it_is]
    if not shown:
        return
    columns: dict[Column, list[str]] = {
        _column("test"): [trial.name for trial in shown],
        _column("outcome"): [trial.outcome.replace("_", " ") for trial in shown],
        _column("on"): [trial_devices(checkup, trial) for trial in shown],
        _column("s", number=True): [f"{trial.seconds:.1f}" for trial in shown],
        _column("of", number=True): [f"{trial.deadline_s:.0f}" for trial in shown],
    }
    if any(not trial.as_it_is for trial in shown):
        columns[_column("changed")] = list(map(_changed, shown))
    if any(trial.transports for trial in shown):
        columns[_column("NCCL took")] = [", ".join(trial.transports) for trial in shown]
    rows = tuple(
        tuple(Cell(said, css="level-error" if trial.outcome in BAD else "") for said in row)
        for trial, row in zip(shown, zip(*columns.values(), strict=True), strict=True)
    )
    yield TableBlock(Table("", tuple(columns), rows))
    for trial in shown:
        yield from _output(trial)


def _changed(trial: Trial) -> str:
    return " ".join([*(f"{name}={value}" for name, value in trial.set.items()), *(f"-{name}" for name in trial.unset)])


def _output(trial: Trial) -> Iterator[Block]:
    """The message of a test that is not ok, and the first lines of its output."""
    if trial.outcome != "ok" and trial.message:
        yield text(f"{trial.name}: {trial.message}", indent=(2, 4))
    if trial.outcome in BAD:
        for line in filter(str.strip, trial.said[:_MOST_SAID]):
            yield text(line, look="soft", indent=_INNER)


def _attempts(checkup: Checkup) -> Iterator[Block]:
    rows = [(one.change, works_text(one), "" if one.gbs is None else rate_text(one.gbs)) for one in attempts(checkup)]
    if rows:
        columns = [Column(name, name, number=False) for name in ("change", "works")]
        yield _table((*columns, Column("gbs", "all-reduce GB/s")), rows)


def _bandwidth(checkup: Checkup) -> Iterator[Block]:
    """The largest message of each operation in a line, the matrix of pairs, and a line a test of others."""
    hosts = {one.host for one in checkup.measured}
    for host in sorted(hosts, key=str):
        if rows := [one for one in largest(checkup.measured) if one.host == host]:
            where = f" on {host}" if len(hosts) > 1 and host else ""
            devices, each = measured_devices(checkup, rows[0]), list(map(bandwidth_text, rows))
            measured = say("bandwidth", devices=devices, measured=each)
            yield text(f"Bus bandwidth{where}{changed_text(checkup)}{measured}", indent=_ITEM)
    for matrix in pair_matrices(checkup):
        if not 1 < len(matrix.gpus) <= _MOST_MATRIX:
            continue
        cells = [
            [matrix.name(one), *("" if one == other else _cell(matrix, (one, other)) for other in matrix.gpus)]
            for one in matrix.gpus
        ]
        first = Column("gpu", f"GB/s on {matrix.host}" if matrix.host else "GB/s", number=False)
        yield _table((first, *(Column(str(gpu), str(gpu)) for gpu in matrix.gpus)), cells)
        if slow := [f"{matrix.name(a)} to {matrix.name(b)}" for a, b in sorted(matrix.slow)[:6]]:
            yield text(say("slow", pairs=slow), indent=_ITEM)
    for one in checkup.benchmarks[:_MOST_BENCHMARKS]:
        yield text(f"{benchmark_line(one)}.", indent=_ITEM)
    if (rest := len(checkup.benchmarks) - _MOST_BENCHMARKS) > 0:
        yield soft(say("more_tests", more=rest))


def _cell(matrix: PairMatrix, pair: tuple[int, int]) -> str:
    if pair in matrix.outcomes:
        return matrix.outcomes[pair]
    gbs = matrix.gbs.get(pair)
    return "–" if gbs is None else rate_text(gbs) + ("!" if pair in matrix.slow else "")


def _settings(checkup: Checkup, document: str) -> Iterator[Block]:
    """The lines to paste into a shell, whole, so that they can be copied."""
    if checkup.settings is not None:
        change = checkup.settings.change
        yield text("")
        if change.does:
            yield text(change.does, indent=_ITEM)
        if change.costs:
            yield text(f"{WORDS['costs']} {change.costs}", indent=_ITEM)
        yield Code(tuple(shell_lines(change.set, change.unset)), look="bold")
        if checkup.fallback is None:
            yield soft(say("same_command", document=document))
    for line in fallback_lines(checkup, document):
        yield text(line)


def _column(name: str, *, number: bool = False) -> Column:
    return Column(name, name, number=number, css="fold")


def _table(columns: tuple[Column, ...], rows: Sequence[Sequence[str]]) -> TableBlock:
    return TableBlock(Table("", columns, tuple(tuple(map(Cell, row)) for row in rows)))
