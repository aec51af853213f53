"""The tables behind the figures, one CSV file each: report.json does not hold them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from traceops.core.claims import first_phrase
from traceops.core.files import read_regular
from traceops.core.text import FORMULA
from traceops.core.words import BUCKETS
from traceops.report.rows import ReferenceRow


class LatenessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in a step, ms: waiting it caused, what it waited itself, and the first by its cause."""

    rank: int
    step: int | None
    caused_wait_ms: float
    waited_ms: float
    gpu_compute_ms: float
    host_ms: float
    input_ms: float
    copy_ms: float
    unknown_ms: float

    def cause_ms(self, cause: str) -> float:
        """The waiting that one of `lateness.CAUSES` is the reason of."""
        value: float = getattr(self, f"{cause}_ms")
        return value


class ArrivalRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one group, operation and size: first to last arrival, and who comes last how often."""

    group: str
    ranks: tuple[int, ...]
    op: str
    bytes: int | None
    count: int
    spread_p50_ms: float
    spread_p95_ms: float
    spread_max_ms: float
    last_rank: int
    last_rank_pct: float


class BandwidthRow(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of known size. Bandwidth in 1e9 bytes a second, by nccl-tests' rules."""

    group: str
    ranks: tuple[int, ...]
    op: str
    bytes: int | None
    transfer_ms: float
    busbw_gbs: float


class PathRow(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the critical path of the median step, ms since the path began. `spent_ms`: its time by bucket of the
    ledger, a column BUCKET_ms each; empty for a transfer."""

    step: int | None
    rank: int
    kind: str
    what: str
    stream: int | None
    start_ms: float
    duration_ms: float
    spent_ms: dict[str, float] = {}


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of equal cells of a rank's longest step, ms since the first rank began it."""

    step: int | None
    rank: int
    kind: str
    start_ms: float
    duration_ms: float


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel over all ranks, with the rank that spends most on it."""

    name: str
    kind: str
    count: int
    share_pct: float
    ms_per_step: float
    mean_us: float
    min_us: float
    max_us: float
    ranks: int
    worst_rank: int
    worst_rank_total_ms: float
    least_rank_total_ms: float | None = None  # of the rank that spends least on it, 0 where one does not run it
    grid: str = ""  # of its longest launch; on a CPU the input shapes of its longest call
    # Of the rank that `compute` is of, per step, in operators whose work is known; None where it is not:
    operator: str = ""
    flops: float | None = None
    bytes: float | None = None
    attainable_ms: float | None = None
    efficiency_pct: float | None = None
    cause: str | None = None


class BlockingCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind on a rank in which the host waited for the device, over the window. `idle_ms`: of a typical
    step, how long the device idles after them; waits in a row share it."""

    rank: int
    call: str
    operator: str
    count: int
    total_ms: float | None
    idle_ms: float | None = None


class CopyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Copies between host and device of one kind on a rank: a step in the mean of all that the trace holds.

    `exposed_ms`: no kernel runs. `bytes`: of the median copy. `host_ms`: the host in their calls, and waiting for them.
    """

    rank: int
    direction: str
    memory: str
    purpose: str
    operator: str
    region: str
    count: float
    bytes: int | None
    exposed_ms: float
    device_ms: float
    host_ms: float
    gbs: float | None


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Every table; empty where nothing is known. `hta`: HTA's own tables by name, in HTA's columns."""

    lateness: tuple[LatenessRow, ...] = ()
    arrivals: tuple[ArrivalRow, ...] = ()
    bandwidth: tuple[BandwidthRow, ...] = ()
    reference: tuple[ReferenceRow, ...] = ()
    critical_path: tuple[PathRow, ...] = ()
    timeline: tuple[TimelineRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    blocking_calls: tuple[BlockingCallRow, ...] = ()
    copies: tuple[CopyRow, ...] = ()
    hta: Mapping[str, tuple[Mapping[str, Any], ...]] = {}


# The tables beside a report.json, read back from their CSV files.

Row = TypeVar("Row", bound=msgspec.Struct)


def read_tables(folder: Path | None, reference: tuple[ReferenceRow, ...] = ()) -> tuple[Tables, tuple[str, ...]]:
    """The tables of a report folder, and what is wrong with files that cannot be used; HTA's tables are left out. A
    file that is not there is an empty table, as it is where there was nothing to say."""
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, kind in get_type_hints(Tables).items() if folder is not None else ():
        if name in ("reference", "hta"):
            continue
        file = Path(folder or ".", f"{name}.csv")
        try:
            found[name] = tuple(_rows(read_regular(file), get_args(kind)[0]))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, OverflowError, csv.Error) as error:
            problems.append(first_phrase("views", "report", "unusable", file=file, why=str(error)))
    return Tables(reference=reference, **found), tuple(problems)


def _rows(data: bytes, kind: type[Row]) -> Iterator[Row]:
    """Rows of a table; columns that an earlier traceops did not write are at their defaults."""
    types = get_type_hints(kind)
    for line in csv.DictReader(io.StringIO(data.decode("utf-8"), newline="")):
        if kind is PathRow:  # its time by bucket stands in a column each
            line["spent_ms"] = {bucket: ms for bucket in BUCKETS if (ms := line.get(f"{bucket}_ms"))}
        values = {name: _value(line[name], types[name]) for name in kind.__struct_fields__ if name in line}
        yield msgspec.convert(values, kind, strict=False)


def _value(cell: Any, kind: Any) -> Any:
    """A field of a row: an empty cell is not known, unless it is text."""
    if not isinstance(cell, str):
        return cell
    if get_origin(kind) is tuple:
        return cell.split()
    if cell == "" and kind is not str:
        return None
    return cell[1:] if cell[:1] == "'" and cell[1:].lstrip()[:1] in FORMULA else cell
