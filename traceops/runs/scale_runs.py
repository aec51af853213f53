"""The runs that a scaling is made of, and which of them are none of one training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceops.core.errors import UsageError
from traceops.report.model import ReportBase

# step with so many times as many ranks, and so many times as much work of a rank, over the measured one
Replay = Callable[[float, float], float]
OPEN_LINE = "with traceops.capture() as profile:"
STEP_LINE = "profile.step(samples=len(batch))"
_MODEL = (
    "model", "model_name", "parameters", "layers", "dim", "heads", "vocab", "hidden_size", "n_layers", "seq_len",
    "precision", "dtype", "strategy",
)  # fmt: skip


@dataclass(frozen=True)
class MeasuredRun:
    """One run. replay: predicts its step with other sizes; None without traces, or where the replay does not hold.

    fixed_ms: of its step, what the device computes for the parameters alone, whatever the batch.
    """

    name: str
    path: str
    report: ReportBase
    replay: Replay | None = None
    fixed_ms: float = 0.0

    @property
    def ranks(self) -> int:
        return self.report.run.world_size or len(self.report.ranks)

    @property
    def rate(self) -> float:
        """Samples a second of all ranks."""
        return self.report.summary.samples_per_s or 0.0

    @property
    def samples(self) -> float:
        return self.report.run.samples_per_step or 0.0


def no_samples(path: str) -> UsageError:
    """What a run is refused with that does not tell its samples."""
    return UsageError(
        f"{path} does not say how many samples a step has. If all ranks together have N at every size, train with "
        "--global-batch-size N (and --overwrite). If each rank has as many at every size, put the script's loop into "
        f"`{OPEN_LINE}`, and `{STEP_LINE}` where an optimizer step ends, with that rank's samples in it"
    )


def refuse(captures: Sequence[MeasuredRun]) -> None:
    """Raise UsageError where these are not runs of one training at several sizes."""
    for capture in captures:
        if not capture.samples:
            raise no_samples(capture.path)
        if not capture.rate:
            raise UsageError(f"{capture.path}: no step was found, so its samples a second are not known")
    if len({capture.ranks for capture in captures}) < 2:
        ranks = captures[0].ranks if captures else 0
        raise UsageError(f"scaling needs runs with different numbers of ranks, all of these have {ranks}")
    first = captures[0]
    for other in captures[1:]:
        for key in _MODEL:
            mine, theirs = (_settings(capture).get(key) for capture in (first, other))
            if mine is not None and theirs is not None and mine != theirs:
                raise UsageError(f"different trainings: {key} is {mine} in {first.path}, and {theirs} in {other.path}")
        if _device(first) != _device(other):
            raise UsageError(
                f"different kinds of device: {_device(first)} in {first.path}, and {_device(other)} in {other.path}"
            )
        scripts = [(capture.report.run.command or ("",))[0] for capture in (first, other)]
        if all(scripts) and scripts[0] != scripts[1]:
            raise UsageError(f"different trainings: {scripts[0]} in {first.path}, and {scripts[1]} in {other.path}")


def _device(capture: MeasuredRun) -> str | None:
    return capture.report.run.device


def _settings(capture: MeasuredRun) -> dict[str, object]:
    """What the run tells of its training, one level deep."""
    training = capture.report.run.training or {}
    config = training.get("config")
    flat = {key: value for key, value in training.items() if not isinstance(value, (dict, list))}
    return {**(config if isinstance(config, dict) else {}), **flat}
