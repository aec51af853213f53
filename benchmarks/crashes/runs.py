"""Plants crashes on one rank of two, and compares what `traceops run` concludes with what was planted.

python -m benchmarks.crashes.runs make /tmp/crashes                 # gloo without GPUs, NCCL with two
python -m benchmarks.crashes.runs score /tmp/crashes                # what the run folders come to now
python -m benchmarks.crashes.runs table /tmp/crashes > table.md
python -m benchmarks.crashes.runs recorded                          # the archives of tests/data/faults, as a table
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks import ROOT
from benchmarks.crashes.cases import ASIDE, DIED, PLANTED, RECORDED, Planted
from benchmarks.planted.pack import unpack
from traceops.core.errors import TraceopsError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Root
from traceops.hangs.words import own_line
from traceops.report.hang_text import root_advice, root_sentence

TRAIN = Path(__file__).with_name("train.py")
FAULTS = ROOT / "tests" / "data" / "faults"
_LIGHT = ROOT / "tests" / "light_torch"
GENERAL = {"exception", "exit", "assertion"}  # true of many crashes, and of less use than their own kind
_LIMIT_S = 300
_OPTIONS = ("--hang-timeout", "20", "--skip-first", "1", "--unprofiled", "1", "--warmup", "1", "--active", "3")
_SMALL_SHM = "mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "


@dataclass(frozen=True)
class Outcome:
    """What was concluded of a case: 'right', 'part' (true, with something missing), 'open' or 'wrong'."""

    planted: Planted
    verdict: str
    missing: str
    sentence: str
    advice: str
    said: bool


@cache
def marked_lines() -> dict[str, str]:
    """By crash the file and line that ends in `# here`, as 'of_torch.py:17'; of loaders the line in the worker."""
    found: dict[str, str] = {}
    for path in TRAIN.parent.glob("of_*.py"):
        text = path.read_text()
        marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
        found |= {f.name: f"{path.name}:{n}" for f in functions for n in marked if f.lineno <= n <= (f.end_lineno or 0)}
    return {**found, "loader_error": found["read_sample"], "cuda_in_worker": found["move_sample"]}


def run_case(planted: Planted, out: Path, *, light: bool) -> int:
    """Start the job under `traceops run`; what it printed lies beside the run folder. Returns its exit code."""
    command = [
        sys.executable, "-m", "traceops", "run", "--nproc", "2", "--out", str(out / planted.name), "--overwrite",
        *_OPTIONS, *planted.options, "--", str(TRAIN), "--crash", planted.name,
    ]  # fmt: skip
    if planted.small_shm:
        command = ["unshare", "-m", "sh", "-c", _SMALL_SHM + shlex.join(command)]
    path = os.pathsep.join([*([str(_LIGHT)] if light else []), os.environ["PYTHONPATH"]])
    env = {**os.environ, "PYTHONPATH": path}
    with (out / f"{planted.name}.txt").open("wb") as said:
        try:
            return subprocess.run(command, env=env, stdout=said, stderr=subprocess.STDOUT, timeout=_LIMIT_S).returncode
        except subprocess.TimeoutExpired:
            return -1


def make(args: argparse.Namespace) -> None:
    gpu = Path("/dev/nvidiactl").exists()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    chosen = [planted for planted in PLANTED if planted.needs in ("any", "gpu" if gpu else "cpu")]
    chosen = [planted for planted in chosen if not args.cases or planted.name in args.cases.split(",")]
    together = [planted for planted in chosen if not planted.alone]
    with ThreadPoolExecutor(args.parallel) as pool:
        codes = dict(zip(together, pool.map(lambda p: run_case(p, out, light=args.light), together), strict=True))
    codes |= {planted: run_case(planted, out, light=args.light) for planted in chosen if planted.alone}
    known = json.loads((out / "codes.json").read_text()) if (out / "codes.json").exists() else {}
    (out / "codes.json").write_text(json.dumps(known | {p.name: code for p, code in codes.items()}, indent=1))
    score(args)


def outcome(planted: Planted, out: Path) -> Outcome:
    """What the run folder of a case comes to. What was printed is compared where it was kept."""
    text = out / f"{planted.name}.txt"
    printed = " ".join(text.read_text(errors="replace").split()) if text.exists() else ""
    try:
        roots = diagnose(out / planted.name, jobs=1).roots
    except TraceopsError as error:
        return Outcome(planted, "open", "nothing told", str(error).splitlines()[0], "", False)
    if not roots:
        return Outcome(planted, "open", "nothing told", "", "", False)
    root = roots[0]
    sentence, advice = root_sentence(root), root_advice(root)
    said = " ".join(sentence.split()) in printed
    kinds = set(kinds_of(root))
    fits = bool(kinds & set(planted.kinds))
    wrong = [
        *(["rank"] if root.ranks and root.ranks not in planted.ranks else []),
        *(["kind"] if not fits and not kinds & GENERAL else []),
    ]
    missing = [
        *([] if fits else ["kind"]),
        *(["rank"] if not root.ranks and () not in planted.ranks else []),
        *(["line"] if planted.line and not _tells_line(root, planted, sentence) else []),
        *(["fix"] if planted.fix.lower() not in advice.lower() else []),
        *(["words"] if planted.says not in sentence else []),
    ]
    verdict = "wrong" if wrong else "part" if missing else "right"
    return Outcome(planted, verdict, ", ".join(wrong or missing), sentence, advice, said)


def kinds_of(root: Root) -> tuple[str, ...]:
    """What the cause is a case of, in the words of the registry."""
    if root.crash is not None:
        return (root.crash.kind, root.crash.cause)
    if root.rule == DIED:
        return (root.cause or "exit",)
    return (root.rule,)


def _tells_line(root: Root, planted: Planted, sentence: str) -> bool:
    told = None if root.crash is None else own_line(root.crash)
    at = planted.at or marked_lines()[planted.name]
    return told is not None and told in sentence and told.endswith(f"({at})")


def outcomes(out: Path) -> list[Outcome]:
    return [outcome(planted, out) for planted in PLANTED if (out / f"{planted.name}.txt").exists()]


def score(args: argparse.Namespace) -> None:
    found = outcomes(Path(args.out))
    codes = json.loads((Path(args.out) / "codes.json").read_text())
    for one in found:
        aside = "aside" if one.planted.name in ASIDE else ""
        print(f"{one.planted.name:26} {codes.get(one.planted.name)!s:>4} {aside:6} {one.verdict:6} {one.missing}")
        if args.long or one.verdict != "right":
            print(f"    {one.sentence[:400]}\n    -> {one.advice[:200]}")
        if not one.said:
            print("    (not on the terminal of traceops run)")
    for name, group in (
        ("tuned", [one for one in found if one.planted.name not in ASIDE]),
        ("aside", [one for one in found if one.planted.name in ASIDE]),
    ):
        counts = Counter(one.verdict for one in group)
        said = sum(one.said for one in group)
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        print(f"{name}: {len(group)} crashes, {told}; said by traceops run: {said}")


def recorded_outcomes() -> list[Outcome]:
    """What today's code concludes of the recorded crashes."""
    with tempfile.TemporaryDirectory() as folder:
        unpack([FAULTS / f"{planted.name}.tar.xz" for planted in RECORDED], Path(folder))
        return [outcome(planted, Path(folder)) for planted in RECORDED]


def recorded(args: argparse.Namespace) -> None:
    print("\n".join(rows(recorded_outcomes(), most=400)))


def table(args: argparse.Namespace) -> None:
    print("\n".join(rows(outcomes(Path(args.out)))))


def rows(found: list[Outcome], most: int = 200) -> list[str]:
    """The lines of a table. most: characters of a sentence."""
    lines = ["| planted on rank 1 | set aside | traceops concludes | verdict |", "|---|---|---|---|"]
    for one in found:
        planted = one.planted
        aside = "yes" if planted.name in ASIDE else ""
        sentence = one.sentence.replace("|", "\\|").replace("\n", " ")[:most]
        verdict = one.verdict if not one.missing else f"{one.verdict} ({one.missing})"
        lines.append(f"| {planted.name} | {aside} | {sentence} | {verdict} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, function in (("make", make), ("score", score), ("table", table)):
        sub = commands.add_parser(name)
        sub.set_defaults(function=function)
        sub.add_argument("out")
        sub.add_argument("--cases", default="", help="names, with commas between (all that this machine can have)")
        sub.add_argument("--parallel", type=int, default=1, help="jobs at a time")
        sub.add_argument("--light", action="store_true", help="start torch without its compiler, as the tests do")
        sub.add_argument("--long", action="store_true", help="the sentence of each")
    commands.add_parser("recorded").set_defaults(function=recorded)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    main()
