"""The matrix of pairs in the doctor's report."""

from traceops.render.doctor.html import matrix_table
from traceops.render.doctor.rows import PairMatrix


def test_pairs_that_moved_nothing_have_the_lightest_colour():
    """As a damaged doctor.json says it: this ended in a division by zero."""
    matrix = PairMatrix(None, (0, 1), {(0, 1): 0.0, (1, 0): 0.0}, {}, frozenset())
    cells = [row[1 + column] for row, column in zip(matrix_table(matrix).rows, (1, 0), strict=True)]
    assert [cell.colour for cell in cells] == ["rgba(0, 114, 178, 0.060)"] * 2
