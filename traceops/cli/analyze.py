"""`traceops analyze`: where the step time of a run went, from its traces, as HTML, CSV and JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from traceops.cli.arguments import fails, make_writable, report_folder, report_formats, run_of
from traceops.cli.reading_options import ANALYZE
from traceops.core.claims import Wording
from traceops.core.errors import ODD_VALUE, InputError, odd_value_text
from traceops.core.files import FORMATS
from traceops.core.findings import Finding
from traceops.core.installation import keep_freed_memory
from traceops.core.text import printable
from traceops.pipeline.analyze import analyze_window, find_traces, hta_checks, load_reduce, own_kernels
from traceops.pipeline.mapping.ranks import MapOptions, ProgressLine, summarize_all
from traceops.runs.find import FoundRun, FoundRuns, find_runs
from traceops.traces.discover import Discovery, Window
from traceops.traces.source import is_remote

_text = Wording("cli", "analyze")

if TYPE_CHECKING:  # processes are forked for the map without these
    from traceops.report.model import Report
    from traceops.runs.row import RunRow

    Written = tuple[Window, Report, Path]  # a window, its report, and the file of it that is shown


def main(args: argparse.Namespace) -> int:
    keep_freed_memory()
    formats = report_formats(args.format)
    places = find_runs([_run_of(path, args.quiet) for path in args.path])
    if len(places.runs) > 1:
        return _several(args, formats, places)
    path = places.runs[0].path
    try:
        found = find_traces(path)
    except InputError as error:
        from traceops.cli.diagnose import diagnose_instead

        given = {"--output": args.output, "--fail-on": args.fail_on}
        options = [f"{flag}={value}" for flag, value in given.items() if value is not None]
        return diagnose_instead(path, error, "--format", args.format, *(["-q"] if args.quiet else []), *options)
    root = report_folder(path, found.name) if args.output is None else Path(args.output)
    make_writable(root)
    findings: list[Finding] = []
    written: list[Written] = []  # for HTA's check; held only as long as that may come
    checked = args.hta is None and not (args.quiet or args.executor) and formats != ("json",)
    for window, report, shown in _reports(args, formats, found, root):
        findings += report.findings
        if checked and report.tables.hta:  # of GPU activity
            written.append((window, report, shown))
            if not (checked := _are_small(written)):
                written.clear()
        if args.select == "latest":
            _note_other_windows(found, window, args.quiet)
        if args.quiet:
            print(printable(str(shown)))
        else:
            from traceops.render.report.terminal import print_report

            print_report(report, sys.stdout, shown, verbose=args.verbose)
    code = _exit_code(args, findings)
    if written:
        sys.stdout.flush()
        try:
            _check_by_hta(args, formats, written)
        except KeyboardInterrupt:
            pass
        except Exception as error:  # whatever HTA stumbles over: the report stands
            print(printable(_text("hta_failed", error=f"{type(error).__name__}: {error}")), file=sys.stderr)
    return code


_CHECKED_BYTES, _CHECKED_FILES = 50_000_000, 16  # HTA takes 80 ms for the least trace
_SEARCHED = 30_000  # events of a trace; HTA's search for sequences of kernels takes 50 µs for each


def _are_small(written: Sequence[Written]) -> bool:
    """Whether HTA's own code may check these by default."""
    files = [file for window, _, _ in written for file in window.files]
    small = len(files) <= _CHECKED_FILES and sum(file.size_bytes for file in files) <= _CHECKED_BYTES
    return small and not any(is_remote(file.path) or file.summarized for file in files)


def _check_by_hta(args: argparse.Namespace, formats: tuple[str, ...], written: Sequence[Written]) -> None:
    """HTA's own code on small traces, where it is installed: last of all, so that nothing waits for its line. A report
    that is still the one that was written is completed with what HTA has."""
    if not hta_checks(os.environ) or find_spec("hta") is None:
        return
    from msgspec.structs import replace

    from traceops.measure.hta_tables import agreement_of_ranks
    from traceops.pipeline.assemble_tables import hta_rows
    from traceops.render.files import write_report
    from traceops.render.printer import say
    from traceops.render.report.terminal import hta_sentence

    options = MapOptions(
        args.jobs, cache=args.cache, with_hta=True, own_kernels=own_kernels(), gpu=args.gpu, searched=_SEARCHED
    )
    for window, report, shown in written:
        before = shown.stat()
        ranks, _ = summarize_all(window.files, options)
        if (found := agreement_of_ranks(one.hta_agreement for one in ranks)) is not None:
            say(f"{hta_sentence(found)}.")
            completed = replace(
                report,
                summary=replace(report.summary, hta_agreement=found),
                tables=replace(report.tables, hta={**hta_rows(ranks), **report.tables.hta}),
            )
            write_report(completed, shown.parent, formats, args.plotlyjs, over=(shown, before))


def _run_of(path: str, quiet: bool) -> str:
    """The run of a report that was given, and says so."""
    run = run_of(path)
    if run != path and not quiet:
        print(printable(_text("is_report", path=path, run=run)), file=sys.stderr)
    return run


def _several(args: argparse.Namespace, formats: tuple[str, ...], places: FoundRuns) -> int:
    """A report of each run in a folder of its own, and a table of all. Raises InputError where none can be read."""
    from traceops.render.runs.files import print_runs, write_runs

    root = _root_of(places) if args.output is None else Path(args.output)
    make_writable(root)
    rows, findings = _rows(args, formats, places.runs, root)
    if not findings and all(row.problem for row in rows):
        listed = "\n".join(f"  {row.name}: {row.problem}" for row in rows)
        raise InputError(f"none of {len(rows)} runs can be analysed:\n{listed}")
    more = f" and {len(args.path) - 3} more" if len(args.path) > 3 else ""
    written = write_runs(rows, root, ", ".join(args.path[:3]) + more, formats)
    if args.quiet:
        print(printable(str(written[0])))
    else:
        print_runs(rows, sys.stdout, written[0])
    if args.strict and any(row.problem for row in rows):
        print(_text("not_every_run"), file=sys.stderr)
        return 3
    return _exit_code(args, findings)


def report_each(places: Sequence[FoundRun], root: Path) -> list[RunRow]:
    """A report of each run below `root`, with the command's usual options, and its row."""
    parser = argparse.ArgumentParser()
    ANALYZE.add_to(parser)
    return _rows(parser.parse_args([str(root), "-q"]), FORMATS, places, root)[0]


def _rows(
    args: argparse.Namespace, formats: tuple[str, ...], places: Sequence[FoundRun], root: Path
) -> tuple[list[RunRow], list[Finding]]:
    """A report of each run in its folder below `root`; a run that is no use is a row with the reason."""
    from traceops.render.report.card import card_of
    from traceops.runs.row import row_of, without_report

    rows: list[RunRow] = []
    findings: list[Finding] = []
    for place in places:
        try:
            found = find_traces(place.path)
            for window, report, shown in _reports(args, formats, found, root / place.name):
                name = place.name if args.select == "latest" else f"{place.name}/{_window_folder(window)}"
                folder = shown.parent.relative_to(root).as_posix()
                rows.append(row_of(report, name, place.path, folder, f"{card_of(report).headline}."))
                findings += report.findings
        except InputError as error:
            rows.append(without_report(place.name, place.path, str(error)))
        except ODD_VALUE as error:
            rows.append(without_report(place.name, place.path, odd_value_text(error)))
    return rows, findings


def _reports(args: argparse.Namespace, formats: tuple[str, ...], found: Discovery, root: Path) -> Iterator[Written]:
    """The reports of the windows that --select asks for, written. A window without a usable trace hides no other;
    raises InputError where no window has one."""
    own, unusable, made = own_kernels(), None, False
    best_first = sorted(found.windows, key=lambda window: (window is not found.latest, -window.index))
    for window in found.windows if args.select == "all" else best_first:
        try:
            with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
                options = MapOptions(
                    args.jobs, args.executor, args.cache, bool(args.hta), progress, _load_rest(formats), own, args.gpu
                )
                report = analyze_window(found, window, options, args.evidence)
        except InputError as error:
            unusable = error
            if len(found.windows) > 1:
                print(printable(_text("window_left_out", window=window.index, error=error)), file=sys.stderr)
            continue
        from traceops.render.files import write_report  # behind the map: its processes need none of it

        folder = root / _window_folder(window) if args.select == "all" else root
        written = write_report(report, folder, formats, args.plotlyjs)
        made = True
        yield window, report, next((path for path in written if path.suffix == ".html"), written[0])
        if args.select == "latest":
            return
    if not made:
        assert unusable is not None
        raise unusable


def _load_rest(formats: tuple[str, ...]) -> Callable[[], None]:
    # What follows the map is imported while its processes work; they are forked without it and stay small.
    def load_rest() -> None:
        load_reduce()
        import traceops.render.files  # noqa: F401

        if "html" in formats:
            from traceops.render.writers.html import prepare_pages

            prepare_pages()

    return load_rest


def _root_of(places: FoundRuns) -> Path:
    """Where the reports of several runs go: reports for those in profile, else as for a run of the folder's name."""
    if (base := places.base) is None:
        return Path("reports")
    if base.name == "profile":
        return base.parent / "reports" if base.parent != Path.cwd() else Path("reports")
    return Path("reports") if base == Path.cwd() else report_folder(str(base), base.name)


def _exit_code(args: argparse.Namespace, findings: list[Finding]) -> int:
    from traceops.rules.validity import DAMAGED  # with the reduce, behind the map

    if args.strict and any(finding.rule == DAMAGED.id for finding in findings):
        print(_text("not_every_file"), file=sys.stderr)
        return 3
    return fails(findings, args.fail_on)


def _window_folder(window: Window) -> str:
    started = datetime.fromtimestamp(window.started_ns / 1e9, tz=timezone.utc)
    return f"run_{window.index}_{started:%Y%m%dT%H%M%S}"


def _note_other_windows(found: Discovery, used: Window, quiet: bool) -> None:
    others = [window for window in found.windows if window.index != used.index]
    if others and not quiet:
        folders = sorted({str(PurePosixPath(window.files[0].path).parent) for window in others})
        from traceops.render.printer import say

        jobs = len({window.job for window in found.windows})
        listed = ", ".join(folders[:4]) + (" …" if len(folders) > 4 else "")
        say(_text("other_windows", windows=len(others), folders=listed, jobs=jobs if jobs > 1 else None))
