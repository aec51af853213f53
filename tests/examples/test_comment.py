"""comment.sh: one comment a marker on a pull request, nobody else's touched, and a token that may not write."""

import subprocess

import pytest
from github_runner import ACTION, MARKER, PullRequest


@pytest.fixture
def pull_request(tmp_path):
    return PullRequest(tmp_path / "runner")


def post(pull_request, text, **more):
    file = pull_request.folder / "compare.md"
    file.write_text(text)
    done = subprocess.run(
        ["bash", str(ACTION / "comment.sh"), str(more.pop("file", file))],
        env={**pull_request.environ(), "GH_TOKEN": "secret", "PULL_REQUEST": "7", **more},
        capture_output=True, text=True,
    )  # fmt: skip
    pull_request.read()
    return done


def test_the_first_posts_and_later_ones_update(pull_request):
    for text in ("one", "two", "three"):
        done = post(pull_request, f"{MARKER}\n{text}\n", NOTE="Commit 1234.")
        assert done.returncode == 0, done.stderr
    (comment,) = pull_request.state["comments"]
    assert comment["body"] == f"{MARKER}\nthree\n\n<sub>Commit 1234.</sub>\n"
    assert pull_request.state["calls"] == ["post", f"update {comment['id']}", f"update {comment['id']}"]


def test_only_the_token_s_own_comment_with_this_very_marker_is_updated(pull_request):
    pull_request.add(f"{MARKER}\nby somebody else", own=False)
    pull_request.add("<!-- traceops-compare:big -->\nof another comparison", own=True)
    pull_request.add(f"> {MARKER}\na quotation", own=True)
    for number in range(150):
        pull_request.add(f"talk {number}", own=False)
    pull_request.add(f"{MARKER}\r\nedited by hand", own=True)  # which leaves line ends of the web
    before = [comment["body"] for comment in pull_request.state["comments"]]
    assert post(pull_request, f"{MARKER}\nnew\n").returncode == 0
    after = [comment["body"] for comment in pull_request.state["comments"]]
    assert after == [*before[:-1], f"{MARKER}\nnew\n"]


def test_a_token_that_may_not_write_is_said_and_is_no_failure(pull_request):
    pull_request.state["read_only"] = True
    pull_request.write()
    done = post(pull_request, f"{MARKER}\nnew\n")
    assert done.returncode == 0 and pull_request.state["comments"] == []
    (line,) = done.stdout.splitlines()
    assert line.startswith("::notice title=traceops compare::No comment:") and "job's summary" in line


def test_any_other_refusal_is_a_failure(pull_request):
    (pull_request.folder / "bin" / "gh").write_text("#!/bin/sh\necho 'gh: HTTP 502' >&2\nexit 1\n")
    done = post(pull_request, f"{MARKER}\nnew\n")
    assert done.returncode == 1 and "HTTP 502" in done.stderr


@pytest.mark.parametrize("text", ["", "no marker\n", f" {MARKER}\n", "<!-- traceops-compare:a b -->\n"])
def test_what_is_no_comparison_is_not_posted(pull_request, text):
    done = post(pull_request, text)
    assert done.returncode == 2 and "does not begin with the marker" in done.stderr
    assert pull_request.state["calls"] == []


def test_a_link_in_an_artifact_of_somebody_else_is_not_followed(pull_request, tmp_path):
    (tmp_path / "own").write_text(f"{MARKER}\nsecrets\n")
    (tmp_path / "link.md").symlink_to(tmp_path / "own")
    assert post(pull_request, "", file=tmp_path / "link.md").returncode == 2
    assert pull_request.state["calls"] == []
