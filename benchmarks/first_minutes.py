"""A newcomer's first minutes: three trials in a fresh environment, and the advice for plausible mistakes.

python -m benchmarks.first_minutes trials --out /tmp/first [--torch SITE-PACKAGES]    # clone, install, three answers
python -m benchmarks.first_minutes mistakes                                           # mistakes.tsv, each half's score
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import ROOT
from traceops.cli import COMMANDS

_DATA = ROOT / "tests" / "data"
_SCRIPT = """import time, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model, data = torch.nn.Linear(64, 64).to(device), torch.randn(8, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    time.sleep(0.02)
    model(data).sum().backward()
    optimizer.step()
"""
# Trial -> commands, and what the answer of the last one has to contain.
TRIALS: dict[str, tuple[list[str], str]] = {
    "a slow job": (["run -- python train.py", "analyze profile/train"], "time.sleep"),
    "a folder of traces": (["analyze traces"], "Rank 1"),
    "a pull request": (["run --name before -- python train.py", "run --name after -- python slower.py",
                        "compare profile/before profile/after"], "Regression"),
}  # fmt: skip
_SERVES = ("open", "mcp", "top", "live")  # these run until Ctrl-C
_TRAINS = ("run", "sweep")  # their plan is checked with --dry-run
_SERVED_S = 10
# A command in a message ends with its sentence.
_WORD = r"'[^']*'|\"[^\"]*\"|[^\s;()'\"]*[^\s;,()'\"]"
_COMMAND = re.compile(rf"\btraceops ((?:{'|'.join(COMMANDS)})(?: (?:{_WORD}))*)(?=[\s;,?()'\"]|$)")
_MEANT = re.compile(r"[Dd]id you mean:? '?([^?,']+)'?[?,]")
_DROP = re.compile(r"\b[Dd]rop (--[a-z-]+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    playing = commands.add_parser("trials", help="installs a clone of this checkout")
    playing.add_argument("--out", type=Path, required=True)
    playing.add_argument("--torch", type=Path, help="folder with an installed torch, in place of installing one")
    erring = commands.add_parser("mistakes")
    erring.add_argument("-v", "--verbose", action="store_true", help="every message")
    erring.add_argument("--half", nargs="+", help="only these")
    args = parser.parse_args()
    return trials(args.out, args.torch) if args.command == "trials" else mistakes(args.half, verbose=args.verbose)


def prepare(folder: Path) -> None:
    """A project with scripts, traces, a log and a job script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(_SCRIPT)
    (folder / "slower.py").write_text(_SCRIPT.replace("0.02", "0.04"))
    (folder / "job.sh").write_text("python train.py\n")
    (folder / "notes.txt").write_text("lr 3 diverges\n")
    (folder / "empty").mkdir(exist_ok=True)
    shutil.copyfile(_DATA / "hang_logs" / "gloo_mismatch.txt", folder / "job.log")
    shutil.copytree(_DATA / "slow_loader4", folder / "traces", dirs_exist_ok=True)


def trials(folder: Path, torch: Path | None) -> int:
    """Clone, install and play each trial; exit code 1 where an answer is missing."""
    began = time.monotonic()
    clone, env = folder / "traceops", folder / "env"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    wanted = [str(clone) if torch else f"{clone}[run]"]
    pip = [
        str(env / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-compile",
    ]  # fmt: skip
    subprocess.run([*pip, "-c", str(clone / "constraints.txt"), *wanted], check=True)
    if torch:
        next(env.glob("lib/python*/site-packages")).joinpath("torch.pth").write_text(f"{torch.resolve()}\n")
    print(f"clone and install: {time.monotonic() - began:.0f} s{', torch was there' if torch else ''}\n")
    prepare(folder / "project")
    missing = 0
    print("| trial | commands | seconds | lines of the answer | found |\n|---|---|---|---|---|")
    for name, (commands, answer) in TRIALS.items():
        began, said = time.monotonic(), ""
        for command in commands:
            said, _ = typed(shlex.split(command), folder / "project", env / "bin")
        missing += answer not in said
        found = "yes" if answer in said else "NO"
        seconds = time.monotonic() - began
        print(f"| {name} | {len(commands)} | {seconds:.0f} | {len(said.splitlines())} | {found} |", flush=True)
    return int(missing > 0)


def mistakes(halves: list[str] | None, *, verbose: bool) -> int:
    """Print what is missing in the message for each mistake, and the score of each half.

    The 20 "new-aside" and "third-aside" are those of 40 with the lowest SHA-256 of what is typed, the 30 "fourth-aside"
    of 60; "fifth" was written after the messages. right: words that the advised command has to contain; empty where
    several would do. A message without a command gives no wrong advice. What follows >>> is typed in Python.
    """
    scores: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name, (Path(__file__).with_name("mistakes.tsv")).open() as file:
        folder = Path(name)
        prepare(folder)
        for run in ("before", "after"):
            shutil.copytree(_DATA / "runs" / "zero3", folder / "profile" / run)
        later = folder / "profile" / "after" / "run.json"
        later.write_text(json.dumps({**json.loads(later.read_text()), "started_ns": time.time_ns()}))
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q", "-b", "main"], ["add", "train.py"], ["commit", "-qm", "first"]):
            subprocess.run([*git, *words], cwd=folder, check=True)
        typed(["analyze", "traces", "-q"], folder)
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if halves and row["half"] not in halves:
                continue
            words = shlex.split(row["typed"])
            said, code = typed(words, folder)
            names = code == 0 or row["wrong"] in said
            advice = advised(words, row["wrong"], said)
            fits = advice is not None and (row["right"] or "") in shlex.join(advice).replace("'", '"')
            works = code == 0 or (fits and advice is not None and works_now(advice, folder))
            scores[row["half"], "all"] += 1
            scores[row["half"], "helped"] += names and works
            scores[row["half"], "wrong"] += advice is not None and not works
            if verbose or not (names and works):
                lack = (
                    "" if names and works else "no name" if not names else f"{advice} fails" if advice else "no command"
                )
                print(
                    f"{row['half']}: traceops {row['typed']}: {lack}\n    {' '.join(said.split())[-500:]}", flush=True
                )
    for half in dict.fromkeys(half for half, _ in scores):
        helped, every, wrong = (scores[half, name] for name in ("helped", "all", "wrong"))
        print(f"{half}: {helped} of {every} name the mistake and a command that works; wrong advice: {wrong}")
    return int(any(scores[half, "helped"] < scores[half, "all"] for half, _ in scores))


def advised(words: list[str], wrong: str, said: str) -> list[str] | None:
    """The command that a message advises: what was typed with a word corrected or dropped, or one it spells out."""
    if words[:1] == [">>>"]:
        said = said.rstrip().rpartition("\n")[2]  # of a traceback
    text = " ".join((said.rpartition("error:")[2] if "usage:" in said and "error:" in said else said).split())
    if (meant := _MEANT.search(text)) is not None and not meant[1].startswith("traceops "):
        at = next((at for at, word in enumerate(words) if wrong and wrong in word), None)
        if at is not None:
            whole = "/" in words[at] and words[at] in text  # a path is corrected as a whole
            fixed = meant[1] if whole else words[at].replace(wrong, meant[1])
            return [*words[:at], *([fixed] if words[0] == ">>>" else shlex.split(fixed)), *words[at + 1 :]]
    if (drop := _DROP.search(text)) is not None and drop[1] in words:
        at = words.index(drop[1])
        return words[:at] + words[at + 2 :]
    spelt = _COMMAND.search(text)
    return shlex.split(spelt[1].rstrip(".:? ")) if spelt else None


def works_now(words: list[str], folder: Path) -> bool:
    """Whether a command does its work: exit code 0, or 1 for what it finds."""
    if words[0] in _TRAINS and "--" in words:
        words = [words[0], "--dry-run", "--overwrite", *words[1:]]
    return typed(words, folder)[1] in (0, 1)


def typed(words: list[str], folder: Path, programs: Path | None = None) -> tuple[str, int]:
    """What a command prints on both streams, and its exit code; 0 for one that serves until it is stopped."""
    env = dict(os.environ)
    if programs is None:  # this checkout
        programs = Path(sys.executable).parent
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    else:
        env.pop("PYTHONPATH", None)
    env["PATH"] = os.pathsep.join([str(programs), env["PATH"]])
    command = [str(programs / "python"), "-m", "traceops", *words]
    if words[:1] == [">>>"]:
        command[1:] = ["-c", f"import traceops; {words[1]}"]
    limit = _SERVED_S if words[:1] and words[0] in _SERVES else 600
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=limit, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as ended:
        return (ended.stdout or b"").decode(), 0 if limit == _SERVED_S else 124
    return done.stdout + done.stderr, done.returncode


if __name__ == "__main__":
    sys.exit(main())
