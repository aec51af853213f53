"""What sharing the work evenly saves, in percent: a range as the step's length is one."""

from types import SimpleNamespace

import pytest

from traceops.rules.straggler_findings import _shared_pct


@pytest.mark.parametrize(
    ("ends", "least", "said"),
    [
        (None, False, "25"),
        ((80.0, 75.0), False, "20 to 25"),
        ((80.0, 75.0), True, "25"),  # was '(up to 20 to 25 % less)'
        ((102.0, 75.0), False, "0 to 25"),
        ((75.2, 75.0), False, "25"),
    ],
)
def test_the_range_of_percent(ends, least, said):
    assert _shared_pct(SimpleNamespace(cures_are_least=least), ends, 100.0, 25.0) == said
