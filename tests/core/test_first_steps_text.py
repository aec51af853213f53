"""Steps of a finding in words."""

from traceops.core.findings import MOST_STEPS
from traceops.core.rank_text import first_steps_text


def test_steps_are_not_counted_where_there_may_be_more_of_them():
    """'in steps 24, 36, 48 … (64 in all)' stood beside an evaluation that came 97 times."""
    assert first_steps_text(range(0, 200, 12), 3) == "0, 12, 24 … (17 in all)"
    assert first_steps_text(range(0, 12 * MOST_STEPS, 12), 3) == "0, 12, 24 …"
