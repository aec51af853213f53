"""A Document as one self-contained page that works offline."""

from __future__ import annotations

from traceops.core.rank_text import ranks_text
from traceops.render import page
from traceops.render.cells import number
from traceops.render.document import Document

TEMPLATE = "document.html.j2"


def write_html(document: Document, *, plotlyjs: str = "inline") -> bytes:
    """The page in UTF-8. Without charts it holds no script.

    plotlyjs: 'inline' works offline, 'cdn' is small and needs the network. Every word is escaped, and a content
    security policy admits the page's own scripts only. Raises ValueError for another `plotlyjs`, InputError where
    plotly.js is missing.
    """
    from traceops.render.report.terms import COLUMNS

    content = {
        "document": document,
        "number": number,
        "ranks_text": ranks_text,
        "definitions": COLUMNS,
    }
    charts = document.charts
    if not charts:
        return page.plain_page(TEMPLATE, document.styles, content)
    return page.chart_page(TEMPLATE, document.styles, charts, plotlyjs, content)


def prepare() -> None:
    """Read what every page needs; best done while its document is not there yet."""
    page.prepare(
        TEMPLATE,
        "_blocks.html.j2",
        "_macros.html.j2",
        "_topology.html.j2",
        "_hang_graph.html.j2",
        "_finding.html.j2",
    )
