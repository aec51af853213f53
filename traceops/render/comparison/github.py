"""Annotations and the job summary of GitHub Actions, where a workflow runs the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TextIO

from traceops.compare.model import Comparison
from traceops.core.short_text import one_line
from traceops.render.comparison import text
from traceops.render.comparison.markdown import render_markdown

SUMMARY_LIMIT = 1024 * 1024  # bytes that GitHub takes from one step, all that is appended together
_MOST = 9  # GitHub shows 10 annotations of a kind from one step
_MESSAGE = 1000


def announce(comparison: Comparison, environ: Mapping[str, str], stdout: TextIO, *, name: str = "") -> None:
    """Print annotations and append to the job's summary; does nothing outside GitHub Actions.

    A summary that cannot be written is said in an annotation: it is no reason to fail the gate.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for line in workflow_commands(comparison):
        print(line, file=stdout)
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        problem = _append(Path(path), step_summary(comparison, name=name))
    except OSError as error:
        problem = f"{path} cannot be appended to ({error.strerror or error})"
    if problem:
        print(_command("warning", "No job summary", problem), file=stdout)


def workflow_commands(comparison: Comparison) -> list[str]:
    """The annotations: an error a regression, a warning a metric left open, the verdict as a notice."""
    lines = [_command("notice", "traceops compare", comparison.sentence)]
    regressed = [metric for metric in comparison.gated if metric.outcome == "regression"]
    undecided = [metric for metric in comparison.gated if metric.outcome == "inconclusive"]
    for metric in regressed[:_MOST]:
        said = f"{text.base_text(metric)} → {text.head_text(metric)}, {text.effect_text(metric)}, "
        said += f"limit {text.threshold_text(metric)}. {text.reason_text(metric)}"
        lines.append(_command("error", f"{metric.label} regressed", said))
    for metric in undecided[:_MOST]:
        lines.append(_command("warning", f"{metric.label} is inconclusive", text.reason_text(metric)))
    return lines


def step_summary(comparison: Comparison, *, name: str) -> str:
    """What the comparison adds to $GITHUB_STEP_SUMMARY: the pull request's comment, far below 1 MiB."""
    return render_markdown(comparison, name=name)


def _append(path: Path, summary: str) -> str:
    """Add to the file; why not, where GitHub would refuse the whole of it then."""
    content = summary.encode("utf-8", "replace") + b"\n"
    with path.open("ab") as file:
        if file.tell() + len(content) > SUMMARY_LIMIT:
            return f"{path} would be larger than the {SUMMARY_LIMIT} bytes GitHub takes"
        file.write(content)
    return ""


def _command(kind: Literal["error", "warning", "notice"], title: str, message: str) -> str:
    said = one_line(message, _MESSAGE) or title
    return f"::{kind} title={_property(one_line(title, 200))}::{_data(said)}"


def _data(said: str) -> str:
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(said: str) -> str:
    return _data(said).replace(":", "%3A").replace(",", "%2C")
