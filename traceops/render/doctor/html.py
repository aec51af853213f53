"""The files of a checkup, and doctor.html among them: one self-contained page that works offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from traceops.core.documents import json_text
from traceops.core.files import FORMATS
from traceops.core.findings import count_checks
from traceops.core.units import message_text, rate_text
from traceops.doctor.document import document_of, trial_text
from traceops.doctor.model import BAD, Checkup, EnvironmentChange, Outcome, Trial
from traceops.doctor.settings import shell_lines
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Machine, Measured, Reference, same_host
from traceops.fabric.talks import talks
from traceops.fabric.to_json import alike_machines
from traceops.machine.look import Level, Look, count_levels
from traceops.render.cells import Cell, Column, Table, name, number, table_of, word
from traceops.render.doctor.rows import (
    DOCTOR_CSV_FILES,
    Attempt,
    PairMatrix,
    attempts,
    change_text,
    measured_with,
    pair_matrices,
    render_doctor_csv,
)
from traceops.render.doctor.text import (
    WORDS,
    alike_looks,
    broken_trials,
    changed_text,
    doctor_verdict,
    fallback_lines,
    heading,
    largest,
    look_finding,
    looks_not_ok,
    measured_devices,
    other_findings,
    read_text,
    say,
    trial_devices,
    works_text,
    wrong_enough,
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
from traceops.render.files import write_files
from traceops.render.finding_blocks import checks_block, finding_block, not_used
from traceops.render.report.fabric_html import benchmarks_table, connections_table, inspector_table, nccl_sentence
from traceops.render.report.figures import Figure, axis, escaped, laid_out, line
from traceops.render.report.terms import COLUMNS
from traceops.render.topology.figure import Figure as TopologyFigure
from traceops.render.topology.figure import topology_figure
from traceops.render.topology.shape import tried_ways, ways_on
from traceops.render.writers.html import write_html

# Plotly figure of a checkup: bus bandwidth over message size.

_COLOURS = {"all_reduce": "#0072B2", "all_gather": "#D55E00", "reduce_scatter": "#009E73", "send_recv": "#CC79A7"}
_OTHER = "#7A7A7A"
_DASHES = ("solid", "dot", "dashdot", "longdash")  # hosts, or groups of devices, one after the other
_MOST_TICKS = 10


def sweep_figure(measured: Sequence[Measured], references: Sequence[Reference] = ()) -> Figure | None:
    """Bus bandwidth in GB/s over bytes of a message, a line an operation, with dashed lines of earlier references.
    Lines need two sizes at least; None without any."""
    if not (lines := _lines(measured)):
        return None
    whose = list(dict.fromkeys((gpus, host) for _, gpus, host in lines))
    traces = []
    for (op, gpus, host), rows in lines.items():
        on = f" on {escaped(host, 40)}" if host else ""
        name = f"{escaped(op, 40)}, {len(gpus)} devices{on}" if len(whose) > 1 else escaped(op, 40)
        traces.append(_trace(rows, name, _DASHES[whose.index((gpus, host)) % len(_DASHES)]))
    for reference in references:
        for (op, gpus, _), rows in _lines(reference.measured).items():
            now = lines.get((op, gpus, reference.host)) or lines.get((op, gpus, None))
            if now is not None and _points(now) != _points(rows):
                name = say("earlier", op=escaped(op, 40), host=escaped(reference.host, 40))
                traces.append(_trace(rows, name, "dash", faint=True))
    sizes = sorted({one.bytes for rows in lines.values() for one in rows})
    ticks = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    return laid_out(
        traces, 14, pixels=20,
        xaxis=axis("bytes of a message", type="log", tickvals=ticks, ticktext=list(map(message_text, ticks))),
        yaxis=axis("bus bandwidth, GB/s", rangemode="tozero", automargin=True), grid_y=True, showlegend=True,
        legend={"orientation": "h", "y": -0.28},
    )  # fmt: skip


def _lines(measured: Sequence[Measured]) -> dict[tuple[str, tuple[int, ...], str | None], list[Measured]]:
    """Collectives by operation, devices and host in order of size; pairs are in the matrix."""
    lines: dict[tuple[str, tuple[int, ...], str | None], list[Measured]] = {}
    for one in measured:
        if one.op != "send_recv":
            lines.setdefault((one.op, one.gpus, one.host), []).append(one)
    return {
        key: sorted(rows, key=lambda one: one.bytes)
        for key, rows in lines.items()
        if len({one.bytes for one in rows}) > 1
    }


def _points(rows: Sequence[Measured]) -> list[tuple[int, float]]:
    return [(one.bytes, one.busbw_gbs) for one in rows]


def _trace(rows: Sequence[Measured], name: str, dash: str, *, faint: bool = False) -> dict[str, Any]:
    sizes, rates = [one.bytes for one in rows], [one.busbw_gbs for one in rows]
    made = line(
        name, sizes, rates, _COLOURS.get(rows[0].op, _OTHER), 1.5 if faint else 2.5, opacity=0.6 if faint else 1.0,
        text=[f"{message_text(one.bytes)}, {one.time_us:.1f} µs" for one in rows],
        hovertemplate=name + WORDS["sweep_hover"],
    )  # fmt: skip
    made["line"]["dash"] = dash
    return made if faint else made | {"mode": "lines+markers"}


# The tables of a checkup on the page: what was looked at and tried, bandwidth, and the matrix of pairs.

_WORD = 160  # characters before the middle of a text is left out
_CSS: dict[Level | Outcome, str] = {
    "ok": "status clear", "note": "status note", "warning": "status warned", "error": "status fired",
    "wrong": "status fired", "failed": "status fired", "hung": "status fired",
    "not_evaluated": "status not_evaluated",
}  # fmt: skip
_MOST_WHY = 2000
_HEAT = "0, 114, 178"


def matrix_table(matrix: PairMatrix) -> Table:
    """Send and receive between every two devices, GB/s: the darker the faster; far below the others is marked."""
    most = max(matrix.gbs.values(), default=0.0)

    def column(gpu: int) -> Column:
        return Column(str(gpu), matrix.name(gpu), make=lambda row: _pair(matrix, row, gpu, most))

    on = f" on {matrix.host}" if matrix.host else ""
    first: dict[str, Callable[[int], Cell]] = {"gpu": lambda row: Cell(matrix.name(row))}
    return table_of("pairs", matrix.gpus, make=first, columns=[column(gpu) for gpu in matrix.gpus], facts={"on": on})


def _pair(matrix: PairMatrix, one: int, other: int, most: float) -> Cell:
    """One cell of the matrix: what went wrong with a pair, else how fast it is."""
    if one == other:
        return Cell("", css="self")
    pair = one, other
    if pair in matrix.outcomes:
        outcome = matrix.outcomes[pair]
        return Cell(outcome, f"{matrix.name(one)} and {matrix.name(other)}: {outcome}", "status fired")
    if (gbs := matrix.gbs.get(pair)) is None:
        return number(None)
    title = f"{matrix.name(one)} to {matrix.name(other)}: {gbs:.4g} GB/s"
    if pair in matrix.slow:
        return Cell(rate_text(gbs), f"{title}{WORDS['slow_pair']}", "worst")
    share = gbs / most if most else 0.0  # a file may say that nothing was moved
    return Cell(rate_text(gbs), title, "heat", colour=f"rgba({_HEAT}, {0.06 + 0.44 * share:.3f})")


def _state(state: Level | Outcome) -> Cell:
    return Cell(state.replace("_", " "), css=_CSS[state])


def _text(text: str, limit: int = _WORD) -> Cell:
    return Cell(text) if len(text) <= limit else name(text, limit)


_MOST_FIGURES = 8  # of machines
_MOST_MATRIX = 32  # devices
_MOST_PROBLEMS = 200
_MOST_TITLE = 80


def render_doctor_html(checkup: Checkup, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it. Without a sweep there is no chart, and the page has no
    script. Everything that came from the machine is escaped. Raises ValueError for another `plotlyjs`."""
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
        Section("checks", "Checks", (checks_block(checkup.checks, WORDS["rules"]),)),
    ]
    return Document(
        title=f"{title if len(title) <= _MOST_TITLE else title[: _MOST_TITLE - 3] + '...'}: doctor",
        heading=spans(title), command="traceops doctor", verdict=doctor_verdict(checkup),
        intro=(*([soft(read)] if read else []), Facts(tuple(_facts(checkup)))),
        sections=tuple(section for section in sections if section.blocks), footer=WORDS["footer"],
        styles=("summary.css", "topology.css", "doctor.css"),
    )  # fmt: skip


def _settings(checkup: Checkup) -> tuple[Block, ...]:
    """The change to use with its lines for a shell, and what to do where none helps."""
    blocks: list[Block] = []
    settings, fallback = checkup.settings, fallback_lines(checkup)
    lines = () if settings is None else shell_lines(settings.change.set, settings.change.unset)
    if settings is not None and lines:
        blocks += [text(settings.change.does)] if settings.change.does else []
        blocks += [text(bold(WORDS["costs"]), f" {settings.change.costs}")] if settings.change.costs else []
        if settings.after_gbs is not None:
            after = f"{rate_text(settings.after_gbs)} GB/s"
            blocks.append(
                text("All-reduce: ", bold(after), f" {WORDS['newly']}")
                if settings.before_gbs is None
                else text(f"{say('before', gbs=rate_text(settings.before_gbs))} ", bold(after), " with it.")
            )
        same = () if fallback else (" ", code("traceops run --settings doctor.json"), f" {WORDS['same']}")
        blocks += [soft(WORDS["copied"], *same), Code(lines, WORDS["shell"])]
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
        finding_block(look_finding(look, "error" if look.level == "error" else "warning", several))
        for look in wrong_enough(checkup)
    ]
    blocks += map(finding_block, other_findings(checkup))
    if blocks:
        return tuple(blocks)
    counts = count_checks(checkup.checks)
    sentence = say("nothing_wrong", clear=str(counts.clear), not_evaluated=str(counts.not_evaluated))
    return (text(f"{sentence} ", Span("Checks", href="#checks"), " says why."),)


def _machine(checkup: Checkup) -> tuple[Block, ...]:
    """A figure for each make of machine, and what NCCL's log says."""
    figures, blocks = _figures(checkup), list[Block]()
    if figures:
        with_bandwidths = [WORDS["measured"]] if _bandwidth(checkup) else []
        blocks.append(soft(" ".join([WORDS["states"], *with_bandwidths])))
        blocks += [Drawing("topology", (figure, f"machine-{number}")) for number, figure in enumerate(figures, 1)]
        if more := max(len(alike_machines(checkup.machines)) - _MOST_FIGURES, 0):
            blocks.append(soft(say("makes", more=more)))
    else:
        blocks.append(text(WORDS["no_devices"]))
    if checkup.log is not None:
        if sentence := nccl_sentence(checkup.log):
            blocks += [Heading("NCCL"), text(sentence)]
        if connections := connections_table(checkup.log):
            blocks.append(TableBlock(connections))
    return tuple(blocks)


def _bandwidth(checkup: Checkup) -> tuple[Block, ...]:
    """The largest message of each operation, the sweep, and the matrices of pairs."""
    matrices = [matrix for matrix in pair_matrices(checkup) if 1 < len(matrix.gpus) <= _MOST_MATRIX]
    blocks: list[Block] = []
    if rows := largest(checkup.measured):
        cells: dict[str, Callable[[Measured], Cell]] = {
            "gpus": lambda row: Cell(measured_devices(checkup, row), css="nowrap"),
            "bytes": lambda row: Cell(message_text(row.bytes), f"{row.bytes:,} bytes"),
            "busbw_gbs": lambda row: number(row.busbw_gbs),
        }
        facts = {"with": changed_text(checkup), "busbw": COLUMNS["Bus bandwidth"]}
        alone = () if len({row.host for row in rows}) > 1 else ("host",)
        blocks.append(TableBlock(table_of("bandwidth", rows, make=cells, facts=facts, without=alone), "narrow"))
    if (tests := benchmarks_table(checkup.benchmarks)) is not None:
        blocks.append(TableBlock(tests))
    if checkup.inspector is not None:
        blocks.append(TableBlock(inspector_table(checkup.inspector)))
    if (figure := sweep_figure(checkup.measured, checkup.references)) is not None and (blocks or matrices):
        dashed = any(trace["line"]["dash"] == "dash" for trace in figure["data"])
        about = " ".join([WORDS["latency"], *([WORDS["dashed"]] if dashed else [])])
        blocks += [Heading("Over message size"), soft(about), Chart("sweep", WORDS["sweep"], figure)]
    for matrix in matrices:
        blocks += [Heading(WORDS["pairs"]), TableBlock(matrix_table(matrix), "narrow matrix")]
    return tuple(blocks)


def _trials(checkup: Checkup) -> tuple[Block, ...]:
    """What was tried where something failed or was slow, and every test in child processes as it ran."""
    if not checkup.trials:
        return (text(WORDS["no_trials"]),)
    tried: dict[str, Callable[[Attempt], Cell]] = {
        "change": lambda row: _text(row.change),
        "works": lambda row: Cell(works_text(row), css="status clear" if row.works else "status fired"),
        "gbs": lambda row: number(row.gbs),
        "said": lambda row: _text(row.said),
    }
    cells: dict[str, Callable[[Trial], Cell]] = {
        "name": lambda trial: Cell(trial.name),
        "outcome": lambda trial: _state(trial.outcome),
        "gpus": lambda trial: Cell(trial_devices(checkup, trial), css="nowrap"),
        "changed": lambda trial: Cell("" if trial.as_it_is else change_text(EnvironmentChange(trial.set, trial.unset))),
        "transports": lambda trial: Cell(", ".join(trial.transports)),
        "message": _message,
    }
    unchanged = ("changed",) if all(trial.as_it_is for trial in checkup.trials) else ()
    trials = TableBlock(table_of("trials", checkup.trials, make=cells, without=unchanged))
    rows = attempts(checkup)
    return (TableBlock(table_of("attempts", rows, make=tried)), trials) if rows else (trials,)


def _message(trial: Trial) -> Cell:
    """Its message; what it said of it unfolds."""
    if not trial.said:
        return _text(trial.message)
    return Cell(trial.message or trial.said[0][:_WORD], "what it said", "said", "\n".join(trial.said))


def _looks(checkup: Checkup) -> tuple[Block, ...]:
    """Everything that was looked at, the worst first; equal looks of several hosts in one row."""
    order = [*looks_not_ok(checkup), *(look for look in checkup.looks if look.level == "ok")]
    rows = [
        {"look": look, "hosts": hosts, "rule": "" if look.level == "ok" else look.rule}
        for look, hosts in alike_looks(order)
    ]
    cells: dict[str, Callable[[Any], Cell]] = {
        "level": lambda row: _state(row["look"].level),
        "hosts": lambda row: Cell(
            row["hosts"][0] if len(row["hosts"]) == 1 else f"{len(row['hosts'])} hosts", ", ".join(row["hosts"][:60])
        ),
        "rule": lambda row: Cell(row["rule"], css="nowrap"),
        "area": lambda row: Cell(row["look"].area),
        "what": lambda row: _text(row["look"].what),
        "found": lambda row: _text(row["look"].found),
        "why": lambda row: _why(row["look"]),
    }
    table = table_of("looks", rows, make=cells, without=() if len(checkup.hosts) > 1 else ("hosts",))
    problems = checkup.problems[:_MOST_PROBLEMS]
    return (TableBlock(table) if table.rows else text(WORDS["no_looks"]), *([not_used(problems)] if problems else []))


def _why(look: Look) -> Cell:
    why = f"{look.why}." if look.why and look.why[-1] not in ".:!?" else look.why
    return Cell(f"{why} {look.advice}".strip()[:_MOST_WHY], css="why")  # advice may be a command: nothing behind it


def _figures(checkup: Checkup) -> list[TopologyFigure]:
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


def _facts(checkup: Checkup) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    gpus = [gpu for machine in checkup.machines for gpu in machine.gpus]
    names = sorted({gpu.name for gpu in gpus if gpu.name})
    levels = count_levels(checkup.looks)
    outcomes = Counter(trial.outcome for trial in checkup.trials)
    wrong = sum(outcomes[outcome] for outcome in BAD)
    hosts = Cell(str(len(checkup.hosts)), ", ".join(checkup.hosts[:60])) if checkup.hosts else word(None)
    count = f"{len(gpus)} × {', '.join(names)}" if names else str(len(gpus))
    facts = [
        ("Hosts", hosts),
        ("GPUs", Cell(count) if checkup.machines else word(None)),  # a log alone may not have them
        *(
            (one.op, Cell(f"{rate_text(one.busbw_gbs)} GB/s", f"at {message_text(one.bytes)}{changed_text(checkup)}"))
            for one in largest(checkup.measured)[:4]
        ),
    ]
    if checkup.looks:
        facts += [
            ("Errors", Cell(str(levels.error), css="bad") if levels.error else Cell("none")),
            ("Warnings", Cell(str(levels.warning or "none"))),
            ("Not checked", Cell(str(levels.not_evaluated or "nothing"))),
        ]
    if checkup.trials:
        facts += [
            ("Backend", word(checkup.backend)),
            ("Tests", Cell(say("took", ok=str(outcomes["ok"]), count=len(checkup.trials)), css="bad" if wrong else "")),
            ("Took", Cell(f"{checkup.seconds:.0f} s")),
        ]
    return facts


def write_doctor(checkup: Checkup, folder: Path, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write doctor.html, doctor.json and the CSV files into `folder`, each whole or not at all; the page comes first.
    Files of an earlier checkup in the folder that this one does not have are removed, others are left. Raises
    InputError where the folder cannot be written to."""
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        contents["doctor.html"] = render_doctor_html(checkup)
    if "json" in formats:
        contents["doctor.json"] = json_text(document_of(checkup))
    if "csv" in formats:
        contents |= render_doctor_csv(checkup)
    return write_files(contents, {"doctor.html", "doctor.json", *DOCTOR_CSV_FILES}, folder)
