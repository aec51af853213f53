"""A comparison of two runs in every format: one renderer a format, all pure functions of a Comparison."""

from __future__ import annotations

from pathlib import Path

from traceops.compare.model import Comparison
from traceops.render.comparison import exports
from traceops.render.comparison.markdown import render_markdown
from traceops.render.files import write_files

FORMATS = ("html", "md", "json", "junit", "sarif", "csv")
FILES = (
    "compare.html", "compare.md", "compare.json", "compare.junit.xml", "compare.sarif", *exports.CSV_FILES,
)  # fmt: skip


def write_comparison(
    comparison: Comparison, folder: Path, formats: tuple[str, ...] = FORMATS, *, name: str = "", plotlyjs: str = "none"
) -> list[Path]:
    """Write the chosen formats into `folder`, each file whole or not at all; returns the paths, the page first. Files
    of an earlier comparison in the folder that this one does not write are removed, others are left. `name` tells
    several comparisons of one pull request apart: each has its own comment and its own alerts. Raises InputError where
    the folder cannot be written to."""
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        from traceops.render.comparison.html import render_comparison_html

        contents["compare.html"] = render_comparison_html(comparison, plotlyjs=plotlyjs)
    if "md" in formats:
        contents["compare.md"] = render_markdown(comparison, name=name)
    if "json" in formats:
        contents["compare.json"] = exports.render_comparison_json(comparison)
    if "junit" in formats:
        contents["compare.junit.xml"] = exports.render_junit(comparison)
    if "sarif" in formats:
        contents["compare.sarif"] = exports.render_sarif(comparison, name=name)
    if "csv" in formats:
        contents |= exports.render_comparison_csv(comparison)
    return write_files(contents, set(FILES), folder)
