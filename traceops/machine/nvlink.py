"""Reads what nvidia-smi says of NVLinks and of direct access between GPUs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

_GPU = re.compile(r"GPU (\d{1,4}): ")
_LINK = re.compile(r"\s*Link (\d{1,3}): (.*)")
_SPEED = re.compile(r"(\d{1,5}(?:\.\d+)?) GB/s")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"GPU (\d{1,4}): (.{1,200}?) \(UUID: ([^)]{1,80})\)")
_SAID = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "X"))  # of `topo -p2p`; `topo -m` says PIX, NV4, SYS


@dataclass(frozen=True)
class Links:
    """NVLinks of one GPU: GB/s one way of each that is up, and how many exist and are not up."""

    up: tuple[float, ...]
    down: int


def parse_nvlink_status(text: str) -> dict[int, Links]:
    """What ``nvidia-smi nvlink -s`` says, by GPU; a GPU without NVLink has no links."""
    speeds: dict[int, list[float]] = {}
    down: dict[int, int] = defaultdict(int)
    gpu: int | None = None
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = int(head[1])
            speeds.setdefault(gpu, [])
        elif gpu is not None and (link := _LINK.match(line)):
            speed = _SPEED.match(link[2])
            if speed:
                speeds[gpu].append(float(speed[1]))
            elif "inactive" in link[2].lower():
                down[gpu] += 1
    return {index: Links(tuple(found), down[index]) for index, found in speeds.items()}


def named_gpus(text: str) -> tuple[tuple[int, str, str], ...]:
    """Index, name and UUID of the GPUs that ``nvidia-smi nvlink -s`` lists, each once."""
    found = (_NAMED.match(line) for line in text.splitlines())
    return tuple(dict.fromkeys((int(head[1]), head[2], head[3]) for head in found if head))


def parse_p2p(text: str) -> dict[tuple[int, int], str]:
    """What ``nvidia-smi topo -p2p r`` says of each pair: ``OK``, ``CNS``, ``GNS``, ``TNS``, ``NS``, ``DR``, ``U``.

    Other matrices in the text are passed over; of several of this kind the first counts.
    """
    return next(iter(p2p_matrices(text)), {})


def p2p_matrices(text: str) -> list[dict[tuple[int, int], str]]:
    """What each matrix of ``nvidia-smi topo -p2p`` in the text says of each pair."""
    columns: list[int] = []
    found: list[dict[tuple[int, int], str]] = []
    pairs: dict[tuple[int, int], str] = {}
    for line in _COLOUR.sub("", text).splitlines():
        words = line.split()
        labels = [re.fullmatch(r"GPU(\d{1,4})", word) for word in words]
        if words and all(labels):
            columns = [int(label[1]) for label in labels if label]
            pairs = {}
        elif columns and words and labels[0] and len(words) == len(columns) + 1 and _SAID.issuperset(words[1:]):
            row = int(labels[0][1])
            for column, word in zip(columns, words[1:], strict=True):
                if column != row:
                    pairs.setdefault((row, column), word)
            if pairs and not (found and found[-1] is pairs):
                found.append(pairs)
    return found
