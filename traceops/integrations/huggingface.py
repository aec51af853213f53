"""A callback for Hugging Face's Trainer, and so for TRL's."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from traceops.capture.schedule import Schedule
from traceops.core.rank_files import RANKS_ENV
from traceops.integrations.held_capture import HeldCapture, accumulate_more
from traceops.words.catalogue import fill


class TraceopsCallback(TrainerCallback):  # type: ignore[misc]
    """Profiles the steps of the Trainer; a step is one of its optimizer steps, as in ``max_steps``::

    trainer = Trainer(..., callbacks=[TraceopsCallback("profile/mine")])

    out, schedule, options: as for `traceops.capture`. accumulate: whether ``gradient_accumulation_steps`` is multiplied
    under ``traceops run --fallback single``; None: unless the script's own file names TRACEOPS_FALLBACK_RANKS.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        schedule: Schedule | None = None,
        accumulate: bool | None = None,
        **options: Any,
    ) -> None:
        self._held = HeldCapture(out, schedule, options)
        self._accumulate = accumulate

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last moment: before it calls on_train_begin, the Trainer has counted its steps from the option."""
        self._accumulate_more(args, _obstacle(args))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._accumulate_more(args, "the callback was added after the Trainer was made; give it in callbacks=")
        self._held.open({"trainer": "transformers", "max_steps": state.max_steps})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._held.step(args.train_batch_size * args.gradient_accumulation_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._held.close()

    def _accumulate_more(self, args: Any, obstacle: str | None) -> None:
        accumulate_more(
            args, "gradient_accumulation_steps", asked=self._accumulate, batch=args.train_batch_size, obstacle=obstacle
        )


def _obstacle(args: Any) -> str | None:
    """Why more accumulation would not give the samples of all ranks."""
    if getattr(args, "deepspeed_plugin", None) is not None:
        return fill("integrations", "obstacle.deepspeed", variable=RANKS_ENV)
    if getattr(getattr(args, "accelerator_config", None), "split_batches", False):
        return fill("integrations", "obstacle.split_batches")
    return None
