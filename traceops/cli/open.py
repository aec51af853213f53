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
_LIVE_S = 10.0  # since the monitor wrote its state: it is at work


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
    """A server of a page's folder. A timeline gets a page that hands it to ui.perfetto.dev, the monitor's state one
    that follows it."""
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
        if (query := urlsplit(self.path).query) in ("perfetto", "live"):
            from traceops.render.writers.html import environment

            name = unquote(urlsplit(self.path).path).rpartition("/")[2]
            data = environment().get_template(f"{query}.html.j2").render(name=quote(name)).encode()
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
