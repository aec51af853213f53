"""Programs of others under `traceops run`, unmodified: the table of RESULTS.md.

``python -m benchmarks.programs.runs --work DIR [--checkouts DIR] [NAME…]`` makes an environment for each set of
packages, runs each program without and with traceops, and once more with a slow rank planted, and keeps what came of
it in DIR/results.json. ``--table`` writes the table from that file.

checkouts: a folder OWNER+NAME for each repository; without it, repositories are cloned by git at the named commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import ROOT
from benchmarks.programs.registry import CUDA_PROGRAMS, ENVIRONMENTS, PROGRAMS, Program
from benchmarks.programs.table import write_table

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 240
_Result = TypeVar("_Result")


def main() -> None:
    """Run what is asked for, a program after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for environments, runs and results.json")
    parser.add_argument("--checkouts", type=Path, help="folder with the repositories")
    parser.add_argument("--traceops", type=Path, default=ROOT, help="a checkout to run (this one)")
    parser.add_argument("--cuda", action="store_true", help="the programs for two GPUs, by this Python")
    parser.add_argument("--until", type=float, default=1e9, metavar="S", help="begin none after so many seconds")
    parser.add_argument("--aside", action="store_true", help="the programs that were set aside, not the others")
    parser.add_argument("--again", action="store_true", help="take what DIR holds of the runs without traceops")
    parser.add_argument(
        "--read", action="store_true", help="run nothing: analyse again what DIR holds, with the code of today"
    )
    parser.add_argument("--run-only", action="store_true", help="analyse nothing yet: --read does it")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="programs at a time")
    parser.add_argument(
        "--planted-parallel", type=int, default=1, metavar="N", help="programs with a slow rank at a time"
    )
    parser.add_argument(
        "--limit", type=float, default=_LIMIT_S, metavar="S", help=f"end a program after S seconds ({_LIMIT_S})"
    )
    parser.add_argument("--no-plant", action="store_true", help="plant no slow rank")
    parser.add_argument(
        "--table", action="store_true", help="only write a table of RESULTS.md, from results.json or --results"
    )
    parser.add_argument("--results", type=Path, help="benchmarks/programs/results.json has those of the docs")
    parser.add_argument("names", nargs="*", help="of programs (all)")
    args = parser.parse_args()
    store = args.results or args.work / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    if args.table:
        kind = "cuda" if args.cuda else "gloo"
        sys.stdout.write(write_table(results.get(kind, results), cuda=args.cuda))
        return
    programs = CUDA_PROGRAMS if args.cuda else PROGRAMS
    named = {p.name: p for p in programs}
    chosen = [named[name] for name in args.names] or [p for p in programs if p.aside == args.aside]
    until = time.monotonic() + args.until
    setups = [Setup(program, args.work, args.checkouts, args.traceops, until, args.limit) for program in chosen]
    if not args.read:
        _each(setups, 2 * args.parallel, lambda at: at.without(again=args.again))
        _each(setups, args.parallel, Setup.traced)
        if not args.no_plant:
            _each(setups, args.planted_parallel, Setup.planted)
    if args.run_only:
        return
    for at, row in zip(setups, _each(setups, 2 * args.parallel, Setup.row), strict=True):
        entry = results.setdefault(at.program.name, {})
        entry["now"] = row
        entry.setdefault("first", row)
        print(at.program.name, json.dumps(row), flush=True)
    store.write_text(json.dumps(results, indent=1))


def _each(setups: list[Setup], at_a_time: int, do: Callable[[Setup], _Result]) -> list[_Result]:
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(do, setups))


class Setup:
    """One program, made ready to run in folders below `work`."""

    def __init__(
        self,
        program: Program,
        work: Path,
        checkouts: Path | None,
        traceops: Path,
        until: float = float("inf"),
        limit: float = _LIMIT_S,
    ) -> None:
        self.program = program
        self.limit = limit  # seconds that one run may take
        self.until = until  # of time.monotonic(): nothing is begun after it
        self.traceops = traceops
        self.folder = work / "runs" / re.sub(r"\W+", "_", program.name)
        here = program.environment == "here"
        self.python = Path(sys.executable) if here else _environment(work / "envs", program.environment)
        self.checkout = _checkout(program, checkouts or work / "checkouts")
        self.path = [] if program.origin.startswith("PyPI") else [str(self.checkout)]

    def without(self, *, again: bool) -> None:
        """Run it without traceops; `again`: where that has not been done."""
        if again and self._exit("bare") == 0:
            return
        self._run("bare", self._bare())

    def traced(self) -> None:
        """Run it with traceops, if it ran without."""
        if self._exit("bare") == 0:
            self._run("traced", self._traced("traced"))

    def planted(self) -> None:
        """Run it with traceops and its slow rank."""
        if self.program.plant and self._exit("traced") == 0:
            self._run("planted", self._traced("planted"), {"PROGRAMS_PLANT": self.program.plant})

    def row(self) -> dict[str, Any]:
        """What the runs of this program under traceops show, beside the one without."""
        program, told = self.program, self._text("bare")
        if self._exit("bare") != 0:
            return {"failed": f"without traceops: {_last(told) or 'not run'}"}
        if self._exit("traced") is None:
            return {"failed": "not run with traceops"}
        text = self._text("traced")
        row: dict[str, Any] = {"exit": self._exit("traced"), "said": _last(text), "steps_own": _count(program, text)}
        if program.result:
            row["same"] = _matches(program.result, told) == _matches(program.result, text) != []
        row |= self._report("traced")
        if self._exit("planted") is not None:
            row["planted"] = {"exit": self._exit("planted"), "plant": program.plant, **self._report("planted")}
        return row

    def _exit(self, name: str) -> int | None:
        """The exit code of that run, if it ended."""
        kept = self.folder / f"{name}.exit"
        return int(kept.read_text()) if kept.exists() else None

    def _text(self, name: str) -> str:
        kept = self.folder / f"{name}.out"
        return kept.read_text(errors="replace") if kept.exists() else ""

    def _bare(self) -> list[str]:
        program, command = self.program, list(self.program.command)
        if program.launcher == "none":
            return self._filled([str(self.python), *command] if command[0].endswith(".py") else command)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
        return self._filled([str(self.python), *torchrun, *command])

    def _traced(self, name: str) -> list[str]:
        program = self.program
        ranks = [] if program.launcher == "none" else ["--nproc", str(program.ranks), "--all-ranks"]
        options = ["--launcher", program.launcher, *ranks, "--out", str(self.folder / name / "profile"), "--overwrite"]
        return self._filled(
            [str(self.python), "-m", "traceops", "run", *options, *program.options, "--", *program.command]
        )

    def _filled(self, command: list[str]) -> list[str]:
        places = {"{checkout}": str(self.checkout), "{small}": str(_HERE / "small")}
        for place, value in places.items():
            command = [word.replace(place, value) for word in command]
        return command

    def _run(self, name: str, command: list[str], env: dict[str, str] | None = None) -> None:
        """Run in a folder of its own with the program's data; keep output and exit code beside it."""
        (self.folder / f"{name}.exit").unlink(missing_ok=True)
        if time.monotonic() > self.until:
            return
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        stubs = [str(_HERE / "stubs")] if self.program.stubs else []
        path = [str(_HERE / "site"), *self.path, str(self.traceops), *_path(), *stubs]
        variables = {
            **os.environ, "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "WANDB_MODE": "disabled",
            **({} if self.program.environment == "here" else {"CUDA_VISIBLE_DEVICES": ""}),
            **dict(self.program.env), **(env or {}),
        }  # fmt: skip
        if self.program.data:
            made = [
                str(self.python),
                str(_HERE / "data.py"),
                self.program.data,
                str(self.checkout / self.program.folder),
            ]
            done = subprocess.run(made, cwd=folder, env=variables, capture_output=True)
            if done.returncode:
                (self.folder / f"{name}.out").write_bytes(done.stderr)
                (self.folder / f"{name}.exit").write_text(str(done.returncode))
                return
        at = self.checkout / self.program.folder if self.program.within else folder
        with subprocess.Popen(
            command, cwd=at, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as started:
            try:
                text, code = started.communicate(timeout=self.limit)[0], started.returncode
            except subprocess.TimeoutExpired:
                started.terminate()  # torchrun ends its ranks, and traceops both
                text, code = started.communicate()[0], 124
        (self.folder / f"{name}.out").write_bytes(text)
        (self.folder / f"{name}.exit").write_text(str(code))

    def _report(self, name: str) -> dict[str, Any]:
        """What run.json and the report say."""
        run = self.folder / name / "profile"
        out = self.folder / name / "report"
        command = [str(self.python), "-m", "traceops", "analyze", str(run), "-o", str(out), "--format", "json"]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.traceops), *_path()])},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        values: dict[str, Any] = {"analyze_exit": done.returncode}
        if (run / "run.json").exists():
            ranks = json.loads((run / "run.json").read_text())["ranks"]
            values["steps"] = [rank["steps"] for rank in ranks]
            values["traced"] = sum(bool(rank["traces"]) for rank in ranks)
        if not (out / "report.json").exists():
            return {**values, "said_of_it": _last(done.stderr + done.stdout)}
        report = json.loads((out / "report.json").read_text())
        values["matched"] = report["summary"]["matching"]["matched_pct"]
        values["findings"] = [
            f"{finding['rule']} {finding['severity']}: {finding['message']}" for finding in report["findings"][:3]
        ]
        return values


def _environment(envs: Path, name: str) -> Path:
    """The Python of a fresh environment with the packages of that name and traceops's own."""
    python = envs / name / "bin" / "python"
    if not (envs / name / "ok").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(envs / name)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        built = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*install, *ENVIRONMENTS[name], str(ROOT)], check=True, env=built)
        (envs / name / "ok").touch()
    return python


def _checkout(program: Program, folder: Path) -> Path:
    """The program's repository at its commit; of a folder that holds it already, as it is there."""
    if program.origin.startswith("PyPI"):
        return _HERE
    repository, _, commit = program.origin.partition(":")[0].partition("@")
    at = folder / repository.replace("/", "+")
    if not at.exists():
        at.mkdir(parents=True)
        for words in (
            ["init", "-q"],
            ["fetch", "-q", "--depth=1", f"https://github.com/{repository}", commit],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            subprocess.run(["git", *words], cwd=at, check=True)
    return at


def _path() -> list[str]:
    before = os.environ.get("PYTHONPATH")
    return [before] if before else []


def _count(program: Program, text: str) -> int | None:
    if program.steps is not None:
        return program.steps
    found = re.findall(program.count, text) if program.count else []
    return max(map(int, found)) + program.offset if found else None


def _matches(pattern: str, text: str) -> list[str]:
    """The matches: the ranks' lines come in any order, and traceops shows those of one."""
    return sorted(set(re.findall(pattern, text))) if pattern else []


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:]


if __name__ == "__main__":
    main()
