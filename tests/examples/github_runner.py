"""Runs a composite action's steps as GitHub's runner does, with a `gh` that keeps its comments in a file."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from started import ROOT, python_path

ACTION = ROOT / "examples" / "github-actions" / "traceops-compare"
MARKER = "<!-- traceops-compare -->"

_TOKEN = re.compile(r"'[^']*'|[a-z]\w*(?:\.[\w-]+)+|&&|\|\||!=|==|!")
_OPERATORS = {"&&": " and ", "||": " or ", "!": " not ", "==": "==", "!=": "!="}

# The part of `gh api` that the examples use: GraphQL's list of comments by the page, its update, REST's post, and
# whatever REST answers by state["answers"].
GH = """
import json, shutil, subprocess, sys
from pathlib import Path

file = Path({state!r})
state = json.loads(file.read_text())
api, *arguments = sys.argv[1:]
assert api == "api", sys.argv
options, rest = {{}}, []
while arguments:
    word = arguments.pop(0)
    if word in ("-f", "-F"):
        name, _, value = arguments.pop(0).partition("=")
        options[name] = Path(value[1:]).read_text() if word == "-F" and value[:1] == "@" else value
    elif word in ("--jq", "--method"):
        options[word] = arguments.pop(0)
    else:
        rest.append(word)


def answer(value):
    if "--jq" not in options or not shutil.which("jq"):
        return value
    done = subprocess.run(["jq", "-r", options["--jq"]], input=json.dumps(value), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


query = options.get("query", "")
asked = rest[-1] + "?" + options["head"] if "head" in options else rest[-1]
if asked in state.get("answers", {{}}):
    sys.stdout.write(answer(state["answers"][asked]))
elif query.lstrip().startswith("query"):
    most = len(state["comments"]) if "--paginate" in rest else 100
    for start in range(0, most, 100):
        nodes = state["comments"][start : start + 100]
        page = {{"data": {{"repository": {{"pullRequest": {{"comments": {{"nodes": nodes}}}}}}}}}}
        told = answer(page)
        if told is page:
            told = "".join(f"{{n['id']}}\\t{{n['body'].splitlines()[0]}}\\n" for n in nodes if n["viewerDidAuthor"])
        sys.stdout.write(told)
else:
    if state.get("read_only"):
        sys.exit("gh: Resource not accessible by integration (HTTP 403)")
    if query:
        state["calls"].append("update " + options["id"])
        (own,) = [comment for comment in state["comments"] if comment["id"] == options["id"]]
        own["body"] = options["body"]
        print("https://github.example/updated")
    else:
        assert rest == ["repos/owner/name/issues/7/comments"] and options["--method"] == "POST", rest
        state["calls"].append("post")
        own = {{"id": f"IC_{{len(state['comments'])}}", "viewerDidAuthor": True, "body": options["body"]}}
        state["comments"].append(own)
        print("https://github.example/posted")
    file.write_text(json.dumps(state))
sys.exit(0)
"""


@dataclass
class PullRequest:
    """Pull request 7 of owner/name: what its comments are, and what `gh` was asked for."""

    folder: Path
    state: dict[str, Any] = field(default_factory=lambda: {"comments": [], "calls": []})

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        gh = self.folder / "bin" / "gh"
        gh.write_text(f"#!{sys.executable}\n" + GH.format(state=str(self.folder / "gh.json")))
        gh.chmod(0o755)
        self.write()

    def write(self) -> None:
        (self.folder / "gh.json").write_text(json.dumps(self.state))

    def read(self) -> dict[str, Any]:
        self.state = json.loads((self.folder / "gh.json").read_text())
        return self.state

    def add(self, body: str, *, own: bool) -> None:
        self.state["comments"].append({"id": f"IC_{len(self.state['comments'])}", "viewerDidAuthor": own, "body": body})
        self.write()

    def environ(self) -> dict[str, str]:
        """What a job's steps see, without anything of the CI that these tests may run in."""
        ci = ("GITHUB_", "CI", "RUNNER_")
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(ci)},
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": python_path(),
            "OMP_NUM_THREADS": "1",
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_ACTION_PATH": str(ACTION),
            "RUNNER_TEMP": str(self.folder),
        }


@dataclass(frozen=True)
class Outcome:
    """How a run of the action ended: exit code of the step that failed, its outputs, what it printed and summarised."""

    code: int
    outputs: dict[str, str]
    log: str
    summary: str


def run_action(inputs: dict[str, str], pull_request: PullRequest, workspace: Path, event: dict[str, Any]) -> Outcome:
    """Run all steps of traceops-compare in `workspace`, for a pull request whose event is given."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    assert not inputs.keys() - action["inputs"].keys()
    given = {name: inputs.get(name, spec.get("default", "")) for name, spec in action["inputs"].items()}
    steps: dict[str, Any] = {}
    context = {
        "inputs": {**given, "token": "secret"},
        "github": {
            "event_name": "pull_request", "event": {"pull_request": event}, "repository": "owner/name",
            "server_url": "https://github.example", "run_id": "1",
        },
        "steps": steps,
    }  # fmt: skip
    code, log = 0, ""
    summary = pull_request.folder / "summary.md"
    summary.write_text("")
    for step in action["runs"]["steps"]:
        condition = step.get("if")
        if code or (condition and not _value(condition, context)):
            continue
        output = pull_request.folder / "output"
        output.write_text("")
        script = pull_request.folder / "step.sh"
        script.write_text(step["run"])
        env = {name: str(_filled(str(value), context)) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=workspace / _filled(step.get("working-directory", "."), context),
            env={**pull_request.environ(), **env, "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        log += done.stdout
        lines = output.read_text(encoding="utf-8").splitlines()
        steps[step.get("id", "")] = {"outputs": dict(line.split("=", 1) for line in lines)}
        code = 0 if step.get("continue-on-error") else done.returncode
    outputs = {name: _filled(spec["value"], context) for name, spec in action["outputs"].items()}
    return Outcome(code, outputs, log, summary.read_text(encoding="utf-8"))


def _filled(text: str, context: dict[str, Any]) -> str:
    """Text with each ${{ … }} in it replaced."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(_value(match[1], context)), text)


def _value(expression: str, context: dict[str, Any]) -> Any:
    """A GitHub expression of contexts, strings, comparisons, && and ||; what is not there is empty."""

    def token(match: re.Match[str]) -> str:
        if match[0] in _OPERATORS:
            return _OPERATORS[match[0]]
        if match[0].startswith("'"):
            return repr(match[0][1:-1])
        value: Any = context
        for part in match[0].split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        return repr(value)

    return eval(_TOKEN.sub(token, expression).strip(), {"__builtins__": {}})
