"""What the HTML pages share: templates that escape everything, and the policy that admits the page's own parts."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from traceops.bundled import bundled
from traceops.report.cells import Cell

CDN = "https://cdn.plot.ly"


def environment() -> Environment:
    """Escapes every value, whatever a template is called."""
    return Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


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
