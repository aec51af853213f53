"""Real traces and the summaries made of them, and what a report of either says."""

import shutil
from pathlib import Path

import msgspec
import numpy as np

from traceops.core import documents
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping.ranks import write_summary
from traceops.report.document import document_of
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"
RUNS = (
    "ddp4",
    "fsdp2_4",
    "hsdp4",
    "item_sync4",
    "pipeline4",
    "slow_gpu4",
    "slow_hsdp4",
    "slow_loader4",
    "hta/amd",
    "hta/cpu_only",
    "hta/ns",
    "hta/pair",
    "runs/bucket_ddp_async",
    "runs/pytorch_hsdp",
    "runs/zero3",
)


def copied(name, folder):
    """A copy of one of the runs, under its own name."""
    return Path(shutil.copytree(DATA / name, folder / Path(name).name))


def to_summaries(folder, ranks=None):
    """Writes a summary of each trace (of these ranks) and removes the trace; returns the summaries' paths."""
    files = [file for window in discover(str(folder)).windows for file in window.files]
    written = []
    for file in files:
        if ranks is None or file.rank in ranks:
            written.append(write_summary(file))
            Path(file.path).unlink()
    return written


def report_text(path, **options):
    """report.json of what is under a path."""
    return documents.json_text(document_of(analyze(path, **{"cache": False, **options})))


def assert_same(one, other, where=""):
    """Every part of two summaries is the same, bit by bit."""
    if isinstance(one, msgspec.Struct):
        for name in one.__struct_fields__:
            assert_same(getattr(one, name), getattr(other, name), f"{where}.{name}")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        assert one.tobytes() == other.tobytes(), where
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other), where
        for at, (own, their) in enumerate(zip(one, other, strict=True)):
            assert_same(own, their, f"{where}[{at}]")
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key, own in one.items():
            assert_same(own, other[key], f"{where}[{key}]")
    else:
        own = one.item() if isinstance(one, np.generic) else one
        assert (type(own), repr(own)) == (type(other), repr(other)), where
