"""Prints the tests for `make check`: those of what changed since main, and a few that see most of the program."""

import subprocess
from pathlib import Path

# Where code that begins so changed, these folders of tests run. What many use has its users' tests.
TESTS_OF = {
    "traceops/across/": ("across",),
    "traceops/baseline/": ("baseline", "cli/test_compare_command.py"),
    "traceops/capture/": ("capture",),
    "traceops/cli/": ("cli",),
    "traceops/compare/": ("compare", "render/comparison", "cli/test_compare_command.py"),
    "traceops/core/": ("measure", "rules", "render"),
    "traceops/doctor/": ("doctor", "render/test_doctor.py"),
    "traceops/fabric/": ("fabric", "doctor/test_doctor_results.py"),
    "traceops/hangs/": ("hangs", "cli/test_diagnose_command.py"),
    "traceops/launch/": ("launch",),
    "traceops/measure/": ("measure",),
    "traceops/pipeline/": ("pipeline", "test_analyze.py"),
    "traceops/render/": ("render",),
    "traceops/rules/": ("rules", "across", "fabric"),
    "traceops/schemas/": ("render",),
    "traceops/timeline/": ("timeline",),
    "traceops/traces/": ("traces",),
    "traceops/train/": ("train", "launch/test_plan.py"),
    "benchmarks/": ("benchmarks", "test_docs.py"),
    "docs/": ("examples/test_files.py", "test_docs.py"),
    "examples/": ("examples", "test_docs.py"),
    "README.md": ("test_docs.py",),
    "templates/": ("render",),
}
ALWAYS = ("cli/test_plain_words.py", "test_analyze.py", "test_suite.py", "core/test_arrays.py")
HERE = Path(__file__).parent


def git(*arguments: str) -> list[str]:
    """The lines that git answers with; none where it fails, as without a branch main."""
    done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed() -> list[str]:
    """Files that differ from where this branch left main; on main itself from the last commit but one."""
    left = git("merge-base", "HEAD", "main")
    if left == git("rev-parse", "HEAD"):
        left = git("rev-parse", "HEAD~1")
    tracked = git("diff", "--name-only", *left)
    return [*tracked, *git("ls-files", "--others", "--exclude-standard")]


def tests_of(files: list[str]) -> list[str]:
    """Paths for pytest, each once and none below another; a test that changed stands for itself."""
    found = {f"tests/{name}" for name in ALWAYS}
    for file in files:
        for begin, folders in TESTS_OF.items():
            if file.startswith(begin):
                found |= {f"tests/{name}" for name in folders}
        path = Path(file)
        if path.parts[0] == "tests" and path.suffix == ".py":
            found.add(file if path.name.startswith("test_") else str(path.parent))
    found.discard("tests")  # of what lies there all tests are: that is `make test`
    there = {path for path in found if (HERE.parent / path).exists()}
    return sorted(path for path in there if not {str(above) for above in Path(path).parents} & there)


if __name__ == "__main__":
    print(*tests_of(changed()))
