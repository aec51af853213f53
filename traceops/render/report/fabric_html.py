"""The section on the fabric in summary.html: machines, how NCCL connected them, and collectives against a reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from traceops.core.units import size_range_text, size_text
from traceops.fabric.fabric import Fabric, hosts_text
from traceops.fabric.json_types import ConnectionJson
from traceops.fabric.model import same_host
from traceops.fabric.nccl import Benchmark, Inspector, NcclLog
from traceops.fabric.talks import talks, way_text
from traceops.fabric.to_json import alike_connections, alike_machines
from traceops.render.cells import NOT_KNOWN, Cell, Table, name, number, size, table_of
from traceops.render.document import Block, Drawing, Heading, Span, TableBlock, Text, fold, items, soft, text
from traceops.render.finding_blocks import not_used
from traceops.render.report.terms import say, say_first
from traceops.render.topology.figure import Figure, topology_figure
from traceops.render.topology.shape import ways_on
from traceops.report.hang_text import inspector_text
from traceops.report.model import Report

_MOST_ROWS = 40


def inspector_table(inspector: Inspector) -> Table:
    """Bus bandwidth a rank, operation and size; what moved most bytes first."""
    rows = sorted(inspector.speeds, key=lambda row: (-row.count * row.most, row.op, row.rank))
    cells = {
        "communicator": lambda row: name(f"{row.name or row.communicator} ({row.ranks} ranks)", 40),
        "size": lambda row: Cell(size_range_text(row.least, row.most)),
    }
    return table_of("inspector", rows, make=cells, most=_MOST_ROWS)


_NOT_CHECKED = replace(NOT_KNOWN, title="not checked")
_MOST_FIGURES = 4  # of makes of machine
_MOST_CONNECTIONS = 24
_MOST_SETTINGS = 40
_MOST_PROBLEMS = 40
_MOST_BENCHMARKS = 40


def fabric_blocks(report: Report) -> tuple[Block, ...]:
    """What is known of the fabric; nothing without evidence of it."""
    if (fabric := report.fabric) is None:
        return ()
    blocks: list[Block] = []
    if figures := _figures(fabric, report.run.device):
        by = say("fabric", "device_by") if any(reference.measured for reference in fabric.references) else ""
        blocks += [Heading("Machine"), soft(say("fabric", "colours", by=by))]
        blocks += [Drawing("topology", (figure, f"machine-{place}")) for place, figure in enumerate(figures, 1)]
        if (more := len(alike_machines(fabric.machines)) - _MOST_FIGURES) > 0:
            blocks.append(soft(say("fabric", "more_machines", more=more)))
    if fabric.log is not None:
        blocks += [Heading("NCCL"), text(nccl_sentence(fabric.log))]
        if connections := connections_table(fabric.log):
            blocks.append(TableBlock(connections))
    if tests := benchmarks_table(fabric.benchmarks):
        blocks.append(TableBlock(tests))
    if fabric.inspector is not None:
        blocks += [soft(f"Read: {inspector_text(fabric.inspector)}."), TableBlock(inspector_table(fabric.inspector))]
    settings: dict[tuple[str, str], Text] = {}  # variables NCCL says were set, each value once
    for one in fabric.log.settings if fabric.log is not None else ():
        place = Span(f"{one.quote.path}:{one.quote.line}", "soft")
        settings.setdefault((one.name, one.value), text(f"{one.name}={one.value} ", place))
    if lines := list(settings.values())[:_MOST_SETTINGS]:
        blocks.append(fold(say("fabric", "settings", count=len(lines)), items(lines, "quotes")))
    if fabric.problems:
        blocks.append(not_used(fabric.problems[:_MOST_PROBLEMS]))
    return tuple(blocks)


def connections_table(log: NcclLog) -> Table | None:
    """How ranks are connected, equal connections counted; None where the log does not tell."""
    if not (rows := alike_connections(log.communicators)):
        return None
    cells = {
        "way": lambda row: Cell(way_text(row.transport, row.detail)),
        "where": _where,
        "gdr": _gdr,
        "quote": lambda row: name(f"{row.quote.path}:{row.quote.line}  {row.quote.text}", 100),
    }
    none = () if any(_gdr(row).text for row in rows) else ("gdr",)
    return table_of("connections", rows, make=cells, without=none, most=_MOST_CONNECTIONS)


def benchmarks_table(benchmarks: Sequence[Benchmark]) -> Table | None:
    """What nccl-tests measured, the slowest first; None without any."""
    if not benchmarks:
        return None
    rows = sorted(benchmarks, key=lambda one: one.best.busbw_gbs)
    cells = {
        "op": lambda one: Cell(one.op or "unknown"),
        "on": lambda one: name(f"{len(one.ranks) or 'unknown'} × {one.gpu or 'GPU'}{hosts_text(one.hosts, 'on')}", 60),
        "gbs": lambda one: number(one.best.busbw_gbs),
        "at": lambda one: size(one.best.bytes),
        "latency": lambda one: Cell(number(one.smallest.time_us, 1).text, size_text(one.smallest.bytes)),
        "wrong": lambda one: _NOT_CHECKED if one.wrong is None else number(one.wrong, 0),
    }
    return table_of("nccl_tests", rows, make=cells, most=_MOST_BENCHMARKS)


def nccl_sentence(log: NcclLog) -> str:
    """Version, communicators, the ways they take and the network, as far as the log tells."""
    versions = ", ".join(log.nccl_versions)  # RCCL's begin with its name
    version = versions if versions.startswith("RCCL") else f"NCCL {versions}".rstrip()
    sizes = Counter(f"{'at least ' if one.at_least else ''}{one.size} ranks" for one in log.communicators)
    groups = ", ".join(
        f"{count} communicator{'' if count == 1 else 's'} of {ranks}" for ranks, count in sizes.most_common(4)
    )
    plugins = {one.plugin: one.devices for one in log.networks}
    each = []
    for plugin, devices in list(plugins.items())[:3]:
        names = ", ".join(device for _, device in devices[:8])
        each.append(say("fabric", "network", plugin=plugin, devices=names))
    return say_first("fabric", "nccl", version=version, groups=groups, networks_used=each)


def _figures(fabric: Fabric, device: Any) -> list[Figure]:
    """One a make of machine; `device`: what the traces call the GPUs, where the machine's sources do not."""
    talked = talks(fabric)
    networks = fabric.log.networks if fabric.log is not None else ()
    figures = []
    for machine, alike in alike_machines(fabric.machines)[:_MOST_FIGURES]:
        measured = [
            one
            for reference in fabric.references
            if machine.host is None or same_host(machine.host, reference.host)
            for one in reference.measured
        ]
        own = [one for one in networks if machine.host is None or same_host(machine.host, one.host)]
        ways = ways_on(machine, talked, own)
        if device and not any(gpu.name for gpu in machine.gpus):
            machine = replace(machine, gpus=tuple(replace(gpu, name=str(device)) for gpu in machine.gpus))
        figures.append(topology_figure(machine, measured, ways, others=len(alike)))
    return figures


def _where(row: ConnectionJson) -> Cell:
    one, other = row.from_host, row.to_host
    if row.within_host:
        return Cell(f"GPUs of {one}" if one else say("fabric", "one_host"))
    if row.within_host is None:
        return NOT_KNOWN
    return Cell(f"{one} and {other}" if one and other else "hosts")


def _gdr(row: ConnectionJson) -> Cell:
    return Cell("yes" if row.gdr else "no") if row.transport in ("NET", "COLLNET") else Cell("")
