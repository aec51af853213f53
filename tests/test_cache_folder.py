"""The cache is where the user wants it, and never in a place that depends on where the command runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.core.files import cache_folder


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEOPS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_users_choice_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder("x") == tmp_path / ".cache" / "traceops" / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("x") == tmp_path / "xdg" / "traceops" / "x"
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "own"))
    assert cache_folder("x") == tmp_path / "own" / "x"
    monkeypatch.setenv("TRACEOPS_CACHE", "off")
    assert cache_folder("x") is None


@pytest.mark.parametrize("home", ["relative", "~nobody-has-this-name/x"])
def test_without_a_home_there_is_none(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert cache_folder("x") is None
