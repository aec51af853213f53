"""The options of `traceops analyze`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import positive
from traceops.core.file_formats import FORMATS

HELP = "Explain where the step time went: a run folder, a folder of traces, one trace, or a remote path."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "path",
        nargs="+",
        help="profile/NAME, any folder with traces or summaries of ranks, one such file, or s3://…; a folder of runs "
        "(profile), a pattern or several paths give a report each and a table of all (runs.html)",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="report folder (reports/NAME: 'profile' in the path becomes 'reports'); of several runs a folder each",
    )
    add("--select", choices=("latest", "all"), default="latest", help="which capture windows to analyse (%(default)s)")
    add("--format", default=",".join(FORMATS), metavar="LIST", help=f"of {', '.join(FORMATS)} (%(default)s)")
    add(
        "--plotlyjs",
        choices=("none", "inline", "cdn"),
        default="none",
        help="zoom in charts: inline adds 1.5 MB, cdn needs the network (%(default)s)",
    )
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe or worse")
    add("--strict", action="store_true", help="exit 3 if any file could not be read completely")
    add("--jobs", type=positive, metavar="N", help="ranks to read at a time (one a core)")
    add(
        "--executor",
        metavar="WHERE",
        help="where to read the ranks: dask://HOST:PORT, tls://… (dask) or mpi (processes of this machine)",
    )
    add(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="do not use the cache in $TRACEOPS_CACHE (~/.cache/traceops): parse every trace again",
    )
    add(
        "--evidence",
        action="append",
        default=[],
        metavar="FILE",
        help="a file about the machine from outside the run folder: nvidia-smi topo -m, an NCCL log, doctor.json; "
        "repeatable",
    )
    add("--gpu", default="", metavar="NAME", help="the GPU that ran this, where the traces don't say: 'MI300X', 'H100'")
    add("--hta", action="store_true", help="compute HTA's tables with HTA itself: the same numbers, slower")
    add("-v", "--verbose", action="store_true", help="show evidence, tables and what could not be checked too")
    add("-q", "--quiet", action="store_true", help="print the report's path only")
