"""How a log's steps went, in a sentence."""

from __future__ import annotations

from traceops.hangs.evidence import LoggedProgress


def progress_text(progress: LoggedProgress) -> str:
    """'3708 steps in 53 min are 0.86 s each: the 800 s a step that the bar shows are an average after a stall.'"""
    who_says = "" if progress.rank is None else f"rank {progress.rank}, "
    where = f"({who_says}{progress.path.rpartition('/')[2]})"
    if progress.shown is not None and progress.elapsed_s is not None:
        return (
            f"{progress.step} steps in {_duration(progress.elapsed_s)} are {progress.usual_s:.2g} s each: the "
            f"{progress.shown:.3g} s a step that the progress bar shows are an average after a stall {where}."
        )
    return (
        f"Steps took {progress.usual_s:.2g} s each up to step {progress.step}, and {progress.pace_s:.3g} s each from "
        f"there to step {progress.until}: the job was slow before it failed {where}."
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
