"""`traceops scale`: how a training scales over runs with different numbers of ranks, or that it trains itself."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from traceops.across.replay.what_if import predicted_share
from traceops.cli.arguments import make_writable, report_folder
from traceops.cli.run import Decided
from traceops.cli.sweep import Trainings, prepare, train
from traceops.core.claims import Wording
from traceops.core.errors import InputError, UsageError
from traceops.core.files import read_regular
from traceops.core.run_lock import held
from traceops.core.text import printable
from traceops.launch.folder import short_path
from traceops.memory.gpus import instance_of
from traceops.pipeline.analyze import find_traces, own_kernels, run_pipeline
from traceops.pipeline.mapping.ranks import MapOptions
from traceops.pipeline.run_info import samples_per_step
from traceops.render.runs.scale import print_scale, write_scale
from traceops.runs import scale
from traceops.runs.find import FoundRun, find_runs
from traceops.runs.scale_table import TableRow, read_table
from traceops.runs.sweep import SweepAxis, points_of

_text = Wording("cli", "scale")
_TABLES = (".csv", ".tsv", ".txt", ".md")
_MOST_TABLE = 1 << 20  # characters


def main(args: argparse.Namespace) -> int:
    """Returns 0, or what ended the trainings of --nproc. Raises UsageError for a price that is none and for runs that
    are no scaling, InputError where none can be read."""
    price = None if args.price is None else price_of(args.price)
    if (table := _table(args)) is not None:
        rows, name = table
        return _show(args, scale.table_document(rows, name, price, args.predict))
    if args.nproc is None:
        places, name = _given(args)
    else:
        trainings, repeat = _planned(args)
        if args.dry_run:
            print("\n".join(decided.plan.shell(os.environ) for decided in trainings.plans))
            return 0
        # Train each size in turn, and take the runs that finished.
        trainings.train = _reporting_samples(trainings.train)
        with held(trainings.folder):
            trainings.open(overwrite=args.overwrite, again=True)
            found = train(trainings, repeat, None)
        for trial in found.trials:
            if trial.status != "finished":
                print(printable(_text("left_out", folder=trial.folder, why=trial.reason)), file=sys.stderr)
        done = [trial for trial in found.trials if trial.status == "finished"]
        places, name = [FoundRun(str(trainings.folder / trial.folder), trial.folder) for trial in done], args.name
        if trainings.ended:
            return trainings.ended
    # The runs that can be read; the others are named on stderr. Raises InputError where there are none.
    captures, problems = [], []
    for place in places:
        try:
            captures.append(_capture(place))
        except InputError as error:
            problems.append(f"{place.name}: {error}")
            print(printable(_text("left_out", folder=place.name, why=error)), file=sys.stderr)
    if not captures:
        raise InputError("none of the runs can be read:\n" + "\n".join(f"  {line}" for line in problems))
    return _show(args, scale.scale_document(captures, name, price, args.predict))


def _table(args: argparse.Namespace) -> tuple[list[TableRow], str] | None:
    """A table of measurements, where one file or standard input (-) was given, and its name."""
    if args.nproc is not None or len(args.words) != 1:
        return None
    word, place = args.words[0], Path(args.words[0])
    if word == "-":
        return read_table(sys.stdin.read(_MOST_TABLE), "the pasted table"), "scale"
    if place.suffix.lower() not in _TABLES or not place.is_file():
        return None
    return read_table(read_regular(place).decode(errors="replace"), word), place.stem


def _show(args: argparse.Namespace, document: scale.ScaleDocument) -> int:
    name = document.name
    document = document if args.samples is None else scale.with_training(document, args.samples)
    folder = Path(args.output) if args.output else report_folder(str(Path("profile", name)), name)
    make_writable(folder)
    written = write_scale(document, folder)
    if args.quiet:
        print(printable(str(written[0])))
    else:
        print_scale(document, sys.stdout, written[0])
    return 0


def price_of(text: str) -> float:
    """Of a GPU and hour: a number, or an instance's. Raises UsageError for what is neither."""
    try:
        price = float(text)
    except ValueError:
        if (instance := instance_of(text)) is not None and instance.price is None:
            raise UsageError(_text("price_unknown", price=text)) from None
        price = math.nan if instance is None else (instance.price or 0.0) / (instance.count or 1)
    if not 0 <= price < math.inf:
        raise UsageError(_text("price", price=text))
    return price


def _given(args: argparse.Namespace) -> tuple[list[FoundRun], str]:
    if not args.words:
        raise UsageError(_text("nothing_given"))
    if args.words[0].endswith(".py"):
        raise UsageError(_text("script", script=args.words[0], words=shlex.join(args.words)))
    found = find_runs(args.words)
    base = found.base
    if len(found.runs) < 2:
        find_traces(found.runs[0].path)  # which says what is wrong with a folder that holds nothing
        raise UsageError(_text("one_run", run=args.words[0]))
    return list(found.runs), "scale" if base is None or base.name in ("profile", "") else base.name


def _planned(args: argparse.Namespace) -> tuple[Trainings, int]:
    """What --nproc asks to be trained, and how often each. Raises UsageError for what cannot work."""
    sizes = tuple(size.strip() for size in args.nproc.split(","))
    if len(set(sizes)) < 2 or not all(size.isdecimal() for size in sizes):
        raise UsageError(_text("sizes", sizes=args.nproc))
    if args.words and args.global_batch_size is None:
        print(_text("samples_unknown"), file=sys.stderr)
    args.nproc, args.script = None, (["--", *args.words] if args.words else [])
    args.vary, args.vary_arg, args.budget = [], [], None
    args.name = args.name or ("scale" if args.out is None else Path(args.out).name)
    repeat = 3 if args.repeat is None else args.repeat
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: must be a whole number, 1 or more")
    if "OMP_NUM_THREADS" not in os.environ and not any(text.startswith("OMP_NUM_THREADS=") for text in args.env):
        args.env = [*args.env, "OMP_NUM_THREADS=1"]  # torchrun's for several ranks; one alone would take all cores
    return prepare(args, points_of((SweepAxis("nproc", sizes),))), repeat


def _reporting_samples(train_once: Callable[[Decided], int]) -> Callable[[Decided], int]:
    """A training, refused where it does not report its samples: all others would be trained for nothing."""

    def trained(decided: Decided) -> int:
        code = train_once(decided)
        if code == 0 and samples_per_step(json.loads(read_regular(decided.plan.out / "run.json"))) is None:
            raise scale.no_samples(short_path(decided.plan.out))
        return code

    return trained


def _capture(place: FoundRun) -> scale.MeasuredRun:
    found = find_traces(place.path)
    analysis = run_pipeline(found, found.latest, MapOptions(own_kernels=own_kernels()))
    run = analysis.run
    fixed = scale.optimizer_ms(analysis.report.tables.kernels)
    if run.replay is None or not run.replay.what_if.holds:
        return scale.MeasuredRun(place.name, place.path, analysis.report, None, fixed)
    graph, world = run.replay.graph, analysis.report.run.world_size or len(run.ranks)

    def replay(times: float, work: float) -> float:
        return predicted_share(graph, run.matching.collectives, world, times, work)

    return scale.MeasuredRun(place.name, place.path, analysis.report, replay, fixed)
