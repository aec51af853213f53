"""How large a timeline will be, before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.timeline.part import Form
from traceops.traces.discover import TraceFile

# Bytes written for a byte of the trace, by the form and whether trace and timeline are gzipped: measured over ddp4,
# fsdp2_4 and two gloo runs of tests/data, where it differs by a fifth from run to run.
_PER_BYTE: dict[tuple[Form, bool, bool], float] = {
    ("json", True, True): 1.25,
    ("json", False, True): 0.1,
    ("json", True, False): 11.0,
    ("json", False, False): 0.9,
    ("perfetto", True, True): 1.05,
    ("perfetto", False, True): 0.085,
    ("perfetto", True, False): 4.0,
    ("perfetto", False, False): 0.35,
}
LARGE_BYTES = 100_000_000  # the browser holds a multiple of it in memory


@dataclass(frozen=True)
class Expected:
    """What will be written: about so many bytes, of so many ranks and steps (None: all)."""

    size_bytes: int
    ranks: int
    steps: int | None


def expect_size(files: Sequence[TraceFile], steps: int | None, recorded: int, form: Form, gzipped: bool) -> Expected:
    """About how large the timeline of these traces is, of whose `recorded` steps so many are shown (None: all)."""
    share = 1.0 if steps is None or not recorded else min(steps / recorded, 1.0)
    size = sum(file.size_bytes * _PER_BYTE[form, file.path.endswith(".gz"), gzipped] for file in files)
    return Expected(int(size * share), len(files), steps)
