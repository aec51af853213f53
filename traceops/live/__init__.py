"""Watches a training while it runs: what its ranks write, what changes, since when, and why (docs/live.md).

``traceops.live("profile/mine")`` in a script, before the training, has its ranks write for a monitor.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


class _CallableModule(ModuleType):
    # Importing this package binds it to the name `traceops.live`, over the function of that name.
    def __call__(self, out: str | os.PathLike[str] | None = None) -> str:
        """Capture this process from its first training step on, for `traceops live` beside it; the run folder."""
        from traceops.attach import live_folder, live_settings
        from traceops.capture.join import join

        folder = live_folder() if out is None else os.fspath(out)
        join(live_settings(folder))
        return folder


sys.modules[__name__].__class__ = _CallableModule
