"""What the HTML pages share: templates that escape everything, and the policy that admits the page's own parts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from traceops.bundled import bundled
from traceops.report.cells import Cell
from traceops.version import __version__

CDN = "https://cdn.plot.ly"
PLOTLYJS = ("inline", "cdn")


def environment() -> Environment:
    """Escapes every value, whatever a template is called."""
    return Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def chart_page(
    template: str, styles: Sequence[str], charts: Mapping[str, Any], plotlyjs: str, content: Mapping[str, Any]
) -> str:
    """A page with plotly charts as text: a template, style sheets by name, figures by the id of their element.

    plotlyjs: 'inline' (works offline, about 5 MB) or 'cdn' (small, needs the network). Everything that came from
    a trace is escaped, and a content security policy admits the page's own scripts only. Raises ValueError for
    another `plotlyjs`.
    """
    if plotlyjs not in PLOTLYJS:
        raise ValueError(f"plotlyjs is one of {', '.join(PLOTLYJS)}, not {plotlyjs!r}")
    import plotly.offline

    library = plotly.offline.get_plotlyjs()
    source = "" if plotlyjs == "inline" else f"{CDN}/plotly-{plotly.offline.get_plotlyjs_version()}.min.js"
    script = template_text("summary.js")
    inline = [script] if source else [library, script]
    return (
        environment()
        .get_template(template)
        .render(
            css="".join(template_text(name) for name in styles),
            library="" if source else library,
            library_source=source,
            library_hash=script_hash(library),
            chart_data=script_json(charts),
            script=script,
            policy=policy(inline, external=script_hash(library) if source else ""),
            charts=charts,
            version=__version__,
            **content,
        )
    )


def script_json(value: Any) -> str:
    """JSON that stays data inside <script>: ASCII only, no '<', '>', '&' or '/' that could end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&/":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def template_text(name: str) -> str:
    return bundled("templates", name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8", "replace")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def policy(scripts: list[str], external: str = "") -> str:
    """Only these scripts run; nothing is loaded but (with 'cdn') plotly.js; plotly sets styles itself."""
    allowed = " ".join(f"'{script_hash(script)}'" for script in scripts) or "'none'"
    if external:
        allowed += f" {CDN} '{external}'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


def word(value: Any) -> Cell:
    """A fact; one that is not known is a dash that says so."""
    return Cell("–", "not known", "unknown") if value in (None, "") else Cell(str(value)[:120], str(value))
