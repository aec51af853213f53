"""How a run ended, for run.json and for what is said at the end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from traceops.capture.manifest import RankManifest
from traceops.core.capture_failure import CaptureFailure
from traceops.launch.outcome import Failure
from traceops.launch.process import TorchrunResult


class EndedRun(Struct, frozen=True):
    """How a run ended, as far as that could be read.

    ended: what torchrun did. told: captures that ended early. code: the run's exit code. ranks: manifests as they are
    to be kept. failure: the rank that failed first.
    """

    ended: TorchrunResult
    told: Sequence[CaptureFailure]
    code: int
    ranks: Sequence[RankManifest] = ()
    failure: Failure | None = None

    @property
    def status(self) -> str:
        """As run.json has it."""
        if self.ended.hung:
            return "hung"
        if self.ended.signal:
            return "interrupted"
        return "failed" if self.code else "finished"
