"""A newcomer's first minutes: three trials, and what is said of plausible mistakes.

python -m benchmarks.first_minutes trials --out /tmp/first     # on a quiet machine: commands, seconds and lines
python -m benchmarks.first_minutes mistakes                    # which of them get the advice that helps
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT

_TRACES = ROOT / "tests" / "data" / "slow_loader4"
_SCRIPT = """import time, torch
model, data = torch.nn.Linear(64, 64), torch.randn(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    time.sleep(0.02)
    model(data).sum().backward()
    optimizer.step()
"""
# Trial -> commands, and what the last one has to say.
TRIALS: dict[str, tuple[list[str], str]] = {
    "a slow job": (["run -- python train.py", "analyze profile/train"], "time.sleep"),
    "a folder of traces": (["analyze traces"], "Rank 1"),
    "a pull request": (["run --name before -- python train.py", "run --name after -- python slower.py",
                        "compare profile/before profile/after"], "Regression"),
}  # fmt: skip
# What is typed -> a part of what helps.
MISTAKES: tuple[tuple[str, str], ...] = (
    ("", "traceops run -- train.py"),
    ("run", "traceops run -- torchrun"),
    ("run -- trian.py", "did you mean train.py?"),
    ("run -- python trian.py", "did you mean train.py?"),
    ("run -- torchrun --nproc-per-node 2 trian.py", "did you mean train.py?"),
    ("run -- python", "name the script"),
    ("run -- accelerate launch train.py", "traceops run -- train.py"),
    ("run -- no_such_program", "neither a script here nor an installed program"),
    ("run --nproc 2 -- bash job.sh", "Drop --nproc"),
    ("run --launcher none --nproc 2 -- python train.py", "Drop --nproc"),
    ("run --nprocs 2 -- train.py", "--nproc"),
    ("run -- -m", "name the module"),
    ("analyse traces", "did you mean analyze?"),
    ("analyze trace", "did you mean traces?"),
    ("analyze profile/none", "does not exist"),
    ("analyze traces --fail-on warn", "did you mean warning?"),
    ("analyze traces --format pdf", "--format takes"),
    ("analyze empty", "holds no traces"),
    ("explain S001", "TO-S001"),
    ("explain TO-X1", "no rule begins with"),
    ("view trace", "did you mean traces?"),
    ("view traces --around S001", "TO-S001"),
    ("open traces", "traceops analyze traces"),
    ("open trace", "did you mean traces?"),
    ("show traces rank", "did you mean ranks?"),
    ("show trace", "did you mean traces?"),
    ("compare traces", "two things to compare"),
    ("compare trace traces", "did you mean traces?"),
    ("compare traces traces", "given more than once"),
    ("compare traces traces --threshold speed=3", "there is no metric"),
    ("diagnose job.logs", "does not exist"),
    ("diagnose train.py", "is a script, not a log"),
    ("doctor --from nowhere.txt", "nowhere.txt"),
    ("doctor --gpus a", "numbers separated by commas"),
    ("memory --nproc 2 -- trian.py", "did you mean train.py?"),
    ("memory --gpu H10000 -- train.py", "H10000"),
    ("scale traces", "traces is one run"),
    ("sweep -- train.py", "--vary"),
    ("completion tcsh", "bash"),
    ("query traces", "sql"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("trials", help="needs torch").add_argument("--out", type=Path, required=True)
    commands.add_parser("mistakes")
    args = parser.parse_args()
    if args.command == "trials":
        return trials(args.out)
    with tempfile.TemporaryDirectory() as folder:
        wrong = mistakes(Path(folder))
    print("\n".join([*wrong, f"{len(MISTAKES) - len(wrong)} of {len(MISTAKES)} mistakes get the advice that helps"]))
    return int(bool(wrong))


def prepare(folder: Path) -> None:
    """A project with a script, traces and a job script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(_SCRIPT)
    (folder / "slower.py").write_text(_SCRIPT.replace("0.02", "0.04"))
    (folder / "job.sh").write_text("python train.py\n")
    (folder / "empty").mkdir(exist_ok=True)
    if not (folder / "traces").exists():
        (folder / "traces").symlink_to(_TRACES)


def trials(folder: Path) -> int:
    """Play each trial; exit code 1 where its answer is not said."""
    prepare(folder)
    missing = 0
    print("| trial | commands | seconds | lines of the answer | said |\n|---|---|---|---|---|")
    for name, (commands, answer) in TRIALS.items():
        began, said = time.monotonic(), ""
        for command in commands:
            said = typed(command, folder)
        there = answer in said
        missing += not there
        seconds = time.monotonic() - began
        print(f"| {name} | {len(commands)} | {seconds:.0f} | {len(said.splitlines())} | {'yes' if there else 'NO'} |")
    return int(missing > 0)


def mistakes(folder: Path) -> list[str]:
    """What is not said that would help, a line for each mistake."""
    prepare(folder)
    wrong = []
    for command, helps in MISTAKES:
        said = typed(command, folder)
        if helps not in " ".join(said.split()):
            wrong.append(f"traceops {command}: without {helps!r}: {said.strip()[-300:]}")
    return wrong


def typed(command: str, folder: Path) -> str:
    """What a command prints, on either stream."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    words = [sys.executable, "-m", "traceops", *command.split()]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
