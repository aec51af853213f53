"""Hooks of ours beside import hooks of the program's."""

import importlib
import importlib.util
import subprocess
import sys

import pytest
from started import environment

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard
from traceops.capture.settings import ENV, CaptureSettings, from_environment, keep_to_this_process


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


def test_a_finder_without_find_spec_is_passed_over_as_python_does(tmp_path, monkeypatch):
    """The capture ended early where the program had one of before Python 3.4."""
    (tmp_path / "watched_beside_it.py").write_text("told = []")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "watched_beside_it", raising=False)
    failures = []
    change = {"watched_beside_it": lambda module: module.told.append("ours")}
    when_loaded(change, Guard(lambda *failure: failures.append(failure)), [])
    assert importlib.import_module("watched_beside_it").told == ["ours"] and failures == []


def test_the_settings_of_a_rank_are_not_its_childrens(tmp_path, monkeypatch):
    """A child that opened a capture of its own wrote into its parent's folder."""
    environ = {ENV: '{"out": "run"}'}
    keep_to_this_process(environ)
    monkeypatch.setenv(ENV, environ[ENV])
    assert from_environment(CaptureSettings()).out == "run"
    code = "from traceops.capture.settings import *; print(from_environment(CaptureSettings()).out)"
    child = subprocess.run([sys.executable, "-c", code], env=environment(compiler=True), text=True, capture_output=True)
    assert child.stdout == "None\n", child.stderr
    for text in ("", "not JSON", "[]", "{}"):
        kept = {ENV: text}
        keep_to_this_process(kept)
        assert kept == {ENV: text}
