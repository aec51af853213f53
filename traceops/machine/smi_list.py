"""Reads the GPUs that ``nvidia-smi -L`` lists, also where torch.utils.collect_env or vLLM's shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LISTED = re.compile(r"GPU (\d{1,4}): (\S.{0,199}?) \(UUID: ([^)]{1,80})\)\s*$")
_BARE = re.compile(r"GPU (\d{1,4})[:：] (\S.{0,199}?)\s*$")  # collect_env leaves the UUIDs out
_SLICE = re.compile(r"\s{1,8}MIG \S{1,40} +Device +\d{1,3}:")
_MODELS = re.compile(r"GPU models and configuration *:\s*(.{0,200})$")


@dataclass(frozen=True)
class ListedGpu:
    """mig: slices of it are listed below it."""

    index: int
    name: str
    uuid: str | None = None
    mig: bool = False


def the_same_gpus(lists: Sequence[list[ListedGpu]]) -> tuple[ListedGpu, ...]:
    """The GPUs of the last list; none where two lists tell of different GPUs."""
    if not lists or any(_differ(one, lists[-1]) for one in lists):
        return ()
    return tuple(lists[-1])


def _differ(one: list[ListedGpu], other: list[ListedGpu]) -> bool:
    """Whether they are of different GPUs; a list without UUIDs may be of the same ones."""
    known = all(gpu.uuid for gpu in (*one, *other))
    return [(gpu.index, gpu.name, known and gpu.uuid) for gpu in one] != [
        (gpu.index, gpu.name, known and gpu.uuid) for gpu in other
    ]


def lists_of_gpus(text: str) -> list[list[ListedGpu]]:
    """All lists of a text."""
    lists: list[list[ListedGpu]] = [[]]
    bare = False  # inside of collect_env's
    for line in text.splitlines():
        if (begin := _MODELS.search(line)) is not None:
            lists.append([])
            bare, line = True, begin[1]
        match = _LISTED.match(line) or (_BARE.match(line) if bare else None)
        if match is not None:
            gpu = ListedGpu(int(match[1]), match[2], match[3] if match.re is _LISTED else None)
            if any(gpu.index <= other.index for other in lists[-1]):
                lists.append([])
            lists[-1].append(gpu)
        elif lists[-1] and _SLICE.match(line):
            last = lists[-1][-1]
            lists[-1][-1] = ListedGpu(last.index, last.name, last.uuid, mig=True)
        elif line.strip():
            bare = False
    return [one for one in lists if one]
