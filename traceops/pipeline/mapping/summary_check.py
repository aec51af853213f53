"""Whether the parts of a summary that came from a file fit each other: the reduce looks things up across them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceops.measure.copies import BY_STEP
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import EXPOSED, PAINTED
from traceops.measure.stack_times import IDLE
from traceops.measure.summary import RankSummary
from traceops.traces.run_manifest import MOST_RANKS

_CELL = (str, int, float, type(None))
_MOST_TIME = 1 << 61  # ns, in 2043; sums of some still fit an int64


def check_summary(summary: RankSummary) -> None:
    """Raises ValueError naming the part that does not fit the others."""
    for what, fits in _conditions(summary):
        if not fits:
            raise ValueError(f"its {what} does not fit the rest")


def _conditions(summary: RankSummary) -> Iterator[tuple[str, bool]]:
    comm, program, steps = summary.comm, summary.program, len(summary.step_numbers)
    count = len(comm.args)
    edges = summary.step_edges
    yield "rank", 0 <= summary.rank < MOST_RANKS and _is_world(summary.meta.world_size)
    yield "steps", steps > 0 and edges.shape == (steps + 1,) and _sorted(edges)
    yield ("collectives", all(column.shape == (count,) for column in (comm.start, comm.end, comm.step, comm.stream)))
    yield "collectives", len(comm.name) == len(comm.parts) == count and _sorted(comm.start)
    beside = (comm.before, comm.after, comm.stage, comm.micro_batch, comm.phase, comm.slowed)
    yield "collectives", all(column.shape == (count,) for column in beside)
    yield "collectives", _within(comm.step, -1, steps + 1) and _within(comm.slowed, 0, _MOST_TIME)
    yield "collectives", bool((comm.start <= comm.end).all()) and _within(comm.end, -_MOST_TIME, _MOST_TIME)
    yield "ledger", summary.ledger.duration.shape == (steps,)
    yield "ledger", summary.ledger.buckets.keys() >= {"comm", *OWN_BUCKETS}
    yield "ledger", all(column.shape == (steps,) for column in summary.ledger.buckets.values())
    exposed = summary.ledger.exposed
    yield "ledger", exposed.start.shape == exposed.end.shape == (len(exposed.start),)
    yield "ledger", _sorted(np.stack((exposed.start, exposed.end), axis=1).ravel())
    moments = len(program.times)
    yield ("program", moments > 0 and _sorted(program.times) and program.own.shape == (moments, len(OWN_BUCKETS)))
    yield "program", program.ready.shape == (count,)
    for start, end, waited_for in (
        (program.join_start, program.join_end, program.join_comm),
        (program.spell_start, program.spell_end, program.spell_comm),
    ):
        yield "program", start.shape == end.shape == waited_for.shape == (len(waited_for),)
        yield "program", _within(waited_for, 0, count) and bool((start <= end).all())
    unheld = program.unheld
    yield "program", unheld.start.shape == unheld.end.shape == (len(unheld.start),)
    yield "program", _sorted(np.stack((unheld.start, unheld.end), axis=1).ravel())
    yield (
        "program",
        all(
            _within(times, -_MOST_TIME, _MOST_TIME)
            for times in (
                program.ready,
                program.own,
                program.host,
                program.join_start,
                program.join_end,
                program.spell_start,
                program.spell_end,
            )
        ),
    )
    yield "program", program.host.shape == program.host_input.shape == (count + steps + 1,)
    yield "timeline", program.painted.shape == (steps, PAINTED) and _within(program.painted, 0, EXPOSED + 1)
    inventory = summary.inventory
    yield (
        "inventory",
        all(
            column.shape == (steps,)
            for column in (
                inventory.step_kernels,
                inventory.step_collectives,
                inventory.step_bytes,
                inventory.step_blocking,
            )
        ),
    )
    yield "stacks", all(one.host_ns.shape == (steps,) for one in summary.stacks)
    yield "stacks", all(one.idle_ns.shape == (len(IDLE), steps) for one in summary.stacks)
    if (anomaly := summary.anomaly) is not None:
        yield "anomaly", anomaly.count.shape == anomaly.host_ns.shape == (steps,)
    yield "held launches", all(one.idle_ns.shape == one.count.shape == (steps,) for one in summary.held)
    columns = (getattr(kind, name) for kind in summary.copies.kinds for name in BY_STEP)
    yield "copies", all(own.shape == (steps,) for own in (summary.copies.sync_ns, *columns))
    yield "backward", summary.backward.device_end.shape == (steps,)
    tables = [table for table in vars(summary.hta).values() if isinstance(table, dict)]
    yield "HTA tables", all(len({len(column) for column in table.values()}) < 2 for table in tables)
    cells = (cell for table in tables for column in table.values() for cell in column)
    yield "HTA tables", all(isinstance(cell, _CELL) for cell in cells)


def _is_world(size: int | None) -> bool:
    return size is None or 0 < size <= MOST_RANKS


def _sorted(values: NDArray[np.int64]) -> bool:
    return bool((values[:-1] <= values[1:]).all()) and _within(values, -_MOST_TIME, _MOST_TIME)


def _within(values: NDArray[np.integer], low: int, high: int) -> bool:
    return not values.size or (int(values.min()) >= low and int(values.max()) < high)
