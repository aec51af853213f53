"""What lies in the working folder or beside a script is executed where Python and torchrun execute it, never by us."""

import subprocess
import sys

import pytest
from started import environment

from traceops.capture import as_script
from traceops.core.as_module import command_of

NAMES = ("queue", "random", "logging", "json", "platform", "signal", "pathlib", "traceback", "time", "dataclasses")
BAD = "raise SystemExit('the file of the working folder was executed: ' + __file__)\n"


@pytest.fixture
def project(tmp_path):
    """A folder with files named like modules of Python and torch, and a program in a folder below."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(BAD)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BAD)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").write_text("import json, queue, sys\nprint(sys.path[0], json.dumps(1))\n")
    return tmp_path


def run(*words, cwd, **more):
    env = {**environment(compiler=True), "TRACEOPS_CAPTURE": '{"out": "run"}', **more}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, text=True, capture_output=True)


@pytest.mark.parametrize("words", [["mcp", "--help"], ["memory", "--help"], ["doctor", "--help"], ["--version"]])
def test_commands_execute_nothing_of_the_folder_in_which_they_are_called(project, words):
    done = run("-m", "traceops", *words, cwd=project)
    assert (done.returncode, "was executed" in done.stdout + done.stderr) == (0, False), done.stderr


def test_processes_of_ours_execute_nothing_of_it_either(project):
    done = subprocess.run(
        [*command_of("traceops"), "analyze", "nothing"], cwd=project, env=environment(compiler=True),
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 3 and "nothing" in done.stderr, done.stderr


def test_a_rank_has_the_path_that_python_gives_its_script(project):
    theirs, ours = (run(*start, "app/train.py", cwd=project) for start in ([], [as_script.__file__]))
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout), ours.stderr


@pytest.mark.parametrize("words", [["app/own.py"], ["-m", "own"]])
def test_a_program_finds_its_own_modules_whose_names_we_have_loaded(tmp_path, words):
    """It got Python's json and queue, which the capture had loaded before."""
    folder = tmp_path if words[0] == "-m" else tmp_path / "app"
    folder.mkdir(exist_ok=True)
    for name in ("json", "queue", "dataclasses"):
        (folder / f"{name}.py").write_text(f"WHOSE = 'own {name}'\n")
    (folder / "own.py").write_text(
        "import dataclasses, json, queue\nprint(json.WHOSE, queue.WHOSE, dataclasses.WHOSE)\n"
    )
    theirs, ours = (run(*start, *words, cwd=tmp_path) for start in ([], [as_script.__file__]))
    assert theirs.stdout == "own json own queue own dataclasses\n", theirs.stderr
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout), ours.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_under_torchrun_runs_in_such_a_folder(project):
    (project / "app" / "train.py").write_text("import torch, queue\ntorch.ones(1)\nprint('trained')\n")
    options = ["run", "--nproc", "2", "--hang-timeout", "0", "--all-ranks", "--out", "runs", "--", "app/train.py"]
    done = run("-m", "traceops", *options, cwd=project, TRACEOPS_CAPTURE="")
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stderr
