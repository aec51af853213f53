"""Compiled templates are reused only where they are what their source says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2 import DictLoader, Environment

from traceops.render.template_cache import TemplateCache


def rendered(source: str, **settings: Any) -> str:
    """By an environment of its own, as another process would have."""
    loader = DictLoader({"a.j2": source})
    environment = Environment(loader=loader, bytecode_cache=TemplateCache(), **settings)
    return environment.get_template("a.j2").render(x="<")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "templates"


def test_a_template_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendered("a{{ x }}") == "a<"
    assert len(list(folder.iterdir())) == 1
    monkeypatch.delattr(Environment, "_compile")
    assert rendered("a{{ x }}") == "a<"


def test_what_changed_is_compiled_again_in_the_same_file(folder: Path) -> None:
    assert rendered("a{{ x }}") == "a<"
    assert rendered("b{{ x }}") == "b<"
    assert rendered("b{{ x }}", autoescape=True) == "b&lt;"
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_damaged_file_is_compiled_again(folder: Path, keep: int) -> None:
    rendered("a{{ x }}")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    assert rendered("a{{ x }}") == "a<"
    assert file.read_bytes() == whole


def test_without_a_folder_templates_are_compiled_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for chosen in (str(tmp_path / "file"), "off"):
        monkeypatch.setenv("TRACEOPS_CACHE", chosen)
        assert rendered("a{{ x }}") == "a<"
