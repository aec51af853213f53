"""The example files: schemas, linters, and that they agree with each other, with the command and with the README."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from github_runner import ACTION, ROOT

from traceops.cli import build_parser
from traceops.compare import load_config

EXAMPLES = ROOT / "examples"
WORKFLOWS = sorted((EXAMPLES / "github-actions").glob("*.yml"))
OWN_WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GITLAB = EXAMPLES / "gitlab" / ".gitlab-ci.yml"
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
ACTION_FILE = ACTION / "action.yml"
_MISSING = "the extra `test` has it for Python 3.11 and newer, where there are wheels"


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(path):
    return load(path)["jobs"]


def steps(path):
    """All steps of a workflow or composite action."""
    document = load(path)
    groups = [document["runs"]] if "runs" in document else document["jobs"].values()
    return [step for group in groups for step in group.get("steps", ())]


def shell():
    """(where, script) of everything that a shell runs."""
    found = [(str(path.relative_to(EXAMPLES)), path.read_text(encoding="utf-8")) for path in SCRIPTS]
    for path in (*WORKFLOWS, ACTION_FILE):
        found += [(f"{path.name}: {step['name']}", step["run"]) for step in steps(path) if "run" in step]
    job = load(GITLAB)["performance"]
    lines = [*job["before_script"], *job["script"], *job["after_script"]]
    return [*found, (GITLAB.name, "\n".join(lines))]


def program(name):
    """Path of a program that a package brought along, beside this Python."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here; {_MISSING}")
    return found


@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", WORKFLOWS), ("github-actions", [ACTION_FILE]), ("gitlab-ci", [GITLAB])]
)
def test_the_files_fit_their_schemas(schema, files):
    if find_spec("check_jsonschema") is None:
        pytest.skip(f"check-jsonschema is not installed here; {_MISSING}")
    from check_jsonschema import main
    from click.testing import CliRunner

    done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    assert files and done.exit_code == 0, done.output


def test_a_workflow_that_does_not_fit_is_refused(tmp_path):
    if find_spec("check_jsonschema") is None:
        pytest.skip(f"check-jsonschema is not installed here; {_MISSING}")
    from check_jsonschema import main
    from click.testing import CliRunner

    (tmp_path / "workflow.yml").write_text("on: push\njobs: nothing\n")
    done = CliRunner().invoke(main, ["--builtin-schema", "vendor.github-workflows", str(tmp_path / "workflow.yml")])
    assert done.exit_code == 1 and "jobs" in done.output


def test_zizmor_finds_nothing_in_workflows_and_action():
    command = [program("zizmor"), "--offline", "--strict-collection", "--persona=pedantic", "--no-progress"]
    done = subprocess.run([*command, *map(str, (*WORKFLOWS, ACTION_FILE))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("where", "script"), shell(), ids=[where for where, _ in shell()])
def test_shellcheck_finds_nothing(where, script):
    command = [program("shellcheck"), "--shell=bash", "--exclude=SC1090", "-"]  # a venv made by the job
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_scripts_take_values_from_their_environment_only():
    for where, script in shell():
        assert "${{" not in script, where
        if not where.endswith("Install the training") and GITLAB.name not in where:
            assert "set -euo pipefail" in script, where


def test_other_people_s_actions_are_pinned_by_commit():
    files = (*WORKFLOWS, ACTION_FILE, *OWN_WORKFLOWS)
    uses = re.findall(r"uses: (\S+)(.*)", "\n".join(path.read_text() for path in files))
    assert OWN_WORKFLOWS
    for name, comment in uses:
        if not name.startswith("./"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), name
    assert len(uses) > 5


def test_every_job_has_a_limit_and_only_the_rights_it_needs():
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {}, path
        for name, job in jobs(path).items():
            assert "uses" in job or "timeout-minutes" in job, (path, name)
            writes = {right for right, level in job["permissions"].items() if level == "write"}
            assert writes <= {"pull-requests", "security-events"}, (path, name)
    assert "pull_request_target" not in "".join(path.read_text() for path in WORKFLOWS)


def test_inputs_are_passed_on_whole():
    action = load(ACTION_FILE)
    performance = EXAMPLES / "github-actions" / "performance.yml"
    # YAML 1.1 takes the key `on` for true
    inputs = load(performance)[True]["workflow_call"]["inputs"]
    (step,) = [step for step in steps(performance) if step.get("uses", "").startswith("./")]
    assert step["with"] == {name: f"${{{{ inputs.{name} }}}}" for name in step["with"]}
    assert action["inputs"].keys() - step["with"].keys() == {"token"}
    assert step["with"].keys() <= action["inputs"].keys() and step["with"].keys() <= inputs.keys()
    assert inputs["traceops"] == {**inputs["traceops"], "required": True} and "default" not in inputs["traceops"]
    for name in step["with"].keys() - {"command"}:
        given, own = inputs[name]["default"], action["inputs"][name]["default"]
        assert own == (str(given).lower() if isinstance(given, bool) else given), name
    for path, known in ((ACTION_FILE, action["inputs"]), (performance, inputs)):
        used = set(re.findall(r"inputs\.([\w-]+)", path.read_text()))
        assert used == set(known), path
    caller = jobs(EXAMPLES / "github-actions" / "pull-request.yml")["performance"]
    assert caller["with"].keys() <= inputs.keys()
    for job in (caller, jobs(performance)["compare"]):
        assert job["permissions"] == {"contents": "read", "pull-requests": "write"}


def test_the_environment_of_each_step_is_what_its_script_reads():
    for path in (*WORKFLOWS, ACTION_FILE):
        for step in steps(path):
            for name in step.get("env", {}) if "run" in step else ():
                read = re.search(rf"\${{?{name}\b", step["run"])
                assert read or name in ("GH_TOKEN", "PULL_REQUEST"), (path.name, step["name"], name)


def test_measurements_wait_for_each_other_under_one_name():
    performance = jobs(EXAMPLES / "github-actions" / "performance.yml")["compare"]["concurrency"]
    assert performance == {"group": "performance-on-${{ inputs.machine }}", "queue": "max"}
    baseline = jobs(EXAMPLES / "github-actions" / "baseline.yml")["save"]["concurrency"]
    assert baseline == {"group": "performance-on-gpu", "queue": "max"}


def test_settings_that_must_agree_do():
    given = jobs(EXAMPLES / "github-actions" / "pull-request.yml")["performance"]["with"]
    save = jobs(EXAMPLES / "github-actions" / "baseline.yml")["save"]
    for name in ("traceops", "install", "command", "repeat"):
        assert save["env"][name.upper()] == given[name], name
    assert save["runs-on"] == json.loads(given["runs-on"])
    assert save["concurrency"]["group"] == f"performance-on-{given['machine']}"
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in (*given, *save["env"]):
        assert f"`{name}`" in table, name


def commands():
    """(where, words) of each traceops command in the files; shell variables stay as they are."""
    for where, script in [*shell(), ("README.md", (EXAMPLES / "README.md").read_text(encoding="utf-8"))]:
        for line in script.replace("\\\n", " ").splitlines():
            match = re.match(r"\s*(?:\$ )?traceops ((?:run|compare|baseline) .*)", line)
            if match:
                yield where, shlex.split(match[1], comments=True)


def test_commands_have_only_options_that_traceops_has():
    parser = build_parser()
    found = list(commands())
    for where, words in found:
        assert parser.parse_args(words).command == words[0], where
    assert {where for where, _ in found} >= {".gitlab-ci.yml", "baseline.yml: Train", "baseline.yml: Save"}
    overwriting = [words for where, words in found if words[0] == "run" and where != "README.md"]
    assert all("--overwrite" in words and "--name" in words for words in overwriting)  # else it picks a free folder


def test_the_settings_in_the_readme_are_understood(tmp_path):
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (tmp_path / "traceops.toml").write_text(settings)
    config = load_config(file=str(tmp_path / "traceops.toml"))
    assert config.thresholds == {"step_time": 3.0, "peak_memory": 10.0, "kernels": None}
    assert [waiver.limit_pct for waiver in config.waivers] == [12.0]


_BY_NAME = re.compile(r"""\bpip["']?\s+install\s[^\n`]*?(?<![\w./-])traceops(-torch)?(\[[\w,]*\])?(?!\s*@|[\w\[./-])""")


@pytest.mark.parametrize(
    ("text", "by_name"),
    [
        ("pip install traceops", True),
        ("\"$venv/bin/pip\" install -q 'traceops[run]'", True),
        ("pip install -U traceops==1", True),
        ("pip install 'traceops-torch[hta]'", True),
        ("pip install './traceops[run]'", False),
        ('pip install "traceops-torch[run] @ $TRACEOPS"', False),
        ("pip install dist/traceops_torch-1.whl; `traceops run`", False),
    ],
)
def test_what_would_install_by_name_is_told_apart(text, by_name):
    assert bool(_BY_NAME.search(text)) is by_name


def test_nothing_installs_by_a_name_that_belongs_to_another_project_on_pypi():
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*documents, *files)
        for match in _BY_NAME.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found
    given = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert len(re.findall(r'install "traceops-torch\[run\] @ \$\w+"', given)) >= 4


def test_the_readme_names_every_file_and_links_to_what_is_there():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link}
    later = {"pull-request-comment.md"}  # rendered from a real run
    missing = {link for link in links - later if not (EXAMPLES / link).exists()}
    assert not missing
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.is_file()}
    assert files - {"README.md"} - later <= links
