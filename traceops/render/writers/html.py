"""A Document as one self-contained page that works offline."""

from __future__ import annotations

from traceops.core.rank_text import ranks_text
from traceops.render import page
from traceops.render.cells import number
from traceops.render.document import Document
from traceops.render.svg.figure import plot_of

TEMPLATE = "document.html.j2"


def write_html(document: Document, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. Its charts are SVG; it holds no script but those that the document names.

    plotlyjs: 'inline' and 'cdn' let plotly.js draw the charts anew, to zoom and hide series: offline with 1.5 MB more,
    or from the network. Every word is escaped, and a content security policy admits the page's own scripts only.
    Raises ValueError for another `plotlyjs`, InputError where plotly.js is missing.
    """
    from traceops.render.report.terms import COLUMNS

    figures = document.charts
    content = {
        "document": document,
        "number": number,
        "ranks_text": ranks_text,
        "definitions": COLUMNS,
        "plots": {id: plot_of(figure) for id, figure in figures.items()},
    }
    return page.html_page(
        TEMPLATE, document.styles, content, figures=figures, plotlyjs=plotlyjs, scripts=document.scripts
    )


def prepare() -> None:
    """Read what every page needs; best done while its document is not there yet."""
    page.prepare(
        TEMPLATE,
        "_blocks.html.j2",
        "_macros.html.j2",
        "_plot.html.j2",
        "_topology.html.j2",
        "_hang_graph.html.j2",
        "_finding.html.j2",
    )
