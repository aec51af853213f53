"""Deadlines of tests, so that all of them together keep the time of the checkup."""

from __future__ import annotations

from collections.abc import Mapping

from traceops.doctor.job import LAUNCH

PATIENT_S: Mapping[str, float] = {
    LAUNCH: 90.0, "start": 40.0, "all_reduce": 30.0, "pairs": 50.0, "ddp_step": 30.0,
}  # fmt: skip
SHORT_S: Mapping[str, float] = {
    LAUNCH: 60.0, "start": 20.0, "all_reduce": 12.0, "pairs": 30.0, "ddp_step": 20.0, "sweep": 20.0,
    "pair_bandwidth": 20.0,
}  # fmt: skip
LEAST_S = 12.0  # a try takes about as long: processes, torch, NCCL
FULL_S = 25.0  # so does a test of everything


def within(deadlines_s: Mapping[str, float], left: float) -> dict[str, float]:
    """These deadlines where only `left` seconds remain."""
    return {stage: min(seconds, max(left, LEAST_S)) for stage, seconds in deadlines_s.items()}
