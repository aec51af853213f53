"""In which part of a training step a stack is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from traceops.hangs.evidence import Frame

Phase = Literal["forward", "backward", "the optimizer"]


def phase_of(frames: Sequence[Frame]) -> Phase | None:
    """The part that the frames, innermost first, are in; None where none of torch's tells."""
    for frame in frames:
        file = frame.file.replace("\\", "/")
        if "torch/optim/" in file or "torch/distributed/optim/" in file:
            return "the optimizer"
        if frame.function == "_engine_run_backward" or (
            file.endswith("torch/_tensor.py") and frame.function == "backward"
        ):
            return "backward"
    inside = any("torch/nn/modules/" in frame.file.replace("\\", "/") for frame in frames)
    return "forward" if inside else None
