"""`traceops run --summarize`, after the training: a trace that cannot be summarised costs its summary only."""

import shutil
from pathlib import Path

import pytest

from traceops.launch.summarize import summarize_traces
from traceops.pipeline.mapping import ranks

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "not enough memory"), (KeyError("x"), "KeyError"), (OSError("gone"), "gone")]
)
def test_a_trace_that_cannot_be_summarised_is_named_and_the_others_are(tmp_path, monkeypatch, error, said):
    folder = Path(shutil.copytree(DATA / "ddp4", tmp_path / "ddp4"))
    summarize = ranks.summarize

    def fail(file, *options):
        if file.rank == 2:
            raise error
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "summarize", fail)
    count, [problem] = summarize_traces(folder, {1, 2, 3})
    assert count == 2
    assert "rank_2.pt" in problem
    assert said in problem
    written = {path.name for path in folder.glob("*.summary.*")}
    assert written == {f"rank_{rank}.summary.msgpack.gz" for rank in (1, 3)}
