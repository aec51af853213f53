"""Traces packed by columns, under half of what xz makes of their text.

    python packing.py pack TRACE.pt.trace.json.gz    writes TRACE.columns.xz beside it
    python packing.py unpack PACKED.tar FOLDER       traces as they were, truth.json, and the tar's other files

An event's text without its numbers is a template; the numbers of one place of a template are a column of differences.
Events are kept as they were written, save arrows from calls to kernels, which correlation ids repeat.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"(?<![\d.])(0|[1-9]\d*)(?:\.(\d+))?(?![\d.])")
_LEFT_OUT = "ac2g"
_TRACE, _COLUMNS = ".pt.trace.json.gz", ".columns.xz"


def _varints(values: Iterable[int]) -> bytes:
    out = bytearray()
    for value in values:
        value = value << 1 if value >= 0 else (-value << 1) - 1
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _integers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield -(value + 1 >> 1) if value & 1 else value >> 1
            value = shift = 0


def _template(text: str) -> tuple[str, list[int]]:
    """The text with a mark for each number, which names its decimals, and the numbers without their points."""
    numbers: list[int] = []

    def mark(found: re.Match[str]) -> str:
        whole, decimals = found[1], found[2] or ""
        numbers.append(int(whole + decimals))
        return f"\1{len(decimals)}\2"

    return _NUMBER.sub(mark, text), numbers


def pack(trace: dict[str, Any]) -> bytes:
    events = [e for e in trace.pop("traceEvents") if e.get("cat") != _LEFT_OUT]
    templates: dict[str, int] = {}
    columns: list[list[list[int]]] = []
    order = []
    for event in events:
        template, numbers = _template(json.dumps(event, separators=(",", ":")))
        which = templates.setdefault(template, len(templates))
        if which == len(columns):
            columns.append([[] for _ in numbers])
        order.append(which)
        for column, number in zip(columns[which], numbers, strict=True):
            column.append(number)
    parts = [json.dumps([trace, list(templates)]).encode(), _varints(order)]
    for rows in columns:
        for column in rows:
            parts.append(_varints(b - a for a, b in zip([0, *column], column, strict=False)))
    body = b"".join(parts)
    return lzma.compress(json.dumps([len(part) for part in parts]).encode() + b"\n" + body, preset=9)


def unpack(data: bytes) -> dict[str, Any]:
    head, _, body = lzma.decompress(data).partition(b"\n")
    parts, at = [], 0
    for length in json.loads(head):
        parts.append(body[at : at + length])
        at += length
    trace, templates = json.loads(parts[0])
    rest = iter(parts[2:])
    columns = []
    for template in templates:
        columns.append([_sums(next(rest)) for _ in range(template.count("\1"))])
    events = []
    for which in _integers(parts[1]):
        numbers = iter(columns[which])

        def number(found: re.Match[str], numbers: Iterator[Iterator[int]] = numbers) -> str:
            digits, decimals = str(next(next(numbers))), int(found[1])
            digits = digits.zfill(decimals + 1)
            return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits

        events.append(json.loads(re.sub("\1(\\d+)\2", number, templates[which])))
    return {**trace, "traceEvents": events}


def _sums(data: bytes) -> Iterator[int]:
    total = 0
    for difference in _integers(data):
        total += difference
        yield total


def main() -> None:
    if sys.argv[1] == "pack":
        path = Path(sys.argv[2])
        packed = pack(json.loads(gzip.decompress(path.read_bytes())))
        part = path.with_suffix(".part")
        part.write_bytes(packed)
        part.rename(path.with_name(path.name.removesuffix(_TRACE) + _COLUMNS))
        return
    source, folder = map(Path, sys.argv[2:])
    with tarfile.open(source) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is None:
                continue
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.name.endswith(_COLUMNS):
                target = target.with_name(target.name.removesuffix(_COLUMNS) + _TRACE)
                target.write_bytes(gzip.compress(json.dumps(unpack(file.read())).encode(), 5, mtime=0))
                continue
            target.write_bytes(file.read())
            if member.name == "truth.jsonl":
                rows = [json.loads(line) for line in target.read_text().splitlines()]
                target.with_suffix(".json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
