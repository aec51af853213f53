"""What the recorded steps of a run held, from the memory events in the trace of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.memory_use import MemoryUse
from traceops.core.errors import InputError
from traceops.measure.step_memory import StepMemory, measure_step_memory
from traceops.traces.discover import Discovery
from traceops.traces.kineto import load_trace
from traceops.traces.memory_events import read_memory_events
from traceops.traces.source import is_remote

_MOST_TRIED = 2  # ranks, where the first has none


def recorded_memory_of(found: Discovery, uses: Sequence[MemoryUse]) -> tuple[int, StepMemory] | None:
    """The rank with the highest peak, and what its steps held; None where memory was not recorded.

    Its trace is read again for that. Where the run's manifest says that it has no memory events, nothing is read.
    """
    options = found.manifest.get("options")
    if is_remote(found.root) or (isinstance(options, dict) and not options.get("profile_memory")):
        return None
    peaks = {use.rank: use.peak or 0 for use in uses}
    files = [file for window in found.windows[-1:] for file in window.files if not file.summarized]
    for file in sorted(files, key=lambda file: (-peaks.get(file.rank, 0), file.rank))[:_MOST_TRIED]:
        try:
            memory = read_memory_events(file.path)
            if memory is None:
                continue
            steps = measure_step_memory(memory, load_trace(file.path).events, file.steps)
        except InputError:
            continue
        if steps is not None:
            return file.rank, steps
    return None
