"""``traceops.load(path)``: a run or report in a notebook, as frames, figures and the first screen of its page."""

from __future__ import annotations

import functools
import os
import tempfile
import webbrowser
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from traceops.answers import model
from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import Opened, card, open_run, opened
from traceops.answers.rows import check_line, collective_lines, finding_line, kernel_lines, ledger_lines, step_lines
from traceops.compare import ComparedCapture, compare
from traceops.compare.capture import capture_of
from traceops.compare.model import Comparison
from traceops.core.errors import UsageError
from traceops.core.files import write_whole
from traceops.core.findings import Finding
from traceops.core.rank_text import ranks_text
from traceops.core.text import meant, printable
from traceops.measure.hta_bridge import hta_analysis
from traceops.pipeline.analyze import analyze as analyze_traces
from traceops.render.document import Document, soft
from traceops.render.report.card import headline
from traceops.render.report.html import describe
from traceops.render.writers.html import write_fragment, write_html
from traceops.report.document import to_json_object
from traceops.report.inventory import OperatorRow
from traceops.report.model import Card, Report
from traceops.report.rows import RankRow, RoleRow, WhatIfRow
from traceops.traces.kineto import load_trace

_OF_RANKS = (
    "rank", "host", "steps", "step_time_ms", "compute_ms", "exposed_comm_ms", "caused_wait_ms", "idle_pct",
    "input_ms", "peak_memory_bytes",
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_NOT_WHOLE = (
    "This page was made from report.json and the tables beside it. What they do not hold (the timeline to zoom into, "
    "the diagnosis of a hang, the machines, HTA's tables) is in the page that traceops analyze writes."
)


def load(path: str | os.PathLike[str] | Report | LoadedRun, *, jobs: int | None = None) -> LoadedRun:
    """A run for a notebook: a run folder, a folder of traces, one trace, a report folder, report.json, or a Report.
    Traces are analysed, `jobs` ranks at a time (one a core if None); nothing is written. torch is never imported,
    pandas and plotly only for frames and figures. Raises InputError naming the file that cannot be read."""
    if isinstance(path, LoadedRun):
        return path
    return LoadedRun(opened(path) if isinstance(path, Report) else open_run(path, jobs=jobs))


def analyze(path: str | os.PathLike[str], **options: Any) -> LoadedRun:
    """Analyse the traces under `path` as ``traceops analyze`` does; `load`, but a report that lies there is not read.
    options: as of `traceops.pipeline.analyze.analyze`: jobs, progress, with_hta, cache, executor, evidence."""
    return LoadedRun(opened(analyze_traces(path, **options)))


class LoadedRun:
    """A run that was analysed: made by `traceops.load` and `traceops.analyze`.

    Frames have a row a rank, step and so on; names of columns end in their unit, and ``frame.attrs["columns"]`` says
    what they mean. In a notebook a run shows the first screen of its page.
    """

    def __init__(self, found: Opened) -> None:
        self._found = found
        self._document: Document | None = None

    @property
    def report(self) -> Report:
        """All that is known, typed. Of a report that was read, `hang` and `fabric` are None."""
        return self._found.report

    @property
    def name(self) -> str:
        """The run's name, or else where it was read from."""
        return str(self.report.run.name or self._found.path)

    @property
    def answer(self) -> Card:
        """The card that the report opens with: what is wrong, what to do, and what fixing it saves."""
        return card(self._found)

    @property
    def findings(self) -> Findings:
        """The findings, worst first, each with its evidence; `findings.frame()` has a row for each."""
        return Findings(self.report.findings)

    @property
    def ranks(self) -> pd.DataFrame:
        """A row per rank: the columns that people want first. `all_ranks` has all columns."""
        found = self.all_ranks
        narrow = found[list(_OF_RANKS)]
        narrow.attrs["columns"] = {name: said for name, said in found.attrs["columns"].items() if name in _OF_RANKS}
        return narrow

    @property
    def all_ranks(self) -> pd.DataFrame:
        """A row per rank with every column, ms per step."""
        return _frame(self.report.ranks, RankRow)

    def events(self, rank: int) -> pd.DataFrame:
        """The raw events of a rank's trace, read when asked for; times in ns. Raises KeyError for a rank without a
        trace, InputError where its file is gone or damaged."""
        path = next((row.trace for row in self.report.ranks if row.rank == rank and row.trace), None)
        if path is None:
            raise _Unknown(f"rank {rank} has no trace here; ranks: {ranks_text(self.report.run.ranks_present, 8)}")
        made: pd.DataFrame = _extra("pandas", "events_frame")(load_trace(self._place(path)).events)
        return made

    @functools.cached_property
    def hta(self) -> Any:
        """HTA's own `TraceAnalysis` of these traces, on frames from our loader (docs/from-hta.md). Raises UsageError
        without HTA or traces, InputError where a trace is gone or damaged."""
        if not (traces := {row.rank: self._place(row.trace) for row in self.report.ranks if row.trace}):
            raise UsageError(f"run.hta needs traces, and {self._found.path} has none")
        return hta_analysis(traces)

    def _place(self, trace: str) -> str:
        """Where a trace of the report lies."""
        folder = self._found.folder
        return trace if folder is None or "://" in trace else str(folder / trace)

    def compare(self, other: LoadedRun | str | os.PathLike[str]) -> Comparison:
        """Whether `other` is slower than this run, by how much, how sure that is, and why. Raises UsageError."""
        head = other if isinstance(other, LoadedRun) else load(other)
        return compare([self._capture()], [head._capture()])

    def _capture(self) -> ComparedCapture:
        return capture_of(to_json_object(self.report), self._found.path)

    def open(self) -> Path:
        """Write the page to a temporary folder and show it in the browser; returns its path."""
        page = self.save_html(Path(tempfile.mkdtemp(prefix="traceops-")) / "summary.html")
        webbrowser.open(page.as_uri())
        return page

    @property
    def steps(self) -> pd.DataFrame:
        """A row a rank and step; the buckets add up to `duration_ms`."""
        return _frame(step_lines(self.report), model.StepLine)

    @property
    def collectives(self) -> pd.DataFrame:
        """A row a group, operation and size."""
        return _frame(collective_lines(self.report), model.CollectiveLine)

    @property
    def kernels(self) -> pd.DataFrame:
        """A row a kernel over all ranks, most time first."""
        return _frame(kernel_lines(self.report), model.KernelLine)

    @property
    def operators(self) -> pd.DataFrame:
        """A row an operator on one set of inputs, on the rank that stands for all: its work, and what it could take."""
        compute = self.report.compute
        return _frame(compute.operators if compute else (), OperatorRow)

    @property
    def ledger(self) -> pd.DataFrame:
        """Where a step goes: a row a bucket, the median over ranks."""
        return _frame(ledger_lines(self.report), model.LedgerLine)

    @property
    def what_if(self) -> pd.DataFrame:
        """What a change would save, by replaying the steps."""
        return _frame(self.report.what_if, WhatIfRow)

    @property
    def roles(self) -> pd.DataFrame:
        """Communication by what its groups are for, ms per step."""
        return _frame(self.report.roles, RoleRow)

    @property
    def checks(self) -> pd.DataFrame:
        """A row a rule: fired, clear, or why it could not be judged."""
        return _frame(map(check_line, self.report.checks), model.CheckLine)

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures that there are of this run, by name."""
        return tuple(self._described().charts)

    def figure(self, name: str) -> go.Figure:
        """A figure of the page as plotly's. Raises KeyError that lists those there are, ImportError without plotly."""
        there = self._described().charts
        if (asked := name.replace("_", "-")) not in there:
            listed = ", ".join(there) or "none"
            raise _Unknown(f"no figure {name!r} of this run{meant(asked, there)}; there are: {listed}")
        figure = _extra("plotly", "Figure", "plotly.graph_objects")
        made: go.Figure = figure(there[asked])
        return made

    def finding(self, rule: str) -> tuple[model.FullFinding, ...]:
        """The findings of a rule such as TO-S001, with evidence; empty where it did not fire. Raises UsageError."""
        answered = answer(self._found, Asked("finding", rule=rule))
        assert isinstance(answered, model.FindingAnswer)
        return answered.rows

    def save_html(self, path: str | os.PathLike[str] = "summary.html", **options: Any) -> Path:
        """Write the whole page; returns its path. `options` are those of `write_html` (plotlyjs). Of a report folder
        that has its page, that page is written, if there are no options."""
        folder = self._found.folder
        pages = [folder / name for name in ("summary.html", "hang.html")] if folder is not None else []
        if (written := next((page for page in pages if page.is_file()), None)) is not None and not options:
            data = written.read_bytes()
        else:
            document = self._described()
            if self._found.read_from == "report":
                document = replace(document, intro=(*document.intro, soft(_NOT_WHOLE)))
            data = write_html(document, **options)
        target = Path(path)
        write_whole(target, data)
        return target

    def __repr__(self) -> str:
        report, said = self.report, card(self._found)
        ranks, step = report.run.ranks_present, report.summary.step_time_ms.typical
        unit = "window" if report.summary.steps_found_by == "window" else "step"
        facts = [f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'} ({ranks_text(ranks, 4)})"]
        facts += [str(report.run.device)] if report.run.device else []
        facts += [f"{unit} {step:.2f} ms"] if step is not None else []
        rules = list(dict.fromkeys(found.rule for found in report.findings))
        shown = ", ".join(rules[:8]) + (f" and {len(rules) - 8} more" if len(rules) > 8 else "")
        lines = (f"{self.name}: {', '.join(facts)}", f"{said.level}: {said.headline}.", f"findings: {shown or 'none'}")
        return "\n".join(printable(line.replace("\n", " ")) for line in lines)

    def _repr_html_(self) -> str:
        return write_fragment(self._described())

    def __getattr__(self, name: str) -> Any:
        """What there is not, with what was meant: a method of HTA's is one of `hta`."""
        if name.startswith("get_"):
            raise AttributeError(f"a run has no {name}; HTA's methods are those of run.hta: did you mean hta.{name}?")
        raise AttributeError(f"a run has no {name}{meant(name, dir(self))}")

    def __dir__(self) -> list[str]:
        return [name for name in vars(type(self)) if not name.startswith("_")]

    def _described(self) -> Document:
        if self._document is None:
            self._document = replace(describe(self.report), verdict=headline(card(self._found)))
        return self._document


class Findings(tuple[Finding, ...]):
    """Findings in order, worst first."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"findings have no {name}{meant(name, ('frame', 'count', 'index'))}")

    def frame(self) -> pd.DataFrame:
        """A row per finding."""
        return _frame(map(finding_line, self), model.FindingLine)


class _Unknown(KeyError):
    """A KeyError whose message is shown as it is, not as a repr."""

    def __str__(self) -> str:
        return str(self.args[0])


def _frame(rows: Iterable[msgspec.Struct], kind: type[msgspec.Struct]) -> pd.DataFrame:
    made: pd.DataFrame = _extra("pandas", "frame")(rows, kind)
    return made


_NEEDED_FOR = {"pandas": "tables and events of a run are pandas frames", "plotly": "run.figure() gives plotly figures"}


def _extra(package: str, name: str, module: str = "") -> Any:
    """A function of a module of that package, or else of ours of its name, the only one that imports it."""
    try:
        return getattr(import_module(module or f"traceops.integrations.{package}"), name)
    except ImportError as error:
        raise ImportError(f"{_NEEDED_FOR[package]}: pip install {package} (traceops's extra [frames])") from error
