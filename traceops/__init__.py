"""Profile a PyTorch run, on one GPU or many, and explain where the step time goes.

>>> run = traceops.load("profile/train")     # or a folder of traces, one trace, a report
>>> run.answer, run.findings, run.ranks      # what is wrong, and the numbers behind it
>>> run.compare("profile/before").sentence   # did it get slower, and why
>>> traceops.diagnose("job.log").roots       # why it hangs or crashed
>>> traceops.memory("train.py", nproc=8)     # what a script needs of each GPU; of a run, what its ranks held

In the training: ``with traceops.capture() as profile: ... profile.step()``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from traceops.version import __version__

if TYPE_CHECKING:
    from traceops.capture import Schedule, capture
    from traceops.hangs.diagnose import diagnose
    from traceops.integrations.loaded_run import analyze, load

__all__ = ["Schedule", "__version__", "analyze", "capture", "compare", "diagnose", "live", "load", "memory"]

# Loaded on first use: analysing never imports torch, training never imports pandas.
_HOME = {
    "analyze": "traceops.integrations.loaded_run",
    "capture": "traceops.capture",
    "Schedule": "traceops.capture",
    "live": "traceops.attach",
    "diagnose": "traceops.hangs.diagnose",
    "load": "traceops.integrations.loaded_run",
}


def __getattr__(name: str) -> Any:
    if name in ("compare", "memory"):  # packages that can be called, see there
        return import_module(f"traceops.{name}")
    if name not in _HOME:
        from traceops.core.text import meant

        raise AttributeError(f"module 'traceops' has no attribute {name!r}{meant(name, __all__)}")
    return getattr(import_module(_HOME[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext traceops`` in a notebook: ``%%traceops`` profiles a cell."""
    import_module("traceops.integrations.notebook").load(shell)


def __dir__() -> list[str]:
    return __all__
