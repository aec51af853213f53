"""Opens what somebody asks of: a report that was written, or traces, which are analysed."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.as_module import command_of
from traceops.core.claims import Wording, phrases
from traceops.core.documents import copied, redact_fields
from traceops.core.errors import FileError, InputError
from traceops.core.live_pulses import EVENTS_FILE, STATE_FILE
from traceops.core.redaction import redact_text
from traceops.hangs.json_types import HangDocument, HangJson
from traceops.render.document import Answer
from traceops.render.report.card import card_of
from traceops.render.report.first_screen import answer_of
from traceops.report.document import load_object, report_file, report_of
from traceops.report.model import Card, Report, ReportBase
from traceops.report.rows import Run
from traceops.report.tables import read_tables
from traceops.runs.find import find_runs
from traceops.traces.source import is_remote

if TYPE_CHECKING:
    from traceops.pipeline.mapping.ranks import Progress

_text = Wording("views", "answers")
_MOST_NAMED = 8
_HANG = "hang.json"


class Opened(Struct, frozen=True):
    """A report, and where it is from. folder: the report's own, None where traces were analysed. hang: of a report that
    was read, whose `Report.hang` is None: a diagnosis is not made again from its document. problems: what could not be
    used, in sentences."""

    path: str
    report: Report
    read_from: Literal["report", "traces", "live"]
    folder: Path | None = None
    hang: HangJson | None = None
    problems: tuple[str, ...] = field(default=())


def open_run(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    before_analysis: Callable[[str], None] = lambda path: None,
) -> Opened:
    """The report of a run folder, a folder of traces, one trace, a report folder or a report.json, local or remote.
    Traces are analysed anew: a report beside them may be older. `before_analysis` is called then, with the path. Raises
    InputError naming the file."""
    asked = os.fspath(path)
    shown = redact_text(asked)
    if (file := _report_or_hang(asked)) is not None and file.endswith(_HANG):
        return _opened_hang(shown, file)
    if file is None:
        from traceops.pipeline.analyze import analyze_window, find_traces, load_reduce, own_kernels
        from traceops.pipeline.mapping.ranks import MapOptions

        refuse_several(asked)
        traces = find_traces(asked)
        before_analysis(shown)
        options = MapOptions(jobs, progress=progress, meanwhile=load_reduce, own_kernels=own_kernels())
        report = analyze_window(traces, traces.latest, options)
        same, of_others = traces.left_out(traces.latest)
        left_out = phrases("views", "answers", "left_out", same=same or None, of_others=of_others or None)
        return Opened(shown, report, "traces", problems=tuple(left_out))
    document = report_of(load_object(file), file)
    shared = {name: getattr(document, name) for name in ReportBase.__struct_fields__}
    folder = None if is_remote(file) else Path(file).parent
    tables, problems = read_tables(folder, document.reference)
    return Opened(shown, Report(**shared, tables=tables), "report", folder, document.hang, problems)


def opened_live(path: str | os.PathLike[str]) -> Opened:
    """A run folder for what its monitor found, with nothing of steps. Raises InputError where no monitor was there."""
    folder = Path(path)
    if not (folder / EVENTS_FILE).is_file() and not (folder / STATE_FILE).is_file():
        raise InputError(_text("no_monitor", path=redact_text(os.fspath(path)), file=EVENTS_FILE))
    report = Report(run=Run(name=folder.absolute().name), ranks=(), steps=(), collectives=(), findings=(), checks=())
    return Opened(redact_text(os.fspath(path)), report, "live", folder)


def _report_or_hang(path: str) -> str | None:
    """The report.json that a path names, or else the hang.json that `traceops diagnose` wrote."""
    if path.endswith(_HANG):
        return path
    found = report_file(path)
    inside = Path(path, _HANG)
    if found is None and not is_remote(path) and inside.is_file() and not Path(path, "run.json").is_file():
        return str(inside)
    return found


def _opened_hang(shown: str, file: str) -> Opened:
    """A hang without traces: its findings and checks, and nothing of steps."""
    value = load_object(file)
    try:
        document = redact_fields(msgspec.convert(value, HangDocument), "hang", "run", "findings", "checks")
    except (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError) as error:
        said = str(error).encode("ascii", "backslashreplace").decode()
        raise FileError(file, f"is no hang.json of traceops: {said}") from error
    run, findings, checks = copied(Run, document.run), document.findings, document.checks
    report = Report(run=run, ranks=(), steps=(), collectives=(), findings=findings, checks=checks)
    return Opened(shown, report, "report", Path(file).parent, document.hang)


def refuse_several(path: str) -> None:
    """Raises InputError for a folder of runs, naming them: an answer is of one."""
    runs = find_runs((path,)).runs if not is_remote(path) and Path(path).is_dir() else ()
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[:_MOST_NAMED]) + (" …" if len(runs) > _MOST_NAMED else "")
        raise InputError(
            f"{path} holds {len(runs)} runs: {names}; name one of them, or read them all with traceops analyze"
        )


def opened(report: Report, path: str = "") -> Opened:
    """A report that was just made."""
    return Opened(path or str(report.run.name or ""), report, "traces")


def diagnosis(found: Opened) -> HangJson | None:
    """The diagnosis of a hang, None without evidence of one."""
    if found.report.hang is None:
        return found.hang
    from traceops.report.hang_json import hang_json

    return hang_json(found.report.hang)


def card(found: Opened) -> Card:
    """The card of the run."""
    return card_of(found.report, found.hang)


def opening_answer(found: Opened) -> Answer | None:
    """What the page shows below the headline; None where a hang leads whose report was read."""
    if found.hang is not None and found.hang.roots:
        return None
    return answer_of(found.report, card(found))


_MOST = 4


class Recent:
    """Opens runs, the last ones once as long as their files stay as they are. Traces are analysed in a process of their
    own, into a temporary folder: nothing beside them is written, and this process may have threads. Closing removes
    those folders."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int, int], Opened] = OrderedDict()
        self._scope = ExitStack()

    def __enter__(self) -> Recent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def open(self, path: str) -> Opened:
        """As `open_run`. Raises InputError."""
        if (state := _state(path)) in self._kept:
            self._kept.move_to_end(state)
            return self._kept[state]
        if _report_or_hang(path) is not None:
            found = open_run(path)
        else:
            refuse_several(path)
            folder = self._scope.enter_context(tempfile.TemporaryDirectory(prefix="traceops-"))
            command = [*command_of("traceops"), "analyze", path, "-o", folder, "--format", "json,csv", "-q"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
            )
            if done.returncode:
                said = done.stderr.strip().removeprefix("traceops analyze: ")
                raise InputError(said or f"{path} could not be analysed (exit code {done.returncode})")
            found = replace(open_run(folder), path=redact_text(path), read_from="traces")
        self._kept[state] = found
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return found


def _state(path: str) -> tuple[str, int, int, int]:
    """The path, and how many files it has, of how many bytes, the newest from when: other files are another state."""
    if is_remote(path):
        return path, 0, 0, 0
    place = Path(path)
    count = total = newest = 0
    for file in place.rglob("*") if place.is_dir() else (place,):
        try:
            found = file.stat()
        except OSError:
            continue
        count, total, newest = count + 1, total + found.st_size, max(newest, found.st_mtime_ns)
    return path, count, total, newest
