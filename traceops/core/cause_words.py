"""Words for why a rank is late and for each part of a step, the same in reports, rules and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from traceops.words.catalogue import sections


class CauseWords(Struct, frozen=True):
    """One cause of a rank's lateness.

    label: its name in a table. clause: what the rank does. changed: the same of a rank that was not late before;
    changed_several: of several ranks. What is said of a late rank itself lies in words/late.ini.
    """

    label: str
    clause: str
    changed: str
    changed_several: str = ""


class BucketWords(Struct, frozen=True):
    """One bucket of the step ledger.

    label: in a table or legend. metric: as a metric of a comparison, inside a sentence. definition: one line.
    longer, shorter: what more and less of it means; {device} stands for CPU or GPU. of_rank, of_several: on the
    critical path, behind "rank 3's" and before "on ranks 2, 3"; empty where that time is no rank's own.
    """

    label: str
    metric: str
    definition: str
    longer: str
    shorter: str
    of_rank: str = ""
    of_several: str = ""


W = TypeVar("W", CauseWords, BucketWords)


def _read(kind: str, words: type[W]) -> Mapping[str, W]:
    known = sections("causes").items()
    return {name.removeprefix(kind): words(**own) for name, own in known if name.startswith(kind)}


CAUSES = _read("cause.", CauseWords)
BUCKETS = _read("bucket.", BucketWords)
