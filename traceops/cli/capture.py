"""`traceops capture`: a window of a run that is going on."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.run_lock import in_use
from traceops.launch.folder import run_defaults, short_path
from traceops.launch.on_demand import Recorded, Request, answer_to, recorded, request_window

_text = Wording("cli", "capture")
_POLL_S = 0.2
_ENDED_WITHOUT = 3  # exit code: not all ranks recorded it


def main(args: argparse.Namespace) -> int:
    for name, least in (("warmup", 0), ("active", 1)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name} {getattr(args, name)}: must be {least} or more")
    out = _folder(args)
    request = Request(secrets.token_hex(8), args.warmup, args.active, args.with_memory)
    request_window(out, request)
    window = answer_to(out, request)
    first = window.start + window.warmup
    if not args.quiet:
        asked = _text("asked", window=window.number, out=short_path(out), steps=window.active, first=first)
        print(asked, file=sys.stderr)
    if args.no_wait:
        return 0
    seen = _wait(out, window.number)
    if not (steps := sorted({step for own in seen.steps.values() for step in own})):
        raise UsageError(
            f"the run in {short_path(out)} or its capture ended before step {window.start}; run.json says why"
        )
    done = {"first": steps[0], "last": steps[-1], "recorded": len(seen.steps), "ranks": seen.ranks}
    print(_text("recorded", window=window.number, **done))
    if not args.quiet:
        print(f"next: traceops analyze {short_path(out)}")
    return 0 if len(seen.steps) == seen.ranks else _ENDED_WITHOUT


def _folder(args: argparse.Namespace) -> Path:
    if args.path is not None and args.job is not None:
        raise UsageError("give a folder or --job, not both")
    if args.job is not None:
        return Path(run_defaults().folder, args.job).absolute()
    if args.path is not None:
        return Path(args.path).absolute()
    runs = run_defaults().folder
    going_on = [path for path in runs.glob("*") if in_use(path)]
    if len(going_on) != 1:
        raise UsageError(_text("which_run", runs=len(going_on) or None, below=short_path(runs)))
    return going_on[0].absolute()


def _wait(out: Path, window: int) -> Recorded:
    """Until all ranks have recorded the window, or the run has ended."""
    while True:
        going_on = in_use(out)
        seen = recorded(out, window)
        if not going_on or (seen.ranks and len(seen.steps) == seen.ranks):
            return seen
        time.sleep(_POLL_S)
