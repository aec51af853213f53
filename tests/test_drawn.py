"""`make test` is the same every time: what hypothesis draws depends on the test alone."""

import sys
from types import ModuleType

from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

LARGE = 8_231_776_451


def drawn() -> list[int]:
    """What a property is tried on."""
    seen: list[int] = []

    @examples(200)
    @given(st.integers())
    def property_(number):
        seen.append(number)

    property_()
    return seen


def test_a_property_is_tried_on_the_same_examples_whatever_our_modules_hold(tmp_path, monkeypatch):
    before = drawn()
    (tmp_path / "some_module.py").write_text(f"NUMBER = {LARGE}\n")
    module = ModuleType("some_module")
    module.__file__ = str(tmp_path / "some_module.py")
    monkeypatch.setitem(sys.modules, "some_module", module)

    assert drawn() == before
    assert LARGE not in before


def test_nothing_is_kept_from_one_run_for_the_next():
    assert settings.default.derandomize
    assert settings.default.database is None
