"""Scripts of the workflows around the action: what is measured at all, what the gate makes of it, comments on forks."""

import shutil
import subprocess

import pytest
import yaml
from github_runner import MARKER, ROOT, PullRequest

WORKFLOWS = ROOT / "examples" / "github-actions"


@pytest.fixture
def pull_request(tmp_path):
    return PullRequest(tmp_path / "runner")


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
