"""Traces and summaries in stores: memory, and a real web server, one that breaks off among them."""

import contextlib
import functools
import gzip
import http.server
import threading

import pytest
from summary_folders import copied, report_text, to_summaries

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks
from traceops.traces.discover import discover

fsspec = pytest.importorskip("fsspec")


class _Server(http.server.SimpleHTTPRequestHandler):
    """Lists folders and gives files; `broken` is a part of the name of files that end half-way."""

    broken = None
    etags = None
    asked = ()

    def log_message(self, *_):
        pass

    def end_headers(self):
        if self.etags is not None and self.path.endswith(".gz"):
            self.send_header("ETag", self.etags[0])
        super().end_headers()

    def copyfile(self, source, outputfile):
        self.asked.append(self.path)
        if self.broken and self.broken in self.path:
            data = source.read()
            outputfile.write(data[: len(data) // 2])
            outputfile.flush()
            self.connection.close()
        else:
            super().copyfile(source, outputfile)


@pytest.fixture
def serve(tmp_path):
    """Serves the test's folder over HTTP; returns its URL."""
    pytest.importorskip("aiohttp")
    running = []

    def start(**attributes):
        handler = type("Handler", (_Server,), {"asked": [], **attributes})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(tmp_path)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}", handler

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
    fsspec.get_filesystem_class("http").clear_instance_cache()


def as_local(text, folder, url):
    """The report as if the traces had lain in a folder; hangs are looked for in local folders only."""
    text = text.replace(url, str(folder))
    return text.replace(
        "evidence of a hang is read from local folders only", "the run folder holds no evidence of a hang"
    )


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_that_a_web_server_lists(ddp, tmp_path, serve, slash):
    expected = report_text(ddp)
    url, _ = serve()
    assert as_local(report_text(f"{url}/ddp4{slash}"), tmp_path, url) == expected


def test_traces_and_summaries_in_nested_folders_of_a_web_server(tmp_path, serve):
    run = copied("runs/zero3", tmp_path)
    expected = report_text(run)
    to_summaries(run, ranks=(1, 3))
    (run / "evidence").mkdir()
    (run / "evidence" / "rank_9.json").write_text("{}")
    url, _ = serve()
    assert as_local(report_text(f"{url}/zero3"), tmp_path, url) == expected


def test_one_file_of_a_web_server(ddp, serve):
    url, handler = serve()
    report = analyze(f"{url}/ddp4/rank_2.pt.trace.json.gz")
    assert report.run.ranks_present == (2,)
    assert {path for path in handler.asked if "json" in path} == {"/ddp4/rank_2.pt.trace.json.gz"}


@pytest.mark.parametrize("plain", [False, True], ids=["at once", "while it is read"])
def test_a_server_that_breaks_off_costs_that_rank(ddp, serve, plain):
    name = "rank_1.pt.trace.json.gz"
    if plain:  # too large to be read when the folder is looked through
        (ddp / name.removesuffix(".gz")).write_bytes(gzip.decompress((ddp / name).read_bytes()))
        (ddp / name).unlink()
        name = name.removesuffix(".gz")
    url, _ = serve(broken="rank_1")
    assert (len(discover(f"{url}/ddp4").windows[0].files) == 4) == plain
    report = analyze(f"{url}/ddp4", cache=False)
    assert report.run.ranks_present == (0, 2, 3)
    [finding] = [f for f in report.findings if f.rule == "TO-V002"]
    assert f"{url}/ddp4/{name}" in finding.message


def test_a_server_that_breaks_off_in_a_summary_costs_that_rank(ddp, serve):
    to_summaries(ddp)
    url, _ = serve(broken="rank_3")
    report = analyze(f"{url}/ddp4", cache=False)
    assert report.run.ranks_present == (0, 1, 2)
    [finding] = [f for f in report.findings if f.rule == "TO-V002"]
    assert "rank_3.summary.msgpack.gz" in finding.message


def test_what_is_not_there_is_named(serve, tmp_path, capsys):
    url, _ = serve()
    for path in (f"{url}/nowhere", f"{url}/rank_0.json", "http://127.0.0.1:9/x", "memory://nowhere"):
        assert main(["analyze", path, "-o", str(tmp_path / "out")]) == InputError.exit_code
        assert path in capsys.readouterr().err


@contextlib.contextmanager
def counted(monkeypatch):
    parsed = []
    summarize = ranks.summarize
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "summarize", lambda file, *options: parsed.append(file.rank) or summarize(file, *options))
        yield parsed


@pytest.mark.slow
def test_a_remote_trace_is_cached_only_where_the_store_tells_a_checksum(ddp, serve, cache, monkeypatch):
    for etags, again in ((None, [0, 1, 2, 3]), (['W/"weak"'], [0, 1, 2, 3]), (['"one"'], [])):
        url, handler = serve(etags=etags)
        analyze(f"{url}/ddp4", jobs=1)
        with counted(monkeypatch) as parsed:
            analyze(f"{url}/ddp4", jobs=1)
        assert parsed == again
    handler.etags[0] = '"two"'
    with counted(monkeypatch) as parsed:
        analyze(f"{url}/ddp4", jobs=1)
    assert parsed == [0, 1, 2, 3]


def test_memory_store_with_traces_and_summaries(ddp, tmp_path):
    expected = report_text(ddp)
    to_summaries(ddp, ranks=(0,))
    memory = fsspec.filesystem("memory")
    memory.put(str(ddp), "/mapping/ddp4", recursive=True)
    text = report_text("memory://mapping/ddp4", jobs=2)
    assert as_local(text, tmp_path, "memory:///mapping") == expected
    memory.rm("/mapping", recursive=True)
