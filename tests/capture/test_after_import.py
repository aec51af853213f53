"""Hooks of ours beside import hooks of the program's."""

import importlib
import importlib.util
import sys

import pytest

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard


class Finder:
    """An import hook of a program's: adds to what a module defines, as tracing packages do."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.told.append("the program's")

        spec.loader.exec_module = exec_module
        return spec


@pytest.mark.parametrize("ours_first", [True, False])
def test_an_import_hook_of_the_programs_sees_the_module_too(tmp_path, monkeypatch, ours_first):
    (tmp_path / "watched_by_both.py").write_text("told = []")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "watched_by_both", raising=False)
    theirs, undo = Finder("watched_by_both"), []
    change = {"watched_by_both": lambda module: module.told.append("ours")}
    for hook in (True, False):
        if hook is ours_first:
            when_loaded(change, Guard(lambda *failure: None), undo)
        else:
            sys.meta_path.insert(0, theirs)
    before = [finder for finder in sys.meta_path if finder is not theirs]
    module = importlib.import_module("watched_by_both")
    assert sorted(module.told) == ["ours", "the program's"]
    assert len(sys.meta_path) == len(before) - 1, "both look no more"
