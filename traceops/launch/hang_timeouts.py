"""How long a training may do nothing before it counts as hanging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HangTimeouts:
    """How long may pass without a step, in seconds.

    hang_s: None for the larger of 60 s and ten median steps. init_s: before the first step; 0 for ever. kills: whether
    the job is ended then; else it is only said, with the evidence, as nothing seen from outside proves a hang.
    """

    hang_s: float | None = None
    init_s: float = 1800.0
    kills: bool = False
