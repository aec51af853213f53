"""What is known about the run as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from traceops.core.rank_text import runs_of
from traceops.report.rows import NotNegative, Whole


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the code that ran; branch is null where HEAD is detached and no CI names it."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


MOST_MISSING = 4096  # ranks that are listed one by one


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run: from its manifest, or else from what its traces say; null where neither does."""

    name: str | None = None
    world_size: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    ranks_present: tuple[Whole, ...] = ()
    ranks_missing: tuple[Whole, ...] = ()
    ranks_missing_runs: tuple[tuple[Whole, Whole], ...] = ()
    hosts: tuple[str, ...] = ()
    device: str | None = None
    device_type: Literal["cuda", "cpu"] | None = None
    backend: str | None = None
    torch_version: str | None = None
    nccl_version: str | None = None
    strategy: str | None = None
    steps: tuple[Whole, ...] = ()
    training: dict[str, Any] | None = None
    samples_per_step: NotNegative | None = None
    tokens_per_step: NotNegative | None = None
    flops_per_step: NotNegative | None = None
    environment: dict[str, str] | None = None
    git: Git | None = None
    cuda_version: str | None = None
    driver_version: str | None = None
    command: tuple[str, ...] | None = None
    options: dict[str, Any] | None = None
    started_ns: Whole | None = None

    @property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """Runs of ranks without a trace, also of a report that lists them only one by one."""
        return self.ranks_missing_runs or runs_of(self.ranks_missing)
