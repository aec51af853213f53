"""A commit against the working tree: which code each side runs and reads, in which order, and what is left."""

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import psutil
import pytest
from git_project import PROJECT, SCRIPT, git
from started import environment, python_path

from traceops.capture.manifest import RankManifest, write_rank
from traceops.cli import run as command
from traceops.cli.training_options import RUN
from traceops.core.errors import UsageError
from traceops.launch import against
from traceops.launch.against import BaseCommit, find_repository

_DEADLOCK_S = 600
_SCHEDULE = ("--nproc", "1", "--skip-first", "0", "--unprofiled", "1", "--warmup", "1", "--active", "1")


def traceops_run(*argv):
    parser = argparse.ArgumentParser()
    RUN.add_to(parser)
    return command.main(parser.parse_args(argv))


def start(*arguments, python=sys.executable):
    return subprocess.Popen(
        [str(python), "-m", "traceops", "run", "--against", "main", *_SCHEDULE, *arguments],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def nothing_left(repo):
    worktrees = git(repo, "worktree", "list", "--porcelain").count("worktree ")
    return worktrees == 1 and not git(repo, "worktree", "prune", "--dry-run", "--verbose")


def editable_python(repo, folder):
    """A Python with `repo` installed as ``pip install -e`` does it, and everything that this one has."""
    build = "import setuptools.build_meta as b; print(b.build_editable('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=repo, check=True, capture_output=True)
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (wheel,) = (repo / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text("\n".join(path for path in sys.path if "-packages" in path))
    return folder / "bin" / "python"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "order"), [("flat", ["base_1", "head_1", "head_2", "base_2"]), ("src", ["base_1", "head_1"])]
)
def test_each_side_trains_its_own_code_in_turn(repo, tmp_path, layout, order):
    if layout == "src":  # setuptools puts the folder on sys.path then; else it finds the package by its name
        for branch, version in (("main", "old"), ("faster", "new")):
            git(repo, "stash", "--quiet")
            git(repo, "checkout", "--quiet", branch)
            (repo / "src").mkdir(exist_ok=True)
            git(repo, "mv", "pkg", "src/pkg")
            git(repo, "commit", "--quiet", "-am", f"{version} in src")
        (repo / "app" / "lr.txt").write_text("0.02")
        text = PROJECT.replace('packages = ["pkg"]', 'packages = ["pkg"]\npackage-dir = {"" = "src"}')
        (repo / "pyproject.toml").write_text(text)
    python = editable_python(repo, tmp_path / "python")
    repeat = len(order) // 2
    process = start("--repeat", str(repeat), "--", str(repo / "app" / "train.py"), python=python)
    _, err = process.communicate(timeout=_DEADLOCK_S)
    assert process.returncode == 0, err
    out = repo / "app" / "profile" / "train"
    assert err.rstrip().endswith("traceops: next: traceops compare profile/train")
    runs = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/run.json")}
    by_start = sorted(runs, key=lambda label: runs[label]["started_ns"])
    assert by_start == order
    commits = {side: git(repo, "rev-parse", ref) for side, ref in (("base", "main"), ("head", "HEAD"))}
    for label, run in runs.items():
        side = label[:4]
        code, data, branch = ("old", "0.01", "main") if side == "base" else ("new", "0.02", "faster")
        assert (out / label / "logs" / "rank_0.stdout.log").read_text() == f"ran {code} with {data}\n"
        assert run["git"] == {"commit": commits[side], "branch": branch, "dirty": side == "head"}
        assert run["argv"] == [str(repo / "app" / "train.py")] and run["profiled_steps"] == [2]
    assert json.loads((out / "pairs.json").read_text()) == {
        "schema_version": 1,
        "base": {"ref": "main", "commit": commits["base"]},
        "head": {"commit": commits["head"], "dirty": True},
        "repeat": repeat,
        "order": by_start,
    }
    assert nothing_left(repo)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_series_keeps_what_is_complete_and_leaves_no_worktree(repo, number):
    process = start("--env", f"PYTHONPATH={python_path(repo)}", "--", "-m", "train", "--steps", "100000")
    deadline = time.monotonic() + _DEADLOCK_S
    while "step" not in (line := process.stderr.readline()) or "before" in line:
        assert process.poll() is None and time.monotonic() < deadline, line
    assert not nothing_left(repo)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=_DEADLOCK_S)
    assert process.returncode == 128 + number, err
    assert f"base_1, main at {git(repo, 'rev-parse', 'main')[:10]}, ended with {128 + number}" in err
    assert nothing_left(repo)
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert json.loads(Path("profile/train/pairs.json").read_text())["order"] == []


@pytest.mark.torch
@pytest.mark.slow
def test_a_base_that_runs_code_of_the_head_is_refused(repo, tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(repo)!r})\n{SCRIPT}")
    process = start("--", str(script))
    _, err = process.communicate(timeout=_DEADLOCK_S)
    assert process.returncode == 2 and "base_1 imported pkg/__init__.py from the working tree" in err, err
    assert nothing_left(repo) and not Path("profile/bench/head_1").exists()


@pytest.fixture
def trained(monkeypatch, repo):
    """Labels of the trainings, which are not started: each leaves a manifest, and ends as `codes` says."""
    labels, codes, meanwhile = [], {}, {}

    def launch(plan, advise):
        label = plan.out.name
        labels.append(label)
        assert not nothing_left(repo) and not advise
        meanwhile.get(label, lambda: None)()
        trace = [] if codes.get(label) == "short" else ["rank_0/a.pt.trace.json.gz"]
        note = None if trace else "only 1 step"
        write_rank(plan.out, RankManifest(0, 0, 1, "h", 1, {"type": "cpu"}, {}, {}, traces=trace, note=note))
        return codes.get(label, 0) if trace else 0

    monkeypatch.setattr(against, "launch", launch)
    return argparse.Namespace(labels=labels, codes=codes, meanwhile=meanwhile)


def kept():
    return json.loads(Path("profile/train/pairs.json").read_text())["order"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_that_fails_ends_the_series_with_its_exit_code(repo, trained, capsys):
    trained.codes["head_2"] = 7
    assert traceops_run("--against", "main", "--", "train.py") == 7
    assert trained.labels == ["base_1", "head_1", "head_2"] and kept() == ["base_1", "head_1"]
    err = capsys.readouterr().err
    commit = git(repo, "rev-parse", "HEAD")[:10]
    assert f"head_2, the working tree on {commit} with changes, ended with 7" in err
    assert "2 of 10 trainings are complete in profile/train" in err and "compare" not in err
    assert nothing_left(repo)


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_too_short_to_record_ends_the_series(repo, trained):
    trained.codes["base_1"] = "short"
    with pytest.raises(UsageError, match="base_1 recorded nothing to compare: only 1 step"):
        traceops_run("--against", "main", "--", "train.py")
    assert trained.labels == ["base_1"] and nothing_left(repo)


@pytest.mark.torch
@pytest.mark.slow
def test_a_signal_between_two_trainings_cleans_up_too(repo, trained):
    trained.meanwhile["head_1"] = lambda: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        traceops_run("--against", "main", "--", "train.py")
    assert left.value.code == 143 and kept() == ["base_1"] and nothing_left(repo)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.torch
@pytest.mark.slow
def test_code_that_changes_while_the_series_runs_is_said(repo, trained, capsys):
    trained.meanwhile["head_1"] = lambda: (repo / "pkg" / "__init__.py").write_text("VERSION = 3\n")
    assert traceops_run("--against", "main", "--repeat", "2", "--", "train.py") == 0
    assert capsys.readouterr().err.count("tracked files changed during the series") == 1


@pytest.mark.torch
@pytest.mark.slow
def test_a_series_is_one_run_to_whoever_names_the_next(repo, trained, capsys):
    series = ("--against", "main", "--repeat", "1")
    assert traceops_run(*series, "--", "train.py") == 0
    assert traceops_run("--dry-run", "--", "train.py") == 0
    assert "profile/train-2" in capsys.readouterr().out
    with pytest.raises(UsageError, match="add --overwrite"):
        traceops_run(*series, "--name", "train", "--", "train.py")
    Path("profile/train/base_7/rank_0").mkdir(parents=True)
    Path("profile/train/base_7/run.json").write_text("{}")
    Path("profile/train/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no commit"):
        traceops_run("--against", "nowhere", "--overwrite", "--name", "train", "--", "train.py")
    assert kept() == ["base_1", "head_1"], "nothing is removed for a series that cannot start"
    assert traceops_run(*series, "--overwrite", "--name", "train", "--", "train.py") == 0
    assert {path.name for path in Path("profile/train").iterdir()} == {
        "base_1", "head_1", "pairs.json", "notes.txt",
    }  # fmt: skip


@pytest.mark.torch
@pytest.mark.slow
def test_dry_run_prints_every_command(repo, capsys):
    argv = ("--against", "main", "--repeat", "2", "--active", "6", "--dry-run")
    assert traceops_run(*argv, "--", "train.py", "--lr", "1") == 0
    add, *trainings, remove, _ = capsys.readouterr().out.splitlines()
    tree = shlex.split(add)[-2]
    assert f"cd {tree}/app && " in trainings[0] and shlex.split(remove)[-1] == tree
    sides = [("(cd " in line, json.loads(line.split("'")[1])) for line in trainings]
    assert [Path(capture["out"]).name for _, capture in sides] == ["base_1", "head_1", "head_2", "base_2"]
    assert [is_base for is_base, _ in sides] == [True, False, False, True]
    assert {json.dumps(capture["schedule"]) for _, capture in sides} == {'{"active": 6}'}
    assert not Path("profile").exists() and nothing_left(repo)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--against", "nowhere", "--", "train.py"], "nowhere: .* has no commit, branch or tag of that name"),
        (["--against", "--all", "--", "train.py"], "expected one argument"),
        (["--against", "", "--", "train.py"], "an empty --against: give the commit"),
        (["--against", "shared", "--", "train.py"], "use origin/shared"),
        (["--against", "main", "--", "new.py"], "it has no app/new.py; commit it there"),
        (["--against", "main", "--", "-m", "new"], "it has no module new"),
        (["--against", "main", "--repeat", "0", "--", "train.py"], "--repeat 0"),
        (["--against", "main", "--nnodes", "2", "--rdzv-endpoint", "h", "--", "train.py"], "one machine"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_written(repo, argv, reason, capsys):
    Path("new.py").write_text("")
    git(repo, "update-ref", "refs/remotes/origin/shared", "main")
    with pytest.raises((UsageError, SystemExit)) as refused:
        traceops_run(*argv)
    assert re.search(reason, str(refused.value) + capsys.readouterr().err)
    assert not Path("profile").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_working_folder_that_the_commit_lacks_is_refused(repo, monkeypatch):
    (repo / "new").mkdir()
    monkeypatch.chdir(repo / "new")
    with pytest.raises(UsageError, match="it has no folder new; start in"):
        traceops_run("--against", "main", "--", "../app/train.py")


@pytest.mark.torch
@pytest.mark.slow
def test_without_a_repository_or_git_the_reason_is_said(repo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"repository that .* lies in: not a git repository"):
        traceops_run("--against", "main", "--", "project/app/train.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install git"):
        traceops_run("--against", "main", "--", "project/app/train.py")


@pytest.mark.torch
@pytest.mark.slow
def test_git_s_own_variables_do_not_lead_astray(repo, trained, monkeypatch):
    """As in a hook, where GIT_INDEX_FILE names the index of what is being committed."""
    monkeypatch.setenv("GIT_INDEX_FILE", str(repo / ".git" / "index"))
    before = (repo / ".git" / "index").read_bytes()
    assert traceops_run("--against", "main", "--repeat", "1", "--", "train.py") == 0
    assert (repo / ".git" / "index").read_bytes() == before


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
