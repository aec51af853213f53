"""The numbers behind a finding on the page: digits in groups, but for a number that names something."""

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.render.finding_blocks import evidence_table
from traceops.rules.registry import BY_ID


def test_a_process_is_named_by_a_number_that_can_be_pasted():
    """The page said "28 593 mypy", and the terminal "pid 28593"."""
    evidence = [Evidence(Fact.PID, 28593, "mypy, 41 % of a core"), Evidence(Fact.KERNELS, 28593, "a step")]
    table = evidence_table(BY_ID["TO-W002"].finding("warning", "high", "x.", evidence))
    told = [cell.text for row in table.rows for cell in row if "28" in cell.text]
    assert told == ["28593 mypy, 41 % of a core", "28\u202f593 a step"]
