"""doctor.html: one self-contained page of a checkup that works offline."""

from __future__ import annotations

from collections import Counter
from typing import Any

from traceops.core.findings import count_checks
from traceops.core.units import message_text, rate_text
from traceops.doctor.judge_tests import trial_text
from traceops.doctor.model import BAD, Checkup
from traceops.doctor.settings import shell_lines
from traceops.fabric.alike import alike_machines
from traceops.fabric.fabric import Fabric
from traceops.fabric.host_names import same_host
from traceops.fabric.model import Machine
from traceops.fabric.talks import talks
from traceops.machine.look import count_levels
from traceops.render import page
from traceops.render.cells import Cell
from traceops.render.doctor import tables as doctor_tables
from traceops.render.doctor.figures import sweep_figure
from traceops.render.doctor.rows import measured_with, pair_matrices
from traceops.render.doctor.text import (
    broken_trials,
    doctor_verdict,
    fallback_lines,
    heading,
    largest,
    look_finding,
    looks_not_ok,
    other_findings,
    read_text,
    with_text,
)
from traceops.render.document import (
    Block,
    Chart,
    Code,
    Document,
    Drawing,
    Facts,
    Heading,
    Section,
    Span,
    TableBlock,
    bold,
    code,
    soft,
    spans,
    text,
)
from traceops.render.finding_blocks import checks_block, finding_block, not_used
from traceops.render.inspector_table import inspector_table
from traceops.render.report.fabric_html import benchmarks_table, connections_table, nccl_sentence
from traceops.render.topology.figure import Figure, topology_figure
from traceops.render.topology.shape import tried_ways, ways_on
from traceops.render.writers.html import write_html

_MOST_FIGURES = 8  # of machines
_MOST_MATRIX = 32  # devices
_MOST_PROBLEMS = 200
_MOST_TITLE = 80
_COLOURS = "Green: GPUs and NVLink. Blue: network devices. Amber: between NUMA nodes. Red: something is wrong there."
_LATENCY = "Small messages are bound by latency: the curve should rise and level off at what the links give."
_SWEEP = "Lines: bus bandwidth in GB/s over bytes of a message, one for each operation; bandwidth.csv has the numbers"


def render_doctor_html(checkup: Checkup, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it.

    Without a sweep there is no chart, and the page has no script. Everything that came from the machine is escaped.
    Raises ValueError for another `plotlyjs`.
    """
    return write_html(describe(checkup), plotlyjs=plotlyjs)


def describe(checkup: Checkup) -> Document:
    """A checkup as a document."""
    title, read = heading(checkup), read_text(checkup)
    sections = [
        Section("settings", "What to set", _settings(checkup)),
        Section("wrong", "What is wrong", _wrong(checkup)),
        Section("machine", "Machine", _machine(checkup)),
        Section("bandwidth", "Bandwidth", _bandwidth(checkup)),
        Section("trials", "Tests", _trials(checkup)),
        Section("looks", "Looks", _looks(checkup)),
        Section("checks", "Checks", (checks_block(checkup.checks, "What each rule says about this machine"),)),
    ]
    return Document(
        title=f"{title if len(title) <= _MOST_TITLE else title[: _MOST_TITLE - 3] + '...'}: doctor",
        heading=spans(title),
        command="traceops doctor",
        verdict=doctor_verdict(checkup),
        intro=(*([soft(read)] if read else []), Facts(tuple(_facts(checkup)))),
        sections=tuple(section for section in sections if section.blocks),
        footer="the same is in doctor.json, looks.csv, trials.csv, bandwidth.csv and findings.csv beside this page",
        styles=("summary.css", "topology.css", "doctor.css"),
    )


def _settings(checkup: Checkup) -> tuple[Block, ...]:
    """The change to use with its lines for a shell, and what to do where none helps."""
    blocks: list[Block] = []
    settings, fallback = checkup.settings, fallback_lines(checkup)
    lines = () if settings is None else shell_lines(settings.change.set, settings.change.unset)
    if settings is not None and lines:
        blocks += [text(settings.change.does)] if settings.change.does else []
        blocks += [text(bold("It costs:"), f" {settings.change.costs}")] if settings.change.costs else []
        if settings.after_gbs is not None:
            after = f"{rate_text(settings.after_gbs)} GB/s"
            blocks.append(
                text("All-reduce: ", bold(after), " with it; before, it did not work.")
                if settings.before_gbs is None
                else text(f"All-reduce: {rate_text(settings.before_gbs)} GB/s before, ", bold(after), " with it.")
            )
        same = () if fallback else (" ", code("traceops run --settings doctor.json"), " does the same.")
        blocks += [soft("A click selects the whole block.", *same), Code(lines, "Lines for a shell")]
    if fallback:
        said, command = fallback
        blocks += [text(said), Code((command,), "Command")]
    return tuple(blocks)


def _wrong(checkup: Checkup) -> tuple[Block, ...]:
    """Tests, looks and findings that say what is wrong, each once."""
    several = len(checkup.hosts) > 1
    blocks: list[Block] = [
        text(f"{trial_text(trial, checkup.hosts)}.", look="fired-line") for trial in broken_trials(checkup)
    ]
    blocks += [
        finding_block(look_finding(look, look.level, several))
        for look in looks_not_ok(checkup)
        if look.level == "warning" or look.level == "error"
    ]
    blocks += map(finding_block, other_findings(checkup))
    if blocks:
        return tuple(blocks)
    counts = count_checks(checkup.checks)
    said = f"Nothing. {counts.clear} rules are clear and {counts.not_evaluated} were not evaluated; "
    return (text(said, Span("Checks", href="#checks"), " says why."),)


def _machine(checkup: Checkup) -> tuple[Block, ...]:
    """A figure for each make of machine, and what NCCL's log says."""
    figures, blocks = _figures(checkup), list[Block]()
    if figures:
        measured = " Bandwidth is as measured here, on links one way." if _bandwidth(checkup) else ""
        blocks.append(soft(f"{_COLOURS}{measured}"))
        blocks += [Drawing("topology", (figure, f"machine-{number}")) for number, figure in enumerate(figures, 1)]
        if more := max(len(alike_machines(checkup.machines)) - _MOST_FIGURES, 0):
            blocks.append(soft(f"{more} more makes of machine are in doctor.json."))
    else:
        blocks.append(text("Nothing is known of its devices."))
    if checkup.log is not None:
        if said := nccl_sentence(checkup.log):
            blocks += [Heading("NCCL"), text(said)]
        if connections := connections_table(checkup.log):
            blocks.append(TableBlock(connections))
    return tuple(blocks)


def _bandwidth(checkup: Checkup) -> tuple[Block, ...]:
    """The largest message of each operation, the sweep, and the matrices of pairs."""
    table = doctor_tables.bandwidth_table(checkup)
    matrices = [matrix for matrix in pair_matrices(checkup) if 1 < len(matrix.gpus) <= _MOST_MATRIX]
    blocks: list[Block] = [] if table is None else [TableBlock(table, "narrow")]
    if (tests := benchmarks_table(checkup.benchmarks)) is not None:
        blocks.append(TableBlock(tests))
    if checkup.inspector is not None:
        blocks.append(TableBlock(inspector_table(checkup.inspector)))
    figure = sweep_figure(checkup.measured, checkup.references)
    if figure is not None and (blocks or matrices):
        dashed = " Dashed: measured before." if _has_dashes(figure) else ""
        blocks += [Heading("Over message size"), soft(f"{_LATENCY}{dashed}"), Chart("sweep", _SWEEP, figure)]
    for matrix in matrices:
        blocks += [Heading("Between every two GPUs"), TableBlock(doctor_tables.matrix_table(matrix), "narrow matrix")]
    return tuple(blocks)


def _has_dashes(figure: dict[str, Any]) -> bool:
    return any(trace["line"]["dash"] == "dash" for trace in figure["data"])


def _trials(checkup: Checkup) -> tuple[Block, ...]:
    tables = (doctor_tables.attempts_table(checkup), doctor_tables.trials_table(checkup))
    blocks = tuple(TableBlock(table) for table in tables if table is not None and table.rows)
    return blocks if checkup.trials else (*blocks, text("Nothing was tested."))


def _looks(checkup: Checkup) -> tuple[Block, ...]:
    table = doctor_tables.looks_table(checkup)
    problems = checkup.problems[:_MOST_PROBLEMS]
    return (
        TableBlock(table) if table.rows else text("Nothing was looked at."),
        *([not_used(problems)] if problems else []),
    )


def _figures(checkup: Checkup) -> list[Figure]:
    talked = talks(Fabric(checkup.machines, checkup.log))
    networks = () if checkup.log is None else checkup.log.networks
    # The figure is of the ways that NCCL takes without the change.
    unchanged = [trial for trial in checkup.trials if trial.as_it_is and trial.outcome == "ok"]
    before = tuple(row for trial in unchanged for row in trial.measured)
    measured = before if measured_with(checkup).size else checkup.measured
    figures = []
    for machine, alike in alike_machines(checkup.machines)[:_MOST_FIGURES]:
        own = [one for one in networks if machine.host is None or same_host(machine.host, one.host)]
        ways = ways_on(machine, talked, own) or tried_ways(machine, checkup.trials)
        faults = _faults(checkup, machine)
        figures.append(topology_figure(machine, measured, ways, others=len(alike), faults=faults))
    return figures


def _faults(checkup: Checkup, machine: Machine) -> dict[str, str]:
    """What the tests say of single GPUs of this machine, by their labels."""
    if checkup.backend != "nccl":
        return {}
    return {
        f"GPU{gpu}": "fails alone" if look.facts.get("alone") else "fails with others"
        for look in checkup.looks
        if look.area == "tests" and look.level == "error"
        if len(checkup.machines) == 1 or same_host(look.host, machine.host)
        for gpu in look.facts.get("gpus", ())
    }


def _gpus(checkup: Checkup, count: int, names: list[str]) -> Cell:
    """How many of which name; a log alone may not tell."""
    if not checkup.machines:
        return page.word(None)
    return Cell(f"{count} × {', '.join(names)}" if names else str(count))


def _facts(checkup: Checkup) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    gpus = [gpu for machine in checkup.machines for gpu in machine.gpus]
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    levels = count_levels(checkup.looks)
    outcomes = Counter(trial.outcome for trial in checkup.trials)
    wrong = sum(outcomes[outcome] for outcome in BAD)
    hosts = Cell(str(len(checkup.hosts)), ", ".join(checkup.hosts[:60])) if checkup.hosts else page.word(None)
    change = measured_with(checkup)
    with_ = f" {with_text(change)}" if change.size else ""
    facts = [
        ("Hosts", hosts),
        ("GPUs", _gpus(checkup, len(gpus), names)),
        *(
            (one.op, Cell(f"{rate_text(one.busbw_gbs)} GB/s", f"at {message_text(one.bytes)}{with_}"))
            for one in largest(checkup.measured)[:4]
        ),
    ]
    if checkup.looks:
        facts += [
            ("Errors", Cell(str(levels.error), css="bad") if levels.error else Cell("none")),
            ("Warnings", Cell(str(levels.warning) if levels.warning else "none")),
            ("Could not look at", Cell(str(levels.not_evaluated) if levels.not_evaluated else "nothing")),
        ]
    if checkup.trials:
        facts += [
            ("Backend", page.word(checkup.backend)),
            ("Tests", Cell(f"{outcomes['ok']} of {len(checkup.trials)} right", css="bad" if wrong else "")),
            ("Took", Cell(f"{checkup.seconds:.0f} s")),
        ]
    return facts
