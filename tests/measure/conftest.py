"""What tests of HTA's tables share: the answers of HTA's own code, a fifth of a second for each trace."""

import pytest

from traceops.measure import hta_bridge

_answers = {}


@pytest.fixture
def remembered_hta(monkeypatch):
    """HTA's own code is run once over a trace of tests/data, whichever test asks first."""
    ask = hta_bridge.hta_frames

    def remembered(rank, trace):
        if (rank, trace.path) not in _answers:
            _answers[rank, trace.path] = ask(rank, trace)
        frames, failed = _answers[rank, trace.path]
        return dict(frames), failed

    monkeypatch.setattr(hta_bridge, "hta_frames", remembered)


@pytest.fixture(autouse=True)
def _remembered_where_asked_most(request):
    """Asked for here: CI runs that module without conftest.py, beside the other distribution of HTA."""
    if request.path.name == "test_hta_agreement.py":
        request.getfixturevalue("remembered_hta")
