"""doctor.html: one self-contained page of a checkup that works offline."""

from __future__ import annotations

from collections import Counter
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.core.units import message_text, rate_text
from traceops.doctor.judge_tests import trial_text
from traceops.doctor.model import BAD, Checkup
from traceops.doctor.settings import shell_lines
from traceops.fabric.alike import alike_machines
from traceops.fabric.fabric import Fabric
from traceops.fabric.host_names import same_host
from traceops.fabric.model import Machine
from traceops.fabric.talks import talks
from traceops.render import page
from traceops.render.cells import Cell, number
from traceops.render.doctor import tables as doctor_tables
from traceops.render.doctor.figures import sweep_figure
from traceops.render.doctor.rows import measured_with, pair_matrices
from traceops.render.doctor.text import (
    broken_trials,
    change_text,
    doctor_verdict,
    fallback_lines,
    heading,
    largest,
    looks_not_ok,
    other_findings,
    read_text,
    with_text,
)
from traceops.render.report import detail_tables
from traceops.render.report.fabric_html import connections_table, nccl_sentence
from traceops.render.report.terms import COLUMNS
from traceops.render.topology.figure import Figure, topology_figure
from traceops.render.topology.shape import tried_ways, ways_on
from traceops.rules.registry import RULES

_MOST_FIGURES = 8  # of machines
_MOST_MATRIX = 32  # devices
_STYLES = ("summary.css", "topology.css", "doctor.css")


def render_doctor_html(checkup: Checkup, *, plotlyjs: str = "inline") -> bytes:
    """The page in UTF-8. `plotlyjs` is 'inline' (works offline, about 1.6 MB) or 'cdn' (small, needs the network).

    Without a sweep there is no chart, and the page has no script. Everything that came from the machine is escaped.
    Raises ValueError for another `plotlyjs`.
    """
    figure = sweep_figure(checkup.measured, checkup.references)
    content = {**_content(checkup), "dashed": figure is not None and _has_dashes(figure)}
    if figure is not None:
        return page.chart_page("doctor.html.j2", _STYLES, {"sweep": figure}, plotlyjs, content)
    return page.plain_page("doctor.html.j2", _STYLES, content)


def _has_dashes(figure: dict[str, Any]) -> bool:
    return any(trace["line"]["dash"] == "dash" for trace in figure["data"])


def _content(checkup: Checkup) -> dict[str, Any]:
    settings = checkup.settings
    return {
        "checkup": checkup,
        "heading": heading(checkup),
        "verdict": doctor_verdict(checkup),
        "read": read_text(checkup),
        "facts": _facts(checkup),
        "wrong": [f"{trial_text(trial, checkup.hosts)}." for trial in broken_trials(checkup)],
        "looks": [look for look in looks_not_ok(checkup) if look.level in ("warning", "error")],
        "findings": [(finding, detail_tables.evidence_table(finding)) for finding in other_findings(checkup)],
        "export": [] if settings is None else shell_lines(settings.change.set, settings.change.unset),
        "change": "" if settings is None else change_text(settings.change),
        "before": "" if settings is None or settings.before_gbs is None else rate_text(settings.before_gbs),
        "after": "" if settings is None or settings.after_gbs is None else rate_text(settings.after_gbs),
        "fallback": fallback_lines(checkup),
        "figures": _figures(checkup),
        "nccl": "" if checkup.log is None else nccl_sentence(checkup.log),
        "connections": None if checkup.log is None else connections_table(checkup.log),
        "more_machines": max(len(alike_machines(checkup.machines)) - _MOST_FIGURES, 0),
        "matrices": [
            doctor_tables.matrix_table(matrix)
            for matrix in pair_matrices(checkup)
            if 1 < len(matrix.gpus) <= _MOST_MATRIX
        ],
        "looks_table": doctor_tables.looks_table(checkup),
        "trials_table": doctor_tables.trials_table(checkup),
        "attempts_table": doctor_tables.attempts_table(checkup),
        "bandwidth_table": doctor_tables.bandwidth_table(checkup),
        "checks": Counter(check.status for check in checkup.checks),
        "rule_titles": {rule.id: rule.title for rule in RULES},
        "definitions": COLUMNS,
        "number": number,
        "ranks_text": ranks_text,
    }


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
    levels = Counter(look.level for look in checkup.looks)
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
            ("Errors", Cell(str(levels["error"]), css="bad") if levels["error"] else Cell("none")),
            ("Warnings", Cell(str(levels["warning"]) if levels["warning"] else "none")),
            (
                "Could not look at",
                Cell(str(levels["not_evaluated"]) if levels["not_evaluated"] else "nothing"),
            ),
        ]
    if checkup.trials:
        facts += [
            ("Backend", page.word(checkup.backend)),
            ("Tests", Cell(f"{outcomes['ok']} of {len(checkup.trials)} right", css="bad" if wrong else "")),
            ("Took", Cell(f"{checkup.seconds:.0f} s")),
        ]
    return facts
