"""A flame graph a rank, from looks at its host: a file for https://www.speedscope.app."""

from __future__ import annotations

import json

import numpy as np

from traceops.measure.host_places import own_overhead
from traceops.traces.observed import Observed

_RUNNER = (
    "/traceops/capture/as_script.py",
    "/traceops/capture/script.py",
    "/traceops/capture/run_as_main.py",
    "<frozen runpy>",
)


def flame_file(rank: int) -> str:
    """Its name in the report's folder."""
    return f"flame.rank_{rank}.speedscope.json"


def flame_graph(observed: Observed) -> str | None:
    """The text of that file; None where nobody looked."""
    if not len(observed.samples):
        return None
    weights = np.bincount(observed.samples[:, 1], observed.samples[:, 2], len(observed.stacks))
    samples, took = [], []
    for stack in np.flatnonzero(weights).tolist():
        if own_overhead(observed, stack):
            continue
        samples.append([n for n in observed.stacks[stack] if not observed.frames[n].file.endswith(_RUNNER)])
        took.append(round(float(weights[stack]) / 1e3, 3))
    frames = [{"name": frame.function, "file": frame.file, "line": frame.line} for frame in observed.frames]
    profile = {
        "type": "sampled", "name": f"rank {observed.rank}", "unit": "milliseconds", "startValue": 0,
        "endValue": round(sum(took), 3), "samples": samples, "weights": took,
    }  # fmt: skip
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": "traceops",
            "name": f"rank {observed.rank}: the host outside of recorded steps",
            "shared": {"frames": frames},
            "profiles": [profile],
        },
        separators=(",", ":"),
    )
