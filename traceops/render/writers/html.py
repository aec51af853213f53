"""A Document as one self-contained page that works offline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from traceops.core.rank_text import first_steps_text, ranks_text
from traceops.render.page import fragment, html_page, prepare, script_json
from traceops.render.answer import AlignedSteps
from traceops.render.cells import number
from traceops.render.document import Checks, Document, FindingBlock, TableBlock
from traceops.render.svg.figure import plot_of
from traceops.render.svg.lanes import lanes_plot

TEMPLATE = "document.html.j2"
FRAGMENT = "fragment.html.j2"


def write_html(document: Document, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. Its charts are SVG; it holds no script but those that the document
    names, and one that sorts and searches tables where there are any.

    plotlyjs: 'inline' and 'cdn' let plotly.js draw the charts anew, to zoom and hide series: offline with 1.5 MB more,
    or from the network. Every word is escaped, and a content security policy admits the page's own scripts only.
    Raises ValueError for another `plotlyjs`, InputError where plotly.js is missing.
    """
    figures = document.charts
    tables = any(isinstance(block, TableBlock | FindingBlock | Checks) for block in document.all_blocks)
    return html_page(
        TEMPLATE,
        (*document.styles, *(("tables.css",) if tables else ())),
        _content(document, figures),
        figures=figures,
        plotlyjs=plotlyjs,
        scripts=(*document.scripts, *(("tables.js",) if tables else ())),
    )


def write_fragment(document: Document) -> str:
    """What a notebook shows of a document: heading, verdict, what stands above its sections, and its findings.

    No script; its style sheets count inside of it only. Every word is escaped.
    """
    shown = replace(document, sections=tuple(one for one in document.sections if one.id == "findings"), scripts=())
    return fragment(FRAGMENT, shown.styles, _content(shown, shown.charts))


def _content(document: Document, figures: Mapping[str, Any]) -> dict[str, Any]:
    from traceops.render.report.terms import COLUMNS

    aligned = [block for block in document.all_blocks if isinstance(block, AlignedSteps)]
    return {
        "document": document,
        "number": number,
        "ranks_text": ranks_text,
        "first_steps_text": first_steps_text,
        "definitions": COLUMNS,
        "zoomed": "step_timeline.js" in document.scripts,
        "files": document.files,
        "data_of": lambda part: script_json(part.data),
        "plots": {
            **{id: plot_of(figure) for id, figure in figures.items()},
            **{steps.id: lanes_plot(steps) for steps in aligned},
        },
    }


def prepare_pages() -> None:
    """Read what every page needs; best done while its document is not there yet."""
    prepare(
        TEMPLATE,
        "_blocks.html.j2",
        "_macros.html.j2",
        "_plot.html.j2",
        "_topology.html.j2",
        "_step_timeline.html.j2",
        "_hang_graph.html.j2",
        "_finding.html.j2",
    )
