import pytest

from traceops.traces.event_columns import native_columns
from traceops.traces.kineto import load_trace


@pytest.fixture(params=["compiled", "plain"])
def either_scanner(request, monkeypatch):
    """Runs a test with the compiled scanner and with pure Python; both must hold what it says."""
    use_scanner(monkeypatch, request.param)


def use_scanner(patch, which):
    patch.setenv("TRACEOPS_NATIVE", "1" if which == "compiled" else "0")
    if which == "compiled" and native_columns(False) is None:
        pytest.skip("the compiled scanner was not built")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads bytes as a trace file, optionally read in chunks of a given size, by a scanner of choice."""

    def run(data, chunk=None, name="rank_0.json", scanner=None):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        with monkeypatch.context() as patch:
            if chunk:
                patch.setattr("traceops.traces.source.CHUNK_BYTES", chunk)
                if chunk < 100:  # or two threads take turns at each of 60,000 chunks
                    patch.setattr("traceops.traces.source._AHEAD", 2000)
                    patch.setattr("traceops.traces.source._AT_ONCE", 1000)
            if scanner:
                use_scanner(patch, scanner)
            return load_trace(str(path))

    return run
