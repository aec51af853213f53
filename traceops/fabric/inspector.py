"""The nouns of what NCCL's Inspector plugin wrote: which operations ranks completed, and how fast they were."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from msgspec import Struct, field


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
    """How fast one rank's operations of like size were. least, most: bytes of a message, within a factor of 2.

    rank, communicator, name, ranks: as in `InspectorRank`. busbw_gbs: the median.
    """

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
