import subprocess

from traceops.capture.environment import environment_that_matters, git_state
from traceops.report.write import json_text


def git(folder, *arguments):
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_the_branch_is_named_and_where_ci_detached_it_ci_says(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "--quiet", "--initial-branch=topic/a")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    github = {"GITHUB_HEAD_REF": "fix", "GITHUB_REF_NAME": "12/merge"}
    assert git_state(tmp_path, github)["branch"] == "topic/a"
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert git_state(tmp_path, {})["branch"] is None
    assert git_state(tmp_path, github)["branch"] == "fix"
    assert git_state(tmp_path, {"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"})["branch"] == "main"
    assert git_state(tmp_path, {"CI_COMMIT_REF_NAME": "mr"})["branch"] == "mr"


def test_a_variable_that_is_no_utf8_can_be_written_as_json():
    kept = environment_that_matters({"NCCL_SOCKET_IFNAME": "eth\udcff0"})
    assert kept == {"NCCL_SOCKET_IFNAME": "eth\\udcff0"} and json_text(kept).encode()
