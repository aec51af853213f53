"""The action's steps, run in a repository: one comment on the pull request, outputs, exit codes."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from github_runner import MARKER, PullRequest, run_action

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="no torch")]


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


def test_a_baseline_found_by_an_unknown_model_is_warned_about(checkout, pull_request, tmp_path):
    inputs = {**_TRAINING, "repeat": "1", "baseline": "auto", "store": str(tmp_path / "empty")}
    done = run_action(inputs, pull_request, checkout.folder, checkout.push(0.01))
    assert "::warning title=traceops compare::The training does not say which model" in done.log
    assert done.outputs["verdict"] == "not_measured" and done.code != 0


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


def test_without_the_commits_of_the_base_the_way_out_is_said(checkout, pull_request, tmp_path):
    event = checkout.push(0.01)
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{checkout.folder}", str(shallow))
    done = run_action(_TRAINING, pull_request, shallow, event)
    assert done.code == 2 and "give actions/checkout fetch-depth: 0" in done.log
