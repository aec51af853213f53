"""One comment a marker on a pull or merge request, nobody else's touched, on GitHub and on GitLab."""

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from github_runner import ACTION, MARKER, ROOT, PullRequest


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


# traceops-comment.sh against a server that answers as GitLab's notes API does.


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the script posts with curl")

SCRIPT = ROOT / "examples" / "gitlab" / "traceops-comment.sh"
REASON = ACTION / "reason.py"
_NOTES = "/projects/3/merge_requests/7/notes"
_ME, _SOMEBODY = 41, 42


class GitLab(BaseHTTPRequestHandler):
    """Notes of merge request 7; `server.notes`, `server.calls`."""

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/user":
            return self.reply({"id": _ME})
        assert url.path == _NOTES
        asked = parse_qs(url.query)
        size, page = (int(asked[name][0]) for name in ("per_page", "page"))
        return self.reply(self.server.notes[size * (page - 1) : size * page])

    def do_POST(self):
        assert self.path == _NOTES
        self.server.notes.append(note(self.body(), _ME, len(self.server.notes)))
        self.server.calls.append("post")
        self.reply({}, 201)

    def do_PUT(self):
        number = int(self.path.removeprefix(f"{_NOTES}/"))
        (own,) = [note for note in self.server.notes if note["id"] == number]
        own["body"] = self.body()
        self.server.calls.append(f"put {number}")
        self.reply({})

    def body(self):
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        return parse_qs(sent, strict_parsing=True)["body"][0]

    def reply(self, value, code=200):
        allowed = self.headers["PRIVATE-TOKEN"] == "secret"
        content = json.dumps(value).encode()
        self.send_response(code if allowed else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def note(body, author, number):
    return {"id": 100 + number, "body": body, "author": {"id": author}}


@pytest.fixture
def gitlab():
    with ThreadingHTTPServer(("127.0.0.1", 0), GitLab) as server:
        server.notes, server.calls = [], []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def post_note(gitlab, tmp_path, text, script=SCRIPT, **more):
    file = tmp_path / "compare.md"
    if text is not None:
        file.write_text(text)
    env = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "CI_API_V4_URL": f"http://127.0.0.1:{gitlab.server_port}",
        "CI_MERGE_REQUEST_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_COMMIT_SHORT_SHA": "1234abcd",
        "CI_JOB_URL": "https://gitlab.example/job",
        "TRACEOPS_GITLAB_TOKEN": "secret",
        **more,
    }
    command = ["bash", str(script), str(file), str(tmp_path / "runs")]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@needs_curl
def test_the_first_note_is_posted_and_later_ones_update_it(gitlab, tmp_path):
    for text in (f"{MARKER}\n**100 % & more µs**\n", f"{MARKER}\ntwo\n"):
        done = post_note(gitlab, tmp_path, text)
        assert done.returncode == 0, done.stderr
        (own,) = gitlab.notes
        note_end = "\n<sub>Commit 1234abcd, in [this job](https://gitlab.example/job).</sub>\n"
        assert own["body"] == text + note_end
    assert gitlab.calls == ["post", "put 100"]


@needs_curl
def test_only_the_token_s_own_note_with_this_very_marker_is_updated(gitlab, tmp_path):
    gitlab.notes += [note(f"{MARKER}\ntheirs", _SOMEBODY, 0), note("<!-- traceops-compare:big -->\n", _ME, 1)]
    gitlab.notes += [note("talk", _SOMEBODY, number) for number in range(2, 250)]
    gitlab.notes += [note(f"{MARKER}\r\nedited by hand", _ME, 250), note("talk", _SOMEBODY, 251)]
    before = [item["body"] for item in gitlab.notes]
    assert post_note(gitlab, tmp_path, f"{MARKER}\nnew\n").returncode == 0
    assert gitlab.calls == ["put 350"]
    assert [item["body"] for item in gitlab.notes if item["id"] != 350] == before[:250] + before[251:]


@needs_curl
def test_a_job_that_compared_nothing_takes_the_old_verdict_back(gitlab, tmp_path):
    gitlab.notes.append(note(f"{MARKER}\n**✅ No regression**", _ME, 0))
    assert post_note(gitlab, tmp_path, None, CI_JOB_STATUS="canceled").returncode == 0 and gitlab.calls == []
    assert post_note(gitlab, tmp_path, None, CI_JOB_STATUS="failed").returncode == 0
    assert gitlab.notes[0]["body"].startswith(f"{MARKER}\n**❌ Not measured")


@needs_curl
def test_the_note_quotes_the_training_that_failed(gitlab, tmp_path):
    folder = tmp_path / ".gitlab"
    folder.mkdir()
    for file in (SCRIPT, REASON):
        shutil.copy(file, folder)
    logs = tmp_path / "runs" / "base_1" / "logs"
    logs.mkdir(parents=True)
    run = {"status": "failed", "started_ns": 1, "failed_rank": 0, "ranks": [{"rank": 0, "error": "KeyError: 'x'"}]}
    (logs.parent / "run.json").write_text(json.dumps(run))
    trace = "Traceback (most recent call last):\n  File 1\nKeyError: 'x'\nwarning: \x1b[31m late\n"
    (logs / "rank_0.stderr.log").write_text("x" * 999 + "\n" + trace)
    done = post_note(gitlab, tmp_path, None, folder / SCRIPT.name, CI_JOB_STATUS="failed")
    assert done.returncode == 0, done.stderr
    said = "\n\n    base_1, rank 0:\n    Traceback (most recent call last):\n      File 1\n    KeyError: 'x'\n\n<sub>"
    assert said in gitlab.notes[0]["body"]


@needs_curl
def test_without_a_token_nothing_is_posted_and_with_a_wrong_one_it_fails(gitlab, tmp_path):
    done = post_note(gitlab, tmp_path, f"{MARKER}\nnew\n", TRACEOPS_GITLAB_TOKEN="")
    assert done.returncode == 0 and "TRACEOPS_GITLAB_TOKEN is not set" in done.stdout
    done = post_note(gitlab, tmp_path, f"{MARKER}\nnew\n", TRACEOPS_GITLAB_TOKEN="wrong")
    assert done.returncode != 0 and "401" in done.stderr
    assert gitlab.calls == []
