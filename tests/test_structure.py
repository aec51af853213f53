"""What benchmarks/structure.py counts of this tree, where it has to be nought."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")
sys.path.insert(0, str(ROOT / "benchmarks"))

import structure  # noqa: E402


@pytest.fixture(scope="module")
def tree() -> structure.Tree:
    return structure.work_tree()


def test_imports_point_down_and_in_no_circles(tree: structure.Tree) -> None:
    assert not structure.upward(tree)
    assert not structure.circles(tree)
    assert not structure.each_other(tree)


def test_an_import_inside_a_function_has_a_reason(tree: structure.Tree) -> None:
    late = {line.rpartition(":")[0] for line in structure.in_functions(tree)}
    assert late <= set(structure.LATE)
