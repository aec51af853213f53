"""A small XML file as elements with their lines; nothing in it is expanded, fetched or executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn
from xml.parsers import expat

from msgspec import Struct, field

from traceops.core.errors import FileError
from traceops.fabric.model import Quote
from traceops.traces.source import Damaged, chunks, open_binary

# NCCL's own parser stops at 4,096 elements and 1,024 levels; a node has ten levels.
_MOST_BYTES = 1 << 24
_MOST_ELEMENTS = 200_000
_DEEPEST = 100
_QUOTED = 300
_WHOLE = re.compile(r"-?(?:0x[0-9a-f]{1,16}|\d{1,18})", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?", re.IGNORECASE | re.ASCII)


class Element(Struct, eq=False):
    """One element. line: from 1, of its begin. Elements are themselves only: equal content is no equality."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def below(self) -> Iterator[tuple[Element, tuple[Element, ...]]]:
        """Every element inside with those around it, from this one on, in the order of the file."""
        pending: list[tuple[Element, tuple[Element, ...]]] = [(child, (self,)) for child in self.children[::-1]]
        while pending:
            element, parents = pending.pop()
            yield element, parents
            pending += [(child, (*parents, element)) for child in element.children[::-1]]

    def whole(self, name: str) -> int | None:
        """An attribute as a whole number, None where it is none."""
        text = self.attributes.get(name, "").strip()
        return int(text, 0 if "x" in text.lower() else 10) if _WHOLE.fullmatch(text) else None

    def number(self, name: str) -> float | None:
        """An attribute as a finite number, None where it is none."""
        text = self.attributes.get(name, "").strip()
        return float(text) if _NUMBER.fullmatch(text) else None

    def quote(self, path: str) -> Quote:
        """The element's begin, as NCCL writes it."""
        said = "".join(f' {name}="{value}"' for name, value in self.attributes.items())
        return Quote(path, self.line, f"<{self.tag}{said}>"[:_QUOTED])


class _Refused(Exception):
    pass


def read_xml(path: str) -> Element:
    """The root element of a file without document type, of bounded size and depth; text and comments left out.

    Raises InputError where the file cannot be read, is no XML or is cut off. A document type is refused whatever is
    in it: entities, which can grow without bound or name other files, need one.
    """
    roots: list[Element] = []
    open_: list[Element] = []
    count = 0
    parser = expat.ParserCreate("utf-8")  # whatever the file declares: Python would look for a codec of that name

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS or len(open_) >= _DEEPEST:
            raise _Refused(f"has more than {_MOST_ELEMENTS:,} elements or {_DEEPEST} levels")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        (open_[-1].children if open_ else roots).append(element)
        open_.append(element)

    def end(_tag: str) -> None:
        open_.pop()

    def refuse(*_: object) -> NoReturn:
        raise _Refused("has a document type, which NCCL never writes")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(_bytes(path), True)  # at once: older expats take quadratic time for long words in pieces
    except expat.ExpatError as error:
        raise FileError(
            path, f"is not whole XML (line {error.lineno}: {expat.ErrorString(error.code)}); have NCCL write it again"
        ) from error
    except _Refused as error:
        raise FileError(path, f"{error}; give a file that NCCL wrote itself") from error
    return roots[0]


def _bytes(path: str) -> bytes:
    parts, size = [], 0
    with open_binary(path) as file:
        try:
            for chunk in chunks(file):
                parts.append(chunk)
                size += len(chunk)
                if size > _MOST_BYTES:
                    raise FileError(
                        path, f"has more than {_MOST_BYTES >> 20} MiB; NCCL's files have some kB: give one of them"
                    )
        except Damaged as error:
            raise FileError(path, f"{error}; give the file that NCCL wrote", ": ") from error
    return b"".join(parts)
