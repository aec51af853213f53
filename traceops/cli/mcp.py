"""`traceops mcp`: the answers of `traceops show` as tools of a Model Context Protocol server, read-only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from traceops.answers.answering import answer
from traceops.answers.asked import BY_NAME, Asked
from traceops.answers.opening import Recent, opened_live
from traceops.core.documents import json_text
from traceops.core.errors import TraceopsError, UsageError
from traceops.core.redaction import redact_text
from traceops.core.text import printable
from traceops.version import __version__

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations
    from pydantic import Field
except ImportError as error:
    raise UsageError(
        f"traceops mcp needs the SDK of the Model Context Protocol ({error}): pip install 'mcp>=2' "
        "(traceops's extra [mcp])"
    ) from error

_INSTRUCTIONS = """Answers about profiled multi-GPU PyTorch runs: which rank makes the others wait, why, where a step
goes, and what a change would save. Begin with `summary`; it lists what else can be asked. `run` is a path on this
machine: a run folder, a folder of traces, one trace, a report folder or a report.json. Nothing is written.
Times are in ms per step unless the name says more: names end in their unit (_ms, _us, _pct, _bytes, _gbs = 1e9 bytes
per second). null means unknown, never zero. If run.unit is "window", no steps were found and a step is the whole
recorded window."""

Run = Annotated[str, Field(description="Path of a run folder, traces, a report folder or a report.json.")]
Ranks = Annotated[list[int], Field(description="Only these ranks; all if empty.")]
Steps = Annotated[list[int], Field(description="Only these steps; all if empty.")]
Group = Annotated[str, Field(description="A group's name, a part of it, or its role: data, tensor, …")]
Operation = Annotated[str, Field(description="An operation, or a part of its name.")]
Name = Annotated[str, Field(description="A part of the name.")]
Rules = Annotated[str, Field(description="Rules that begin so, such as TO-S; all if empty.")]
Top = Annotated[int | None, Field(description="The first so many rows; all if null.", ge=1)]
By = Annotated[str, Field(description="Column of numbers that orders the rows, most first; the usual one if empty.")]
Tool = Callable[..., dict[str, Any]]


def main(args: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    with Recent() as recent:
        server(recent).run("stdio")
    return 0


def server(recent: Recent) -> MCPServer[Any]:
    """The server with a tool a question."""
    made: MCPServer[Any] = MCPServer("traceops", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    for name, tool in tools(recent).items():
        made.add_tool(tool, name=name.replace("-", "_"), description=BY_NAME[name].about, annotations=reads)
    return made


def tools(recent: Recent) -> dict[str, Tool]:
    """A function a question, by its name; their parameters are those of `Asked`."""

    def ask(run: str, asked: Asked) -> dict[str, Any]:
        try:
            found = opened_live(run) if asked.question == "events" else recent.open(run)
            value: dict[str, Any] = json.loads(json_text(answer(found, asked)))
        except TraceopsError as error:
            raise ToolError(printable(redact_text(str(error)))) from error
        return value

    def summary(run: Run) -> dict[str, Any]:
        return ask(run, Asked("summary"))

    def findings(
        run: Run,
        severity: Annotated[Literal["info", "warning", "error"], Field(description="At least.")] = "info",
        ranks: Ranks = [],  # noqa: B006 a default of the schema; nobody changes it
    ) -> dict[str, Any]:
        return ask(run, Asked("findings", severity=severity, ranks=tuple(ranks)))

    def finding(run: Run, rule: Annotated[str, Field(description="Such as TO-S001.")]) -> dict[str, Any]:
        return ask(run, Asked("finding", rule=rule))

    def ledger(run: Run, ranks: Ranks = []) -> dict[str, Any]:  # noqa: B006
        return ask(run, Asked("ledger", ranks=tuple(ranks)))

    def what_if(run: Run, top: Top = None) -> dict[str, Any]:
        return ask(run, Asked("what-if", top=top))

    def ranks(run: Run, ranks: Ranks = [], by: By = "", top: Top = 16) -> dict[str, Any]:  # noqa: B006
        return ask(run, Asked("ranks", ranks=tuple(ranks), by=by, top=top))

    def steps(
        run: Run,
        ranks: Ranks = [],  # noqa: B006
        steps: Steps = [],  # noqa: B006
        by: By = "",
        top: Top = 32,
    ) -> dict[str, Any]:
        return ask(run, Asked("steps", ranks=tuple(ranks), steps=tuple(steps), by=by, top=top))

    def collectives(
        run: Run,
        group: Group = "",
        op: Operation = "",
        ranks: Ranks = [],  # noqa: B006
        by: By = "",
        top: Top = 32,
    ) -> dict[str, Any]:
        return ask(run, Asked("collectives", group=group, op=op, ranks=tuple(ranks), by=by, top=top))

    def kernels(
        run: Run,
        kind: Annotated[Literal["", "compute", "comm", "memory"], Field(description="All if empty.")] = "",
        name: Name = "",
        by: By = "",
        top: Top = 10,
    ) -> dict[str, Any]:
        return ask(run, Asked("kernels", kind=kind, name=name, by=by, top=top))

    def roles(run: Run) -> dict[str, Any]:
        return ask(run, Asked("roles"))

    def hang(run: Run, ranks: Ranks = []) -> dict[str, Any]:  # noqa: B006
        return ask(run, Asked("hang", ranks=tuple(ranks)))

    def events(run: Run, ranks: Ranks = []) -> dict[str, Any]:  # noqa: B006
        return ask(run, Asked("events", ranks=tuple(ranks)))

    def checks(run: Run, rule: Rules = "") -> dict[str, Any]:
        return ask(run, Asked("checks", rule=rule))

    return {
        "summary": summary, "findings": findings, "finding": finding, "ledger": ledger, "what-if": what_if,
        "ranks": ranks, "steps": steps, "collectives": collectives, "kernels": kernels, "roles": roles, "hang": hang,
        "events": events, "checks": checks,
    }  # fmt: skip
