"""The nouns of measured communication: what nccl-tests, rccl-tests and NCCL's Inspector plugin wrote."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct, field

from traceops.fabric.model import Quote

LARGE_BYTES = 32_000_000  # from here the links set the time of a test that runs by itself
_FALLEN, _FALLING = 0.5, 0.75  # of the best rate: the largest message, and the one before it


class BenchmarkRank(Struct, frozen=True):
    """Where a rank of a test ran. device: as its process counts. bus_id: as far as told (``0000:1b:00.0``)."""

    rank: int
    host: str
    device: int
    gpu: str
    bus_id: str | None = None


class BenchmarkSize(Struct, frozen=True):
    """One row of the table: the faster of its two ways (out of place, in place). bytes: of the message, as nccl-tests
    counts. wrong: elements that came out wrong, of both ways; None where they were not checked."""

    bytes: Annotated[int, Meta(ge=0)]
    time_us: float
    busbw_gbs: float
    wrong: int | None
    quote: Quote


class Benchmark(Struct, frozen=True):
    """One run of a test. op: ``all_reduce``, …, None where nothing tells it. ranks: by rank. alone: processes that each
    ran a test of one rank, as nccl-tests does when it was built without MPI. out_of_bounds: what the end of the table
    says. average_gbs: bus bandwidth over all sizes, which small ones pull down."""

    op: str | None
    ranks: tuple[BenchmarkRank, ...]
    sizes: tuple[BenchmarkSize, ...]
    quote: Quote
    average_gbs: float | None = None
    out_of_bounds: int | None = None
    alone: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def gpu(self) -> str | None:
        """The name of its GPUs; None where they differ or are not told."""
        names = {rank.gpu for rank in self.ranks}
        return names.pop() if len(names) == 1 else None

    @property
    def large(self) -> BenchmarkSize | None:
        """The row with the highest bus bandwidth among large messages."""
        rows = [row for row in self.sizes if row.bytes >= LARGE_BYTES]
        return max(rows, key=lambda row: row.busbw_gbs, default=None)

    @property
    def falls_to(self) -> BenchmarkSize | None:
        """The largest message, where the rate falls to less than half on the way to it from a large one.

        Two larger ones at least are far below the best, so that none is an outlier.
        """
        best = self.large
        larger = [] if best is None else sorted((r for r in self.sizes if r.bytes > best.bytes), key=lambda r: r.bytes)
        if best is None or len(larger) < 2 or larger[-1].busbw_gbs >= _FALLEN * best.busbw_gbs:
            return None
        return larger[-1] if larger[-2].busbw_gbs < _FALLING * best.busbw_gbs else None

    @property
    def best(self) -> BenchmarkSize:
        """That row; of a test without large messages the best of all."""
        return self.large or max(self.sizes, key=lambda row: row.busbw_gbs)

    @property
    def smallest(self) -> BenchmarkSize:
        return min(self.sizes, key=lambda row: row.bytes)

    @property
    def wrong(self) -> int | None:
        """Elements that came out wrong, of all sizes; None where nothing was checked."""
        counts = [row.wrong for row in self.sizes if row.wrong is not None]
        if self.out_of_bounds:
            return max(sum(counts), self.out_of_bounds)
        return sum(counts) if counts else self.out_of_bounds


class InspectorRank(Struct, frozen=True):
    """One rank of one communicator, and one operation of it that Inspector saw complete.

    rank: in its communicator, of `ranks`; of a subgroup that is not the job's rank. communicator: NCCL's hash. name:
    as the program gave it, empty where it gave none. op: ``AllReduce``, …; ``Send`` and ``Recv`` for messages.
    last: the largest sequence number, which NCCL counts for each operation apart. written: by second (since 1970, of
    the rank's host) in which lines were written, the largest number until then. path: the file.
    """

    communicator: str
    name: str
    ranks: int
    rank: int
    op: str
    is_p2p: bool
    count: int
    last: int
    written: tuple[tuple[int, int], ...]
    path: str
    line: int


class InspectorSpeed(Struct, frozen=True):
    """How fast one rank's operations of like size were. least, most: bytes of a message, within a factor of 2. rank,
    communicator, name, ranks: as in `InspectorRank`. busbw_gbs: the median."""

    communicator: str
    name: str
    ranks: int
    rank: int
    op: str
    least: int
    most: int
    count: int
    busbw_gbs: float


class Inspector(Struct, frozen=True):
    """What the files of NCCL Inspector tell together. dropped: operations that it says it lost."""

    files: tuple[str, ...]
    completed: tuple[InspectorRank, ...]
    speeds: tuple[InspectorSpeed, ...]
    dropped: int = 0

    @property
    def collectives(self) -> int:
        """How many collectives: those of the rank that has most of them, of each communicator and operation."""
        counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        for row in self.completed:
            if not row.is_p2p:
                key = row.communicator, row.op
                counts[key] = max(counts[key], row.count)
        return sum(counts.values())

    @property
    def main(self) -> InspectorSpeed | None:
        """The operation and size that moved most bytes, with the median over ranks."""
        alike: defaultdict[tuple[str, str, int], list[InspectorSpeed]] = defaultdict(list)
        for row in self.speeds:
            alike[row.communicator, row.op, row.most.bit_length()].append(row)
        rows = max(alike.values(), key=lambda rows: sum(row.count * row.most for row in rows), default=[])
        if not rows:
            return None
        one = rows[0]
        return InspectorSpeed(
            one.communicator, one.name, one.ranks, one.rank, one.op, min(row.least for row in rows),
            max(row.most for row in rows), max(row.count for row in rows), median(row.busbw_gbs for row in rows),
        )  # fmt: skip


class InspectorTally(Struct):
    """What was read so far of one rank, communicator and operation."""

    count: int = 0
    last: int = 0
    line: int = 1
    written: dict[int, int] = field(default_factory=dict)
