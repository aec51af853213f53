"""What TO-O001 and TO-O003 tell of collectives in real gloo traces: which are gradients, where, in how many passes."""

from pathlib import Path

import pytest

from traceops.across.roles import of_gradients
from traceops.core.claims import claim_of
from traceops.measure.exchanges import BACKWARD
from traceops.measure.phases import AFTER
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.rules.overlap_claims import Exposed, StartsLate
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"


def ranks(name):
    [window] = discover(str(DATA / name)).windows
    return [summarize(file) for file in window.files]


def test_norms_that_are_reduced_behind_backward_are_no_gradients():
    """'97 % of the gradients' transfer (124 collectives a step) comes after backward', of 4 bytes each, beside DDP."""
    for summary in ranks("clip_norms_gloo2"):
        assert [int((summary.comm.phase == phase).sum()) for phase in (BACKWARD, AFTER)] == [4, 32]
        assert of_gradients(summary).sum() == 4
    report = analyze(DATA / "clip_norms_gloo2")
    assert not [found for found in report.findings if found.kind == StartsLate.kind]


@pytest.mark.parametrize("name, reduced", [("synced_passes_gloo2", 3), ("last_pass_gloo2", 1)])
def test_passes_that_reduce_gradients_are_counted(name, reduced):
    assert {(one.backward.passes, one.backward.reduced) for one in ranks(name)} == {(3, reduced)}


def test_gradients_that_each_backward_pass_reduces_are_told():
    def passes(name):
        claims = [claim_of(found, Exposed) for found in analyze(DATA / name).findings]
        return [claim.passes for claim in claims if claim is not None and claim.passes]

    assert passes("synced_passes_gloo2") == [3]
    assert passes("last_pass_gloo2") == []
