"""Passes of an inference server as rows of its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.inference import Passes
from traceops.core.arrays import Int
from traceops.core.units import stored
from traceops.report.rows import PassRow


def pass_rows(run: CrossRank) -> tuple[PassRow, ...]:
    """report.json's passes: a row a kind."""
    return tuple(_row(passes, run.split) for passes in run.passes)


def _row(passes: Passes, split: bool) -> PassRow:
    device = [one.device_end - one.device_start for one in passes.passes]
    busy = [100.0 * one.busy / max(long, 1) for one, long in zip(passes.passes, device, strict=True)]
    graphs = _median(one.graphs for one in passes.passes)
    return PassRow(
        kind=passes.kind,
        count=max(Counter(passes.of_rank).values()),
        requests=_median(one.requests for one in passes.passes),
        tokens=_median(one.tokens for one in passes.passes),
        device_ms=_ms(np.median(device)),
        device_p95_ms=_ms(np.percentile(device, 95)),
        busy_pct=stored(float(np.median(busy))),
        host_ms=_ms(np.median([one.host_end - one.host_start for one in passes.passes])),
        graphs=graphs,
        between_ms=_of_known(passes.between),
        scheduling_ms=_of_known(passes.scheduling),
        waiting_ms=_ms(np.median(passes.waiting)) if split else None,
        transfer_ms=_ms(np.median(passes.transfer)) if split else None,
        unmatched_ms=_ms(np.median(passes.unmatched)),
    )


def _of_known(ns: Int) -> float | None:
    known = ns[ns >= 0]
    return _ms(np.median(known)) if len(known) else None


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stored(float(np.median(known))) if known else None


def _ms(ns: float | np.floating) -> float:
    return stored(float(ns) / 1e6)
