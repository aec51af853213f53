"""A Document as one self-contained page that works offline; the policy admits the page's own scripts only."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import json
import marshal
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket, BytecodeCache, bc_magic
from msgspec.structs import replace

from traceops.core.documents import json_bytes
from traceops.core.errors import InputError
from traceops.core.files import write_whole
from traceops.core.installation import bundled
from traceops.core.rank_text import first_steps_text, ranks_text
from traceops.core.text import TURNS
from traceops.render.cells import number
from traceops.render.document import AlignedSteps, Checks, Document, FindingBlock, TableBlock
from traceops.render.svg.figure import plot_of
from traceops.render.svg.marks import lanes_plot
from traceops.version import __version__

CDN = "https://cdn.plot.ly"
BUNDLE = "cartesian"  # of plotly's own bundles the smallest with bar, box, heatmap and scatter
PLOTLYJS = ("none", "inline", "cdn")
_HERE = "plotly.js comes here"
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")
_LINK = re.compile(r'<a href="#(?P<to>[^"]*)"[^>]*>(?P<words>.*?)</a>', re.DOTALL)
_ID = re.compile(r' (?:id|aria-labelledby|aria-describedby|aria-controls)="|href="#|url\(#')
_INDENTED = re.compile(r"(?m)^ +(?://.*\n)?")
_CONTROL = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{''.join(map(chr, TURNS))}]")


@functools.cache
def environment() -> Environment:
    """Escapes every value, whatever a template is called. `unbroken` keeps '57 %' in one line."""
    made = Environment(
        loader=FileSystemLoader(bundled("templates")), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, bytecode_cache=_CompiledBesideThem(),
    )  # fmt: skip
    made.filters["unbroken"] = lambda text: _BEFORE_PERCENT.sub("\u00a0", text)
    return made


class _CompiledBesideThem(BytecodeCache):
    """Compiled templates in the `__pycache__` of their folder, written, read and trusted as that of our modules is.
    Where that folder cannot be written, and nobody compiled them there, each process compiles what it fills."""

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            stored = _compiled(bucket).read_bytes()
            if stored.startswith(made_of := _made_of(bucket)):
                bucket.code = marshal.loads(stored[len(made_of) :])
        except (OSError, EOFError, ValueError, TypeError):
            return

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        try:
            file = _compiled(bucket)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, _made_of(bucket) + marshal.dumps(bucket.code))
        except OSError:
            return


def _compiled(bucket: Bucket) -> Path:
    return Path(importlib.util.cache_from_source(str(bundled("templates") / f"{bucket.key}.j2")))


def _made_of(bucket: Bucket) -> bytes:
    """What stands before the code: the digest of all that it was made from."""
    made = bucket.environment
    settings = (bucket.checksum, made.autoescape, made.trim_blocks, made.lstrip_blocks, made.undefined.__name__)
    return hashlib.sha256(importlib.util.MAGIC_NUMBER + bc_magic + repr(settings).encode()).digest()


def scoped_css(css: str, scope: str) -> str:
    """A style sheet of ours that counts only inside elements of `scope`, which stand for the page (CSS nesting)."""
    inside = re.sub(r"(?m)(^|[\s,{}])(?::root|html|body)(?=\s*[,{])", r"\1&", css)
    return f"{scope} {{\n{inside}\n}}\n"


def _bytes(text: str) -> bytes:
    """In UTF-8; a page has no control characters, whatever the names in it have."""
    return _CONTROL.sub("\ufffd", text).encode("utf-8", "replace")


@functools.cache
def plotly_js() -> tuple[bytes, str]:
    """The bundle of plotly.js that comes with traceops (templates/plotly/), and its hash. Raises InputError where it is
    missing."""
    library = bundled("templates", "plotly", f"plotly-{BUNDLE}.min.js").read_bytes()
    return library, script_hash(library)


def plotly_js_source(library: bytes) -> str:
    """Where the CDN has the same file: its version stands in the comment that plotly.js begins with."""
    if (found := re.search(rb"plotly\.js \((\w+) - minified\) v([\w.+-]+)", library[:1000])) is None:
        raise InputError("plotly.js does not say its version; use --plotlyjs inline")
    return f"{CDN}/plotly-{found[1].decode()}-{found[2].decode()}.min.js"


def script_json(value: Any) -> str:
    """JSON that stays data inside <script>: ASCII only, no '<', '>', '&' or '/' that could end the element."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):  # numpy's numbers, or some that are not finite
        text = json.dumps(msgspec.json.decode(json_bytes(value)), allow_nan=False, separators=(",", ":"))
    for char in "<>&/":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def template_text(name: str) -> str:
    """A script or style sheet, without indentation and remarks that are indented."""
    return _INDENTED.sub("", bundled("templates", name).read_text(encoding="utf-8"))


def script_hash(script: bytes) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}"


def policy(scripts: Sequence[str], external: str = "") -> str:
    """Only scripts with these hashes run; nothing is loaded but (with 'cdn') plotly.js; plotly sets styles itself."""
    allowed = " ".join(f"'{script}'" for script in scripts) or "'none'"
    if external:
        allowed += f" {CDN} '{external}'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


TEMPLATE = "document.html.j2"
FRAGMENT = "fragment.html.j2"


def write_html(document: Document, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. Its charts are SVG; it holds no script but those that the document names, and one that sorts
    and searches tables where there are any.

    plotlyjs: 'inline' and 'cdn' let plotly.js draw the charts anew, to zoom and hide series: offline with 1.5 MB more,
    or from the network. Every word is escaped, and a content security policy admits the page's own scripts only. Raises
    ValueError for another `plotlyjs`, InputError where plotly.js is missing."""
    if plotlyjs not in PLOTLYJS:
        raise ValueError(f"plotlyjs is one of {', '.join(PLOTLYJS)}, not {plotlyjs!r}")
    figures, styles, scripts = document.charts, list(document.styles), list(document.scripts)
    if any(isinstance(block, TableBlock | FindingBlock | Checks) for block in document.all_blocks):
        styles.append("tables.css")
        scripts.append("tables.js")
    interactive = bool(figures) and plotlyjs != "none"
    scripts += ["interactive.js"] if interactive else []
    library, library_hash = plotly_js() if interactive else (b"", "")
    source = plotly_js_source(library) if interactive and plotlyjs == "cdn" else ""
    own = [template_text(name) for name in scripts]
    hashes = [script_hash(script.encode()) for script in own]
    if interactive and not source:
        hashes.insert(0, library_hash)
    text = environment().get_template(TEMPLATE).render(
        css="".join(map(template_text, styles)), library=_HERE if interactive and not source else "",
        library_source=source, library_hash=library_hash, figure_data=script_json(figures) if interactive else "",
        scripts=own, policy=policy(hashes, library_hash if source else ""), version=__version__,
        **_content(document, figures),
    )  # fmt: skip
    if not interactive or source:
        return _bytes(text)
    # 1.5 MB that need no escaping go in last, as bytes; what comes after them is the template's own.
    before, _, after = text.rpartition(_HERE)
    return b"".join((_bytes(before), library, _bytes(after)))


def write_fragment(document: Document) -> str:
    """What a notebook shows of a document, in an element of the class `traceops-report`: heading, verdict, what stands
    above its sections, and its findings. No script; its style sheets count inside of it only. What it links to on its
    own page and does not hold is shown without a link. Every word is escaped."""
    shown = replace(document, sections=tuple(one for one in document.sections if one.id == "findings"), scripts=())
    css = scoped_css("".join(map(template_text, shown.styles)), ".traceops-report")
    content = _content(shown, shown.charts)
    text = environment().get_template(FRAGMENT).render(css=css, version=__version__, **content)
    there = set(re.findall(r' id="([^"]+)"', text))
    text = _LINK.sub(lambda link: link[0] if link["to"] in there else link["words"], text)
    own = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]  # another part of the same page has its ids
    return _bytes(_ID.sub(lambda found: f"{found[0]}t{own}-", text)).decode()


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
        "listed": {c.rule for block in document.all_blocks if isinstance(block, Checks) for c in block.checks},
        "data_of": lambda part: script_json(part.data),
        "plots": {
            **{id: plot_of(figure) for id, figure in figures.items()},
            **{steps.id: lanes_plot(steps) for steps in aligned},
        },
    }


def prepare_pages() -> None:
    """Read what every page needs; best done while its document is not there yet."""
    parts = ("blocks", "macros", "plot", "topology", "step_timeline", "hang_graph", "finding")
    for template in (TEMPLATE, *(f"_{part}.html.j2" for part in parts)):
        environment().get_template(template)
