"""`traceops analyze`: where the step time of a run went, from its traces, as HTML, CSV and JSON."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from traceops.cli.arguments import fails, make_writable, output_folder, report_formats
from traceops.core.errors import InputError
from traceops.core.plain_text import printable
from traceops.pipeline.analyze import analyze_window, find_traces, load_reduce
from traceops.pipeline.mapping.progress import ProgressLine
from traceops.pipeline.mapping.ranks import MapOptions
from traceops.pipeline.settings import own_kernels
from traceops.rules.validity import DAMAGED
from traceops.traces.discover import Discovery, Window


def main(args: argparse.Namespace) -> int:
    formats = report_formats(args.format)

    def load_rest() -> None:
        """What follows the map is imported while its processes work; they are forked without it and stay small."""
        load_reduce()
        import traceops.render  # noqa: F401

        if "html" in formats:
            from traceops.render.writers.html import prepare

            prepare()

    own = own_kernels()
    found = find_traces(args.path)
    root = output_folder(args.path, found.name) if args.output is None else Path(args.output)
    make_writable(root)
    reports = []
    unusable: InputError | None = None
    for window in found.windows if args.select == "all" else reversed(found.windows):
        try:
            with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
                options = MapOptions(args.jobs, args.executor, args.cache, args.hta, progress, load_rest, own)
                report = analyze_window(found, window, options, args.evidence)
        except InputError as error:  # a window without a usable trace hides no other
            unusable = error
            if len(found.windows) > 1:
                print(
                    printable(f"traceops analyze: capture window {window.index} is left out: {error}"),
                    file=sys.stderr,
                )
            continue
        from traceops.render import write_report  # behind the map: its processes need none of it
        from traceops.render.report.terminal import print_report

        written = write_report(
            report, root / _window_folder(window) if args.select == "all" else root, formats, args.plotlyjs
        )
        reports.append(report)
        shown = next((path for path in written if path.suffix == ".html"), written[0])
        if args.quiet:
            print(printable(str(shown)))
        else:
            print_report(report, sys.stdout, shown)
        if args.select == "latest":
            _note_other_windows(found, window, args.quiet)
            break
    if not reports:
        assert unusable is not None
        raise unusable
    findings = [finding for report in reports for finding in report.findings]
    if args.strict and any(finding.rule == DAMAGED.id for finding in findings):
        print("traceops analyze: --strict: not every file could be read whole", file=sys.stderr)
        return 3
    return fails(findings, args.fail_on)


def _window_folder(window: Window) -> str:
    started = datetime.fromtimestamp(window.started_ns / 1e9, tz=timezone.utc)
    return f"run_{window.index}_{started:%Y%m%dT%H%M%S}"


def _note_other_windows(found: Discovery, used: Window, quiet: bool) -> None:
    others = [window for window in found.windows if window.index != used.index]
    if others and not quiet:
        folders = sorted({str(PurePosixPath(window.files[0].path).parent) for window in others})
        print(
            f"{len(others)} other capture window{'s were' if len(others) > 1 else ' was'} left out "
            f"({printable(', '.join(folders[:4]))}{' …' if len(folders) > 4 else ''}); --select all analyses each"
        )
