"""A callback for Hugging Face's Trainer, and so for TRL's."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from traceops.capture.schedule import Schedule
from traceops.integrations.held_capture import HeldCapture


class TraceopsCallback(TrainerCallback):  # type: ignore[misc]
    """Profiles the steps of the Trainer; a step is one of its optimizer steps, as in ``max_steps``::

    trainer = Trainer(..., callbacks=[TraceopsCallback("profile/mine")])

    out, schedule, options: as for `traceops.capture`.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, schedule: Schedule | None = None, **options: Any
    ) -> None:
        self._held = HeldCapture(out, schedule, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._held.open({"trainer": "transformers", "max_steps": state.max_steps})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._held.step(args.train_batch_size * args.gradient_accumulation_steps)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._held.close()
