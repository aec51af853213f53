import pytest

from traceops.load.kineto import load_trace


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads bytes as a trace file, optionally read in chunks of a given size."""

    def run(data, chunk=None, name="rank_0.json"):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        with monkeypatch.context() as patch:
            if chunk:
                patch.setattr("traceops.load.source.CHUNK_BYTES", chunk)
            return load_trace(str(path))

    return run
