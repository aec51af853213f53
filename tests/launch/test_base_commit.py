"""What the base imports and reads, and what it does not."""

import sys
from pathlib import Path

import pytest
from git_project import git

from traceops.core.errors import UsageError
from traceops.launch import against
from traceops.launch.against import BaseCommit
from traceops.launch.repository import find_repository


def base_of(repo, folder, ref="main"):
    repository = find_repository(Path.cwd())
    return BaseCommit(repository, ref, repository.commit(ref), Path.cwd(), folder)


def test_the_path_of_the_base_keeps_its_order_and_what_is_not_the_repository_s(repo, tmp_path, monkeypatch):
    site = repo / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["first", str(site), str(repo / "pkg"), "/elsewhere"])
    base = base_of(repo, tmp_path / "t")
    path = against.python_path(base, {"PYTHONPATH": f"/before:..:{site}"})
    assert path == ["/before", str(base.tree), str(site), str(base.tree / "pkg")]


def test_arguments_that_mean_something_else_to_the_base_are_named(repo, tmp_path):
    (repo / "app" / "mine.txt").write_text("0.1")
    base = base_of(repo, tmp_path / "t")
    words = ["train.py", "--lr=mine.txt", "lr.txt", "--data", "profile", str(repo / "app" / "lr.txt"), "x" * 5000]
    untracked, shared = against.argument_warnings(base, words)
    assert untracked.startswith("mine.txt is not in main at ")
    assert shared.startswith(f"{repo}/app/lr.txt: both sides use that of the working tree")


def test_a_changed_package_that_is_installed_as_a_copy_is_refused(repo, tmp_path):
    base = base_of(repo, tmp_path / "t")
    site = tmp_path / "site-packages"
    mine = [base.tree / "pkg" / "__init__.py", site / "torch" / "__init__.py"]
    assert against.check_imports(base, "base_1", mine) == []
    with pytest.raises(UsageError, match=r"imported pkg/__init__\.py as installed in .*/site-packages"):
        against.check_imports(base, "base_1", [*mine, site / "pkg" / "__init__.py"])
    # a package inside a package is not what is installed under its name
    (repo / "pkg" / "torch").mkdir()
    (repo / "pkg" / "torch" / "__init__.py").write_text("")
    git(repo, "add", ".")
    assert against.check_imports(base, "base_1", mine) == []
    (repo / "local.py").write_text("")
    (warning,) = against.check_imports(base, "base_1", [*mine, repo / "local.py"])
    assert "imported local.py from the working tree" in warning
