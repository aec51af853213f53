"""Has a rank that traceops did not start write for a monitor: ``torchrun … -m traceops.attach SCRIPT [ARGS…]``.

TRACEOPS_LIVE names the run folder, on all ranks the same one; 1 or nothing stands for one that is named after the job,
and 0 runs the script alone. ``traceops.live()`` in a script does the same for one that may be changed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from traceops.capture.join import join
from traceops.capture.script import run_and_end
from traceops.capture.settings import ENV, CaptureSettings

LIVE_ENV = "TRACEOPS_LIVE"


def live_folder(environ: Mapping[str, str] = os.environ) -> str:
    """The run folder: what TRACEOPS_LIVE says, else one that all ranks of the job name alike."""
    if (told := environ.get(LIVE_ENV, "")) not in ("", "0", "1"):
        return told
    if (job := environ.get("TORCHELASTIC_RUN_ID", "none")) == "none":
        job = environ.get("SLURM_JOB_ID") or environ.get("MASTER_PORT") or str(os.getpid())
    return os.path.join("profile", f"live-{job[:16]}")  # noqa: PTH118 - a name that is shown as it was given


def live_settings(folder: str) -> CaptureSettings:
    """Those of a capture for a monitor, which replaces what an earlier job left in the folder."""
    return CaptureSettings(out=folder, live=True, overwrite=True)


def live(out: str | os.PathLike[str] | None = None) -> str:
    """Capture this process from its first training step on, for `traceops live` in another; returns the run folder.

    out: on all ranks the same one, as with TRACEOPS_LIVE where it is not given::

        traceops.live("profile/mine")
        for batch in loader:
            ...
    """
    folder = live_folder() if out is None else os.fspath(out)
    join(live_settings(folder))
    return folder


def main(argv: list[str], loaded: frozenset[str]) -> None:
    """Run the script under such a capture, unless TRACEOPS_LIVE is 0 or a launcher of ours has set one up."""
    if os.environ.get(LIVE_ENV) != "0":
        os.environ.setdefault(ENV, json.dumps({"out": live_folder(), "live": True, "overwrite": True}))
    run_and_end(argv, loaded)


if __name__ == "__main__":
    # The working folder, where a json.py or a folder called torch would be executed; traceops may be in it.
    if not getattr(sys.flags, "safe_path", False) and not __file__.startswith(f"{sys.path[0]}/traceops/"):
        del sys.path[0]
    main(sys.argv[1:], frozenset(sys.modules))
