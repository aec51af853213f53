"""A page as browsers and readers take it."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

from traceops.render.writers.html import template_text

TABLES = template_text("tables.js")  # in every page that has a table
TABLES_HASH = base64.b64encode(hashlib.sha256(TABLES.encode()).digest()).decode()

_VOID = {"meta", "link", "br", "img", "input", "hr"}
_CELLS = {"td", "th"}
# Elements of a table that need no end tag, and what ends them.
_ENDED_BY = {
    **{cell: {*_CELLS, "tr", "tbody", "tfoot"} for cell in _CELLS}, "tr": {"tr", "tbody", "tfoot"},
    "thead": {"tbody", "tfoot"}, "tbody": {"tbody", "tfoot"}, "tfoot": {"tbody"},
}  # fmt: skip


class Page(HTMLParser):
    """Elements with their attributes and text, and whether every element was closed in order."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.open: list[str] = []
        self.mismatched: list[str] = []
        self.feed(text if isinstance(text, str) else text.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        while self.open and tag in _ENDED_BY.get(self.open[-1], ()):
            self.open.pop()
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in _ENDED_BY and tag in (*_ENDED_BY, "table"):
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.mismatched.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self) -> str:
        text = "".join(data for path, data in self.texts if not {"script", "style"} & set(path))
        return text.replace("\u00a0", " ")

    def scripts(self) -> list[str]:
        return [data for path, data in self.texts if path[-1:] == ("script",)]
