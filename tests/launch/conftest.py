import pytest
from git_project import PROJECT, SCRIPT, git


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A project whose package and data differ between main and the working tree; the test starts in its app/."""
    for name in ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)
    root = tmp_path / "project"
    for folder in ("app", "pkg"):
        (root / folder).mkdir(parents=True)
    (root / "app" / "train.py").write_text(SCRIPT)
    (root / "pkg" / "__init__.py").write_text('VERSION = "old"\n')
    (root / "app" / "lr.txt").write_text("0.01")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / ".gitignore").write_text("profile/\n.venv/\n*.egg-info/\nbuild/\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "old")
    git(root, "checkout", "--quiet", "-b", "faster")
    (root / "pkg" / "__init__.py").write_text('VERSION = "new"\n')
    git(root, "commit", "--quiet", "-am", "new")
    (root / "app" / "lr.txt").write_text("0.02")
    monkeypatch.chdir(root / "app")
    return root
