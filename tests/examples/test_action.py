"""The action, by itself and at the repository's root, and the workflows around it, run in a repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from github_runner import MARKER, ROOT, PullRequest, run_action

from traceops.cli import build_parser

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")


_SCRIPT = """
import time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(17):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(SECONDS)
    optimizer.step()
"""
_TRAINING = {
    "command": "train.py",
    "nproc": "1",
    "repeat": "2",
    "threshold": "50 kernels=off",
    # wherever the options put it, profile/pull-request is what is compared
    "run-options": "--skip-first 1 --unprofiled 8 --warmup 2 --active 6 --out profile/elsewhere --name other",
    "python": sys.executable,
}


def git(folder, *arguments):
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Checkout:
    """A repository as actions/checkout leaves it: on a merge of the pull request onto main."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch=main")
        (folder / ".gitignore").write_text("profile/\nreports/\n")
        self.commit(0.3)
        self.old_main = git(folder, "rev-parse", "HEAD")
        git(folder, "checkout", "--quiet", "-b", "change")
        self.commit(0.2)
        git(folder, "checkout", "--quiet", "main")
        self.commit(0.01)

    def commit(self, seconds):
        (self.folder / "train.py").write_text(_SCRIPT.replace("SECONDS", str(seconds)))
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "-m", f"sleeps {seconds} s")

    def push(self, seconds):
        """The event of a push to the pull request after which a merged step sleeps so long."""
        git(self.folder, "checkout", "--quiet", "--detach", "main")
        git(self.folder, "merge", "--quiet", "--no-ff", "--strategy=ours", "-m", "merge", "change")
        (self.folder / "train.py").write_text(_SCRIPT.replace("SECONDS", str(seconds)))
        git(self.folder, "commit", "--quiet", "--all", "--amend", "--no-edit")
        # GitHub's base.sha is where main was when the pull request was opened
        head = git(self.folder, "rev-parse", "change")
        return {"number": 7, "base": {"sha": self.old_main}, "head": {"sha": head}}


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "workspace")


@pytest.fixture
def pull_request(tmp_path):
    return PullRequest(tmp_path / "runner")


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_a_regression_fails_and_the_fixed_push_passes_on_one_comment(checkout, pull_request, tmp_path):
    event = checkout.push(0.3)  # far beyond what a busy machine adds
    done = run_action(_TRAINING, pull_request, checkout.folder, event)
    assert done.code == 1, done.log
    assert (done.outputs["verdict"], done.outputs["exit-code"]) == ("regression", "1")
    assert "step time" in done.outputs["sentence"]
    assert f"1 of 4: base_1, {git(checkout.folder, 'rev-parse', 'HEAD^1')[:10]}" in done.log
    assert "::error title=step time regressed::" in done.log and done.summary.startswith(MARKER)
    report = checkout.folder / "reports" / "pull-request"
    assert done.outputs["report"] == str(report) and (report / "compare.junit.xml").is_file()
    (comment,) = pull_request.read()["comments"]
    first, second = comment["body"].splitlines()[:2]
    assert first == MARKER and done.outputs["sentence"][:40] in second
    assert f"Commit {event['head']['sha'][:10]}, in [this run](https://github.example/" in comment["body"]

    store = tmp_path / "baselines"
    save = [sys.executable, "-m", "traceops", "baseline", "save", "--store", str(store), "--branch", "main"]
    save += ["--name", "small"]
    bases = ["profile/pull-request/base_1", "profile/pull-request/base_2"]
    subprocess.run([*save, *bases], check=True, cwd=checkout.folder, env=pull_request.environ())
    inputs = {**_TRAINING, "repeat": "1", "baseline": "small", "store": str(store)}
    done = run_action(inputs, pull_request, checkout.folder, checkout.push(0.01))
    assert done.code == 0, done.log
    warned = [line for line in done.log.splitlines() if "::warning" in line]
    # A busy machine may leave the step time open, which passes too.
    assert all("step time is inconclusive" in line for line in warned), done.log
    assert not (checkout.folder / "profile" / "elsewhere").exists()
    assert done.outputs["verdict"] in ("no_regression", "inconclusive") and done.outputs["exit-code"] == "0"
    (again,) = pull_request.read()["comments"]
    assert again["id"] == comment["id"] and again["body"] != comment["body"]
    assert again["body"].startswith(f"{MARKER}\n") and "❌" not in again["body"].splitlines()[1]
    assert pull_request.state["calls"] == ["post", f"update {comment['id']}"]


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_what_cannot_be_measured_is_said_in_the_comment_of_an_earlier_commit(checkout, pull_request):
    pull_request.add("<!-- traceops-compare:big -->\n**✅ No regression**", own=True)
    pull_request.add(f"{MARKER}\n**✅ No regression**", own=True)
    inputs = {**_TRAINING, "command": "gone.py", "name": "big"}
    (checkout.folder / "gone.py").write_text("")
    done = run_action(inputs, pull_request, checkout.folder, checkout.push(0.01))
    assert done.code == 2, done.log
    assert (done.outputs["verdict"], done.outputs["exit-code"]) == ("not_measured", "2")
    named, other = pull_request.read()["comments"]
    said = "**❌ Not measured: traceops ended with exit code 2"
    assert named["body"].startswith(f"<!-- traceops-compare:big -->\n{said}")
    assert "\n    traceops run: --against" in named["body"] and "it has no gone.py" in named["body"]
    assert other["body"] == f"{MARKER}\n**✅ No regression**"
    assert "Not measured" in done.summary and "::error title=traceops compare::Not measured" in done.log


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_the_comment_says_what_the_training_died_of(checkout, pull_request):
    event = checkout.push(0.01)
    script = "import sys\nprint('fine so far')\nimport no_such_package # ``` @everybody\n"
    (checkout.folder / "train.py").write_text(script)
    stale = checkout.folder / "profile" / "pull-request"
    stale.mkdir(parents=True)
    (stale / "run.json").write_text('{"status": "failed", "started_ns": 9e18, "failed_rank": null}')
    done = run_action({**_TRAINING, "repeat": "1"}, pull_request, checkout.folder, event)
    assert (done.code, done.outputs["verdict"]) == (1, "not_measured"), done.log
    (comment,) = pull_request.read()["comments"]
    body = comment["body"].split("\n<sub>")[0].splitlines()
    assert "    head_1, rank 0:" in body
    assert "    ModuleNotFoundError: No module named 'no_such_package'" in body
    assert all(line.startswith("    ") for line in body[2:] if line), body
    assert len("\n".join(body)) < 1000


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_a_baseline_found_by_an_unknown_model_is_warned_about(checkout, pull_request, tmp_path):
    inputs = {**_TRAINING, "repeat": "1", "baseline": "auto", "store": str(tmp_path / "empty")}
    done = run_action(inputs, pull_request, checkout.folder, checkout.push(0.01))
    assert "::warning title=traceops compare::The training does not say which model" in done.log
    assert done.outputs["verdict"] == "not_measured" and done.code != 0


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_words_of_the_inputs_reach_the_training_and_no_shell(checkout, pull_request):
    inputs = {
        **_TRAINING,
        "command": "train.py --text 'two words' '$(touch a)' ; touch b",
        "run-options": "--dry-run --env X=$(touch${IFS}c)",
        "comment": "false",
    }
    done = run_action(inputs, pull_request, checkout.folder, checkout.push(0.01))
    assert "train.py --text 'two words' '$(touch a)' ';' touch b" in done.log
    assert {path.name for path in checkout.folder.iterdir()} <= {".git", ".gitignore", "train.py", "reports"}
    assert pull_request.read()["calls"] == []


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"name": "../elsewhere"}, "the input name takes letters"),
        ({"name": "a--b"}, "the input name takes letters"),
        ({"repeat": "1; rm"}, "the input repeat takes a number"),
        ({"command": "train.py 'half"}, "the input command is no list of words"),
        ({"command": " "}, "the input command is empty"),
        ({"python": "/nowhere/python"}, "/nowhere/python has no traceops, or another project's"),
    ],
)
def test_an_input_that_cannot_work_is_named(checkout, pull_request, inputs, reason):
    done = run_action({**_TRAINING, **inputs}, pull_request, checkout.folder, {})
    assert done.code == 2 and f"::error title=traceops compare::{reason}" in done.log, done.log
    assert pull_request.read()["calls"] == []


@pytest.mark.torch
@pytest.mark.slow
@needs_torch
def test_without_the_commits_of_the_base_the_way_out_is_said(checkout, pull_request, tmp_path):
    event = checkout.push(0.01)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{checkout.folder}", str(shallow))
    done = run_action(_TRAINING, pull_request, shallow, event)
    assert done.code == 2 and "give actions/checkout fetch-depth: 0" in done.log


# The action at the repository's root, and the include for GitLab: ten lines in a workflow, and what they start.


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


def commit(folder, *words):
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", *words], cwd=folder, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def test_a_pull_request_is_trained_against_its_base_and_compared(tmp_path):
    commit(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, "commit", "-q", "--allow-empty", "-m", "base")
    base = commit(tmp_path, "rev-parse", "HEAD")
    commit(tmp_path, "checkout", "-q", "-b", "pr")
    commit(tmp_path, "commit", "-q", "--allow-empty", "-m", "head")
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(_PYTHON.format(python=sys.executable, log=log))
    python.chmod(0o755)
    env = {
        **os.environ, "PYTHON": str(python), "COMMAND": "train.py --name 'a b' $HOME", "REPEAT": "3", "AGAINST": "",
        "THRESHOLD": "4", "BASE_SHA": base, "HEAD_SHA": commit(tmp_path, "rev-parse", "HEAD"),
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


# Scripts of the workflows around the action: what is measured at all, what the gate makes of it, comments on forks.


WORKFLOWS = ROOT / "examples" / "github-actions"


def run_step(pull_request, workflow, job, **env):
    """Run the last step with a script of a job; `env` replaces what comes from GitHub."""
    steps = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"][job]["steps"]
    step = [step for step in steps if "run" in step][-1]
    own = {name: value for name, value in step["env"].items() if "${{" not in value}
    assert env.keys() | {"GH_TOKEN"} >= step["env"].keys() - own.keys()
    folder = pull_request.folder
    (folder / "output").write_text("")
    done = subprocess.run(
        ["bash", "-c", step["run"]], cwd=folder, capture_output=True, text=True,
        env={**pull_request.environ(), "GITHUB_OUTPUT": str(folder / "output"), **own, **env},
    )  # fmt: skip
    return done, (folder / "output").read_text()


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has inside")
@pytest.mark.parametrize(
    ("files", "matter"),
    [(["README.md", "docs/a.rst"], False), (["README.md", "train.py"], True), (["requirements.txt"], True)],
)
def test_documents_are_not_measured(pull_request, files, matter):
    answer = [{"filename": name} for name in files]
    pull_request.state["answers"] = {"repos/owner/name/pulls/7/files": answer}
    pull_request.write()
    done, output = run_step(pull_request, "pull-request.yml", "changes", NUMBER="7")
    assert done.returncode == 0, done.stderr
    assert output == f"matter={str(matter).lower()}\n"


@pytest.mark.parametrize("workflow", ["performance.yml", "baseline.yml"])
@pytest.mark.parametrize(
    ("given", "installed"),
    [
        ("git+https://host.example/o/traceops@0a1b", "traceops-torch[run] @ git+https://host.example/o/traceops@0a1b"),
        ("./checkout", "traceops-torch[run] @ file://{folder}/checkout"),
        ("a.whl", "traceops-torch[run] @ file://{folder}/a.whl"),
        ("./gone", None),
        ("traceops", None),
        ("", None),
    ],
)
def test_traceops_comes_from_where_the_user_says_or_not_at_all(pull_request, workflow, given, installed):
    (job,) = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"].values()
    (step,) = [step for step in job["steps"] if step["name"] == "Install traceops"]
    folder = pull_request.folder.resolve()
    (folder / "checkout").mkdir()
    (folder / "a.whl").write_text("")
    python = folder / "bin" / "python3"
    python.write_text("#!/bin/sh\nmkdir -p $3/bin && cp $0.pip $3/bin/pip")
    (folder / "bin" / "python3.pip").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/installed')
    for file in folder.glob("bin/python3*"):
        file.chmod(0o755)
    env = {**pull_request.environ(), "TRACEOPS": given, "GITHUB_PATH": str(folder / "path")}
    done = subprocess.run(["bash", "-c", step["run"]], cwd=folder, env=env, capture_output=True, text=True)
    if installed is None:
        assert done.returncode != 0 and not (folder / "installed").exists()
        assert "::error::" in done.stdout or "No such file" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert (folder / "installed").read_text() == f"install\n{installed.format(folder=folder)}\n"
        assert (folder / "path").read_text() == f"{env['RUNNER_TEMP']}/venv/bin\n"


@pytest.mark.parametrize(
    ("changes", "performance", "passes"),
    [
        ("success", "success", True),
        ("success", "skipped", True),
        ("success", "failure", False),
        ("failure", "skipped", False),
    ],
)
def test_the_gate_passes_what_was_measured_or_need_not_be(pull_request, changes, performance, passes):
    env = {"CHANGES": changes, "PERFORMANCE": performance, "SENTENCE": ""}
    done, _ = run_step(pull_request, "pull-request.yml", "gate", **env)
    assert (done.returncode == 0) is passes and done.stdout == "Nothing was measured.\n"


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq, which gh has inside")
@pytest.mark.parametrize("measured", ["a" * 40, "b" * 40])
def test_a_fork_s_comment_goes_to_the_pull_request_that_github_names(pull_request, measured):
    pulls = [{"number": 6, "head": {"sha": "c" * 40}}, {"number": 7, "head": {"sha": "a" * 40}}]
    pull_request.state["answers"] = {"repos/owner/name/pulls?fork:patch-1; touch x": pulls}
    pull_request.write()
    action = pull_request.folder / ".github" / "actions" / "traceops-compare"
    shutil.copytree(WORKFLOWS / "traceops-compare", action)
    (pull_request.folder / "report").mkdir()
    (pull_request.folder / "report" / "compare.md").write_text(f"{MARKER}\nof a fork\n")
    env = {"OWNER": "fork", "BRANCH": "patch-1; touch x", "HEAD_SHA": measured, "RUN_URL": "https://github.example/1"}
    done, _ = run_step(pull_request, "comment-on-forks.yml", "comment", **env)
    assert done.returncode == 0, done.stderr
    bodies = [comment["body"].split("\n<sub>")[0] for comment in pull_request.read()["comments"]]
    assert bodies == ([f"{MARKER}\nof a fork\n"] if measured == "a" * 40 else [])
    assert not (pull_request.folder / "x").exists()
