"""A callback for Lightning's Trainer, of `lightning` or of `pytorch_lightning`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from traceops.capture.schedule import Schedule
from traceops.core.rank_files import RANKS_ENV
from traceops.integrations.held_capture import HeldCapture, accumulate_more
from traceops.words.catalogue import fill


def _callback_class() -> Any:
    """The base class of the package that the program uses; of the one that is there where it uses none yet."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    used = [name for name in names if name in sys.modules]
    for name in used or names:
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("traceops.integrations.lightning needs lightning: pip install lightning")


if TYPE_CHECKING:
    _Callback = object
else:
    _Callback = _callback_class()


class TraceopsCallback(_Callback):
    """Profiles the steps of the Trainer; a step ends where its ``global_step`` has grown after a batch::

    trainer = Trainer(..., callbacks=[TraceopsCallback("profile/mine")])

    With manual optimization that is a batch in which any optimizer stepped. out, schedule, options: as for
    `traceops.capture`. accumulate: whether ``accumulate_grad_batches`` is multiplied under
    ``traceops run --fallback single``; None: unless the script's own file names TRACEOPS_FALLBACK_RANKS.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        schedule: Schedule | None = None,
        accumulate: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._accumulate = accumulate
        self._held = HeldCapture(out, schedule, options)
        self._before = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            # Why Lightning would not read the option, or not keep it
            if not pl_module.automatic_optimization:
                obstacle: str | None = fill("integrations", "obstacle.manual", variable=RANKS_ENV)
            elif any(type(one).__name__ == "GradientAccumulationScheduler" for one in trainer.callbacks):
                obstacle = fill("integrations", "obstacle.scheduler", variable=RANKS_ENV)
            else:
                obstacle = None
            accumulate_more(trainer, "accumulate_grad_batches", asked=self._accumulate, obstacle=obstacle)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._before = trainer.global_step
        self._held.open({"trainer": "lightning", "strategy": type(trainer.strategy).__name__})

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step != self._before:
            self._before = trainer.global_step
            self._held.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._held.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._held.close(exception)
