"""``%load_ext traceops``: the cell magic ``%%traceops``."""

from __future__ import annotations

import time
from typing import Any

from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from traceops.capture.join import join, leave
from traceops.capture.schedule import STEP_ON, Schedule
from traceops.capture.settings import CaptureSettings
from traceops.cli import main


@magics_class
class TraceopsMagics(Magics):  # type: ignore[misc]
    """Made by `load`."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @argument("--out", help="run folder (profile/notebook-TIME)")  # type: ignore[untyped-decorator]
    @argument("--quick", action="store_true", help="six steps are enough")  # type: ignore[untyped-decorator]
    @argument("--step-on", choices=STEP_ON, default="optimizer", help="what ends a step")  # type: ignore[untyped-decorator]
    @cell_magic  # type: ignore[untyped-decorator]
    def traceops(self, line: str, cell: str) -> None:
        """Profile the training in a cell, also that of processes it forks (notebook_launcher), and tell of it."""
        asked = parse_argstring(self.traceops, line)
        out = asked.out or f"profile/notebook-{time.strftime('%Y%m%d-%H%M%S')}"
        schedule = Schedule.quick() if asked.quick else Schedule()
        join(CaptureSettings(out=out, schedule=schedule, step_on=asked.step_on))
        try:
            done = self.shell.run_cell(cell)
        finally:
            leave()
        if done.success:
            main(["analyze", out, "-o", f"{out}/report"])


def load(shell: Any) -> None:
    """Give `shell`, an IPython shell, the magic."""
    shell.register_magics(TraceopsMagics)
