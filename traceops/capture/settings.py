"""What a capture records and where it goes, from arguments and from the launcher's environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from traceops.capture.schedule import Schedule
from traceops.core.errors import UsageError

ENV = "TRACEOPS_CAPTURE"
# A folder; a script that runs under the bootstrap leaves there which files its modules came from.
IMPORTS_ENV = "TRACEOPS_IMPORTS"
_RANK = "rank_pid"


@dataclass(frozen=True)
class CaptureSettings:
    """Options of one capture; everything that costs time in the training is off unless asked for.

    out: run folder; None means ``profile/<script>-<timestamp>``, the same on all ranks.
    schedule: see `Schedule`.
    record_shapes: input dimensions of every operator (measured: a host-bound step that the profiler
    slows by 40 % is slowed by 60 %, and the trace is twice as large).
    with_stack: Python stacks (costs about as much).
    profile_memory: every allocation.  with_flops: operator FLOPs.  with_modules: module hierarchy.
    overwrite: replace the traces of another run in `out` instead of refusing.
    progress: folder for the progress records that a launcher reads; None writes none.
    evidence: folder for what a rank that hangs is asked to save; None where nobody watches for hangs.
    step_on: what ends a step of a script that says nothing: optimizer, or forward for inference.
    launched: a launcher merges the manifests into run.json; without one rank 0 does.
    observe: time every step of the whole training, and look now and then where the host is (docs/observe.md).
    light: after the windows, record a few steps of the device alone (docs/observe.md); on GPUs only.
    detach: end CUPTI behind the last window, because it slows host-bound steps (docs/observe.md). None does so where
    that was tried, from CUDA 13.0 on; True from CUDA 12.6 on.
    first_window: record two steps at the start too, for a program that ends before the schedule does; only with the
    default schedule and on machines without a GPU (`FirstWindow`).
    with_memory: record every allocation in the window, and the stack of each from the first use of a GPU on, for a
    snapshot at the window's end and where memory runs out (docs/memory.md).
    live: write for a monitor beside the training what is seen of it (docs/live.md); needs `observe`.
    samples_per_step: samples of all ranks in a step, where the script does not say; None where nobody does.
    """

    out: str | None = None
    schedule: Schedule = field(default_factory=Schedule)
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    with_flops: bool = False
    with_modules: bool = False
    overwrite: bool = False
    progress: str | None = None
    evidence: str | None = None
    step_on: str = "optimizer"
    launched: bool = False
    observe: bool = True
    light: bool = True
    detach: bool | None = None
    first_window: bool = True
    samples_per_step: int | None = None
    with_memory: bool = False
    live: bool = False

    def merged(self, overrides: Mapping[str, Any]) -> CaptureSettings:
        """A copy with `overrides`; the key ``schedule`` holds only the schedule fields to change."""
        known = {f.name for f in fields(self)}
        unknown = set(overrides) - known
        values = dict(overrides)
        schedule = values.pop("schedule", {})
        unknown |= set(schedule) - {f.name for f in fields(Schedule)}
        if unknown:
            raise UsageError(f"{ENV}: unknown settings {', '.join(sorted(unknown))}")
        return replace(self, schedule=replace(self.schedule, **schedule), **values)

    def recording_options(self) -> dict[str, bool]:
        """The options handed to ``torch.profiler.profile``."""
        names = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
        options = {name: bool(getattr(self, name)) for name in names}
        return options | {"profile_memory": self.profile_memory or self.with_memory}

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def from_environment(settings: CaptureSettings) -> CaptureSettings:
    """`settings` overridden by the JSON object in TRACEOPS_CAPTURE, which `traceops run` sets. Raises UsageError if the
    variable holds anything else."""
    if not (text := os.environ.get(ENV)):
        return settings
    try:
        overrides = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{ENV} is not JSON ({error}); unset it, or start through `traceops run`") from error
    if not isinstance(overrides, dict):
        raise UsageError(f"{ENV} must be a JSON object; unset it, or start through `traceops run`")
    if overrides.pop(_RANK, os.getpid()) != os.getpid():  # inherited from a rank, whose folder is its own
        return settings
    return settings.merged(overrides)


def keep_to_this_process(environ: MutableMapping[str, str]) -> None:
    """Have the settings count for this rank only: a capture that a child of it opens has a folder of its own."""
    text = environ.get(ENV, "").rstrip()
    if text.startswith("{") and text.endswith("}") and len(text) > 2:
        environ[ENV] = f'{text[:-1]}, "{_RANK}": {os.getpid()}}}'


def holds_traces(out: Path) -> bool:
    """Whether `out` already holds a run (per-rank traces, manifests or a run.json), or a series of them."""
    patterns = (
        "run.json", "rank_*/manifest.json", "rank_*/*.pt.trace.json.gz",
        "pairs.json", "base_[0-9]*/run.json", "head_[0-9]*/run.json",
    )  # fmt: skip
    return any(next(out.glob(pattern), None) is not None for pattern in patterns)
