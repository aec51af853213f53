"""Programs of others under `traceops run`, unmodified: the table of docs/programs.md.

``python benchmarks/programs.py --work DIR [--checkouts DIR] [NAME…]`` makes an environment for each set of packages,
runs each program without and with traceops, and once more with a slow rank planted, and keeps what came of it in
DIR/results.json. ``--table`` writes the table from that file.

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from programs_cuda import PROGRAMS as CUDA_PROGRAMS
from programs_registry import ENVIRONMENTS, PROGRAMS, Program
from programs_table import write_table

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 240


def main() -> None:
    """Run what is asked for, a program after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for environments, runs and results.json"
    )
    parser.add_argument("--checkouts", type=Path, help="folder with the repositories")
    parser.add_argument("--traceops", type=Path, default=_HERE.parent, help="a checkout to run (this one)")
    parser.add_argument("--cuda", action="store_true", help="the programs for two GPUs, by this Python")
    parser.add_argument(
        "--until", type=float, default=1e9, metavar="S", help="begin none after so many seconds"
    )
    parser.add_argument(
        "--aside", action="store_true", help="the programs that were set aside, not the others"
    )
    parser.add_argument(
        "--again", action="store_true", help="take what DIR holds of the runs without traceops"
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="programs at a time")
    parser.add_argument("--no-plant", action="store_true", help="plant no slow rank")
    parser.add_argument(
        "--table",
        action="store_true",
        help="only write a table of docs/programs.md, from results.json or --results",
    )
    parser.add_argument("--results", type=Path, help="benchmarks/programs_results.json has those of the docs")
    parser.add_argument("names", nargs="*", help="of programs (all)")
    args = parser.parse_args()
    store = args.results or args.work / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    if args.table:
        kind = "cuda" if args.cuda else "gloo"
        sys.stdout.write(write_table(results.get(kind, results), cuda=args.cuda))
        return
    programs = CUDA_PROGRAMS if args.cuda else PROGRAMS
    chosen = [p for p in programs if p.name in args.names or (not args.names and p.aside == args.aside)]
    until = time.monotonic() + args.until
    setups = [Setup(program, args.work, args.checkouts, args.traceops, until) for program in chosen]
    with ThreadPoolExecutor(2 * args.parallel) as pool:
        list(pool.map(lambda at: at.without(again=args.again), setups))
    with ThreadPoolExecutor(args.parallel) as pool:
        for at, row in zip(setups, pool.map(lambda at: at.row(plant=not args.no_plant), setups), strict=True):
            entry = results.setdefault(at.program.name, {})
            entry["now"] = row
            entry.setdefault("first", row)
            store.write_text(json.dumps(results, indent=1))
            print(at.program.name, json.dumps(row), flush=True)


class Setup:
    """One program, made ready to run in folders below `work`."""

    def __init__(
        self, program: Program, work: Path, checkouts: Path | None, traceops: Path, until: float
    ) -> None:
        self.program = program
        self.until = until  # of time.monotonic(): nothing is begun after it
        self.traceops = traceops
        self.folder = work / "runs" / re.sub(r"\W+", "_", program.name)
        here = program.environment == "here"
        self.python = Path(sys.executable) if here else _environment(work / "envs", program.environment)
        self.checkout = _checkout(program, checkouts or work / "checkouts")
        self.path = [] if program.origin.startswith("PyPI") else [str(self.checkout)]

    def without(self, *, again: bool) -> None:
        """Run it without traceops; `again`: where that has not been done."""
        kept = self.folder / "bare.txt"
        if again and kept.exists():
            return
        code, text = self._run("bare", self._bare())
        if not code:
            kept.write_text(text)

    def row(self, *, plant: bool) -> dict[str, Any]:
        """What the runs of this program under traceops show, beside the one without."""
        program = self.program
        kept = self.folder / "bare.txt"
        if not kept.exists():
            said = self.folder / "bare.out"
            why = _last(said.read_text(errors="replace")) if said.exists() else "not run"
            return {"failed": f"without traceops: {why}"}
        told = kept.read_text()
        code, text = self._run("traced", self._traced("traced"))
        row: dict[str, Any] = {"exit": code, "said": _last(text), "steps_own": _count(program, text)}
        if program.result:
            row["same"] = _matches(program.result, told) == _matches(program.result, text) != []
        row |= self._report("traced")
        if plant and program.plant:
            code, text = self._run("planted", self._traced("planted"), {"PROGRAMS_PLANT": program.plant})
            row["planted"] = {"exit": code, "plant": program.plant, **self._report("planted")}
        return row

    def _bare(self) -> list[str]:
        program, command = self.program, list(self.program.command)
        if program.launcher == "none":
            return self._filled([str(self.python), *command] if command[0].endswith(".py") else command)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
        return self._filled([str(self.python), *torchrun, *command])

    def _traced(self, name: str) -> list[str]:
        program = self.program
        ranks = [] if program.launcher == "none" else ["--nproc", str(program.ranks), "--all-ranks"]
        options = [
            "--launcher",
            program.launcher,
            *ranks,
            "--out",
            str(self.folder / name / "profile"),
            "--overwrite",
        ]
        return self._filled(
            [str(self.python), "-m", "traceops", "run", *options, *program.options, "--", *program.command]
        )

    def _filled(self, command: list[str]) -> list[str]:
        places = {"{checkout}": str(self.checkout), "{small}": str(_HERE / "programs_small")}
        for place, value in places.items():
            command = [word.replace(place, value) for word in command]
        return command

    def _run(self, name: str, command: list[str], env: dict[str, str] | None = None) -> tuple[int, str]:
        """Run in a folder of its own with the program's data; exit code and output."""
        if time.monotonic() > self.until:
            return 125, "no time"
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = [str(_HERE / "programs_site"), *self.path, str(self.traceops), *_path()]
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
                str(_HERE / "programs_data.py"),
                self.program.data,
                str(self.checkout / self.program.folder),
            ]
            subprocess.run(made, cwd=folder, env=variables, check=True, capture_output=True)
        at = self.checkout / self.program.folder if self.program.within else folder
        with subprocess.Popen(
            command, cwd=at, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as started:
            try:
                text, code = started.communicate(timeout=_LIMIT_S)[0], started.returncode
            except subprocess.TimeoutExpired:
                started.terminate()  # torchrun ends its ranks, and traceops both
                text, code = started.communicate()[0], 124
        (self.folder / f"{name}.out").write_bytes(text)
        return code, text.decode(errors="replace")

    def _report(self, name: str) -> dict[str, Any]:
        """What run.json and the report say."""
        run = self.folder / name / "profile"
        out = self.folder / name / "report"
        command = [
            str(self.python),
            "-m",
            "traceops",
            "analyze",
            str(run),
            "-o",
            str(out),
            "--format",
            "json",
        ]
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
            f"{finding['rule']} {finding['severity']}: {finding['message']}"
            for finding in report["findings"][:3]
        ]
        return values


def _environment(envs: Path, name: str) -> Path:
    """The Python of a fresh environment with the packages of that name and traceops's own."""
    python = envs / name / "bin" / "python"
    if not (envs / name / "ok").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(envs / name)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        built = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*install, *ENVIRONMENTS[name], str(_HERE.parent)], check=True, env=built)
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
