"""What benchmarks/structure.py counts of this tree, where it has to be nought."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks import ROOT, structure

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files")


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


# How far the rooms are from what CONTRIBUTING asks for. These only go down: lower them with what you fold.
MOST_LINES = 116046
MOST_SMALL_MODULES = 29
MOST_WITH_ONE_USER = 82
MOST_OVER_20_PATHS = 23
MOST_THAT_DECIDE_AND_WORD = 67
LONGEST_MODULE = 600


def module_lengths() -> dict[str, int]:
    return {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "traceops").rglob("*.py")
        if path.name != "__init__.py"
    }


def test_no_module_is_too_long_to_hold_one_idea() -> None:
    assert {path: lines for path, lines in module_lengths().items() if lines > LONGEST_MODULE} == {}


def test_lines_become_fewer(tree: structure.Tree) -> None:
    assert len(structure.python_lines(tree)) <= MOST_LINES


def test_small_modules_become_fewer(tree: structure.Tree) -> None:
    assert len(found := structure.small(tree)) <= MOST_SMALL_MODULES, found


def test_modules_whose_only_user_is_one_other_become_fewer(tree: structure.Tree) -> None:
    assert len(found := structure.with_one_user(tree)) <= MOST_WITH_ONE_USER, found


def test_functions_of_many_paths_become_fewer(tree: structure.Tree) -> None:
    assert len(found := structure.complex_functions(tree)) <= MOST_OVER_20_PATHS, found


def test_functions_that_decide_and_word_become_fewer(tree: structure.Tree) -> None:
    """Their sentences belong to words/*.ini."""
    assert len(found := structure.mixed(tree)) <= MOST_THAT_DECIDE_AND_WORD, found


def test_no_two_test_modules_have_one_name() -> None:
    """pytest imports them by their base names: a run of all folders would stop at the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_the_picture_of_the_layers_is_the_contract() -> None:
    """docs/architecture.md opens with what import-linter holds: a line a layer, the highest first."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1].strip().splitlines()
    column = lines[0].index("callbacks")  # from there on, what the packages do
    assert [set(line[:column].split()) for line in lines] == structure.layers()
