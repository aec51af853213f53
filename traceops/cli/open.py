"""`traceops open`: a page or timeline served on loopback, under a token, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import secrets
import socket
import sys
import time
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from traceops.cli.arguments import output_folder
from traceops.core.errors import InputError, UsageError
from traceops.core.live_pulses import STATE_FILE
from traceops.core.text import near_path

_PAGES = ("summary.html", "compare.html", "hang.html", "runs.html", "doctor.html", "index.html", "timeline.pftrace.gz")
_OVER_SSH = "On your own machine: ssh -N -L {port}:127.0.0.1:{port} {user}@{host}"
_HTML = "text/html; charset=utf-8"
_TIMELINES = (".pftrace", ".pftrace.gz", ".json", ".json.gz")
# ui.perfetto.dev takes a trace from the page that opened it [https://perfetto.dev/docs/visualization/deep-linking].
_PERFETTO = """<!doctype html><meta charset="utf-8"><title>{name}</title>
<button>Open {name} in ui.perfetto.dev</button> <span>The file stays in this browser.</span>
<script>
document.querySelector("button").onclick = async () => {{
  const ui = "https://ui.perfetto.dev", tab = window.open(ui);
  const buffer = await (await fetch("{file}")).arrayBuffer();
  const ask = setInterval(() => tab.postMessage("PING", ui), 50);
  window.addEventListener("message", event => {{
    if (event.origin !== ui || event.data !== "PONG") return;
    clearInterval(ask);
    tab.postMessage({{perfetto: {{buffer, title: "{name}"}}}}, ui);
  }});
}};
</script>"""


# Follows live.json, which the monitor writes anew every second.
_LIVE_S = 10.0
_LIVE = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>live</title>
<style>body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
  color-scheme: light dark } td, th { padding: 0 1em 0 0; text-align: right } .page, .slow { color: #c22 }
  li { margin-bottom: .4em; white-space: pre-wrap }</style>
<h1></h1><p id="head"></p><ul id="events"></ul><table><thead></thead><tbody></tbody></table>
<script>
const at = selector => document.querySelector(selector);
const make = (tag, text, name = "") => Object.assign(document.createElement(tag), {textContent: text, className: name});
const row = (tag, cells, name) => {
  const tr = make("tr", "", name);
  tr.append(...cells.map(cell => make(tag, cell)));
  return tr;
};
const pct = value => value === undefined ? "" : Math.round(100 * value);
at("thead").append(row("th", ["rank", "step", "ms", "usual ms", "own %", "input %", "backward %", "waiting %", "GiB"]));
async function look() {
  try {
    const told = await (await fetch("live.json", {cache: "no-store"})).json();
    const old = Date.now() / 1000 - told.time_ns / 1e9;
    at("h1").textContent = document.title = told.run;
    const spent = Object.entries(told.seconds).filter(([, s]) => s >= 1);
    const parts = spent.map(([part, s]) => `${part} ${Math.round(s)} s`);
    at("#head").textContent = [told.ended ? "ended" : old > 10 ? `no monitor for ${Math.round(old)} s` : "running",
      `goodput ${pct(told.goodput)} %`, ...parts].join(" · ");
    at("#events").replaceChildren(...told.events.slice(-8).reverse().map(event => make("li",
      `${new Date(event.seen_ns / 1e6).toLocaleTimeString()}  ${event.message}`, event.page ? "page" : "")));
    at("tbody").replaceChildren(...told.ranks.slice(0, 256).map(one => row("td", [one.rank, one.step, one.ms ?? "",
      one.usual_ms ?? "", ...["own", "input", "backward", "waiting"].map(kind => pct((one.share || {})[kind])),
      ((one.held || one.resident || 0) / 2 ** 30).toFixed(2)], one.slow ? "slow" : "")));
  } catch (error) { at("#head").textContent = "not reachable" }
}
look(); setInterval(look, 1000);
</script>"""


def main(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises InputError where there is nothing to show, with the command that makes it."""
    page = page_of(args.path)
    try:
        server = serve(page, args.port)
    except OSError as error:
        raise UsageError(f"--port {args.port}: {error.strerror}; leave it out for a free one") from error
    port = server.server_address[1]
    print(server.address if args.quiet else f"{page} at {server.address}", flush=True)
    if args.quiet:
        pass
    elif "SSH_CONNECTION" in os.environ:
        print(_OVER_SSH.format(port=port, user=getpass.getuser(), host=socket.gethostname()))
    elif not args.no_browser and (sys.platform == "darwin" or os.environ.get("DISPLAY")):
        webbrowser.open(server.address)
    if not args.quiet:
        print("Ctrl-C ends it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
    return 0


def page_of(path: str) -> Path:
    """The page or timeline that a path means. Raises InputError."""
    given = Path(path)
    if given.is_file():
        if given.suffix == ".html" or given.name.endswith(_TIMELINES):
            return given
        if given.parent.joinpath("summary.html").is_file():
            return given.parent / "summary.html"
        raise InputError(f"{path} is neither a page nor a timeline; give a report folder")
    if not given.exists():
        raise InputError(f"{path} does not exist{near_path(path)}")
    live = given / STATE_FILE
    if live.is_file() and time.time() - live.stat().st_mtime < _LIVE_S:
        return live
    for folder in (given, output_folder(path, given.name)):
        for name in _PAGES:
            if (folder / name).is_file():
                return folder / name
    if live.is_file():
        return live
    raise InputError(f"{path} has no report yet; make it with: traceops analyze {path}")


class _Server(ThreadingHTTPServer):
    """On loopback. address: with the token without which nothing is served."""

    daemon_threads = True
    address = ""


def serve(page: Path, port: int = 0) -> _Server:
    """A server of a page's folder.

    A timeline gets a page that hands it to ui.perfetto.dev, the monitor's state one that follows it.
    """
    token = secrets.token_urlsafe(16)
    server = _Server(("127.0.0.1", port), partial(_Handler, token=token, page=page))
    server.address = f"http://127.0.0.1:{server.server_address[1]}/{token}/{quote(page.name)}"
    if page.name == STATE_FILE:
        server.address += "?live"
    elif page.name.endswith(_TIMELINES):
        server.address += "?perfetto"
    return server


class _Handler(SimpleHTTPRequestHandler):
    """Files of the page's folder, under /TOKEN/."""

    def __init__(self, *args: object, token: str, page: Path) -> None:
        self._token, self._page = token, page
        super().__init__(*args, directory=str(page.parent.resolve()))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if not self._allowed():
            return
        query = urlsplit(self.path).query
        if query in ("perfetto", "live"):
            name = unquote(urlsplit(self.path).path).rpartition("/")[2]
            data = (_LIVE if query == "live" else _PERFETTO.format(name=quote(name), file=quote(name))).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _HTML)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.path = self.path.removeprefix(f"/{self._token}")
        super().do_GET()

    def do_HEAD(self) -> None:
        if self._allowed():
            self.path = self.path.removeprefix(f"/{self._token}")
            super().do_HEAD()

    def _allowed(self) -> bool:
        """Whether the request has the token, and names this machine: not a page of the web that resolves to it."""
        host = (self.headers.get("Host") or "").partition(":")[0]
        if self.path.startswith(f"/{self._token}/") and host in ("127.0.0.1", "localhost"):
            return True
        self.send_error(HTTPStatus.NOT_FOUND)
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""
