"""The action at the repository's root, and the include for GitLab: ten lines in a workflow, and what they start."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from github_runner import ROOT

from traceops.cli import build_parser

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((ROOT / "examples" / "gitlab" / "traceops.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}

_PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec {python} "$@"; fi
for word in "$@"; do printf '%s\\n' "$word"; done >> {log}
echo -- >> {log}
"""


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_runs_is_bash_and_takes_its_inputs_from_the_environment(name):
    step = STEPS[name]
    assert subprocess.run(["bash", "-n"], input=step["run"], text=True, check=False).returncode == 0
    assert "${{" not in step["run"]
    used = {word for value in step["env"].values() for word in re.findall(r"inputs\.([\w-]+)", value)}
    assert used <= set(ACTION["inputs"])


def git(folder, *words):
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", *words], cwd=folder, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def test_a_pull_request_is_trained_against_its_base_and_compared(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "base")
    base = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "checkout", "-q", "-b", "pr")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "head")
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(_PYTHON.format(python=sys.executable, log=log))
    python.chmod(0o755)
    env = {
        **os.environ, "PYTHON": str(python), "COMMAND": "train.py --name 'a b' $HOME", "REPEAT": "3", "AGAINST": "",
        "THRESHOLD": "4", "BASE_SHA": base, "HEAD_SHA": git(tmp_path, "rev-parse", "HEAD"),
        "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    subprocess.run(["bash", "-c", STEPS["Train and compare"]["run"]], cwd=tmp_path, env=env, check=True)
    run, compare = (part.splitlines() for part in re.split(r"^-m\ntraceops\n", log.read_text(), flags=re.MULTILINE)[1:])
    asked = build_parser().parse_args(run[:-1])
    assert (asked.against, asked.repeat) == (base, 3)
    assert asked.script[-4:] == ["train.py", "--name", "a b", "$HOME"]
    compared = build_parser().parse_args(compare[:-1])
    assert compared.paths == ["profile/pull-request"] and compared.threshold == ["4"]
    assert f"report={tmp_path}/reports/pull-request" in (tmp_path / "output").read_text()


def test_gitlabs_job_starts_the_same():
    job = GITLAB[".traceops-compare"]
    lines = [line.replace("$TRACEOPS_REPEAT", "5") for line in job["script"] if line.startswith("traceops ")]
    for line in lines:
        build_parser().parse_args(shlex.split(line)[1:])
    assert len(lines) == 2


def test_the_readme_has_a_workflow_of_ten_lines():
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    found = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "@v1" in block)
    assert len(found.splitlines()) <= 12
    (job,) = yaml.safe_load(found)["jobs"].values()
    action = next(step for step in job["steps"] if "traceops" in step.get("uses", ""))
    required = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert required <= set(action["with"]) <= set(ACTION["inputs"])
