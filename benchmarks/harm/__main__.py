"""Runs programs by themselves and with traceops, and lists every difference: ``python -m benchmarks.harm``.

Each case of cases/*.toml runs twice in new folders: as anybody would start it, and with traceops. Compared are the exit
code, what it prints (without traceops's own lines), every file that it leaves, weights among them, and the processes
that are left. README.md says how to add a case. A difference that docs/capture.md lists is no failure.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import math
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harm.cases import KINDS, Case, at_random_moments, load
from benchmarks.harm.lanes import reason_to_skip, side_by_side
from traceops.capture import as_script
from traceops.cli.run import NOTHING_CAPTURED
from traceops.launch.display import without_chatter

_LIMIT_S = 1800.0  # for a program that hangs; the longest takes a minute where nothing else runs
_LIMIT_OF_A_BUDGET_S = 120.0
_MOST_SHOWN = 600  # bytes of an output that differs
_FOR_AGAIN = 0.08  # of a budget: to run alone what differed beside others
_LISTED_IN = ROOT / "docs" / "capture.md"
_OURS = re.compile(rb"(?:(?<=\n)|\A)traceops: [^\n]*\n?|traceops: [^\n]*\n?")
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")
_PID = re.compile(rb"\(pid=\d+\)")  # as a warning of Python 3.12 has it
# torchrun's own report of a failure has times and pids; `traceops run` reports it in two lines.
_TORCHRUN = re.compile(rb"^.*torch/distributed/.*\n?|^(?:[WEI]\d{4} |\*{5}).*\n?", re.MULTILINE)
_RUN_FOLDER = ".traceops"
_MARK = "HARM_CASE"  # in the environment of all that a case starts
_MOST_MORE_S = 15.0  # of CPU time, besides twice what the program takes by itself


@dataclass(frozen=True)
class Outcome:
    """What somebody sees of a program that has run."""

    code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, str]
    left: int = 0  # processes still there when it has ended
    cpu_s: float = 0.0
    ended_by_us: bool = False  # as it took too long

    def differences(self, other: Outcome) -> list[str]:
        """What is not the same, in words."""
        found = [f"exit code {other.code}, not {self.code}"] if self.code != other.code else []
        found += ["ended by the harness, as it took too long"] if self.ended_by_us or other.ended_by_us else []
        for name in ("stdout", "stderr"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                unlike = (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b)
                begins = max(0, next(unlike, min(len(mine), len(theirs))) - 80)
                shown = slice(begins, begins + _MOST_SHOWN)
                found.append(f"{name} {theirs[shown]!r}, not {mine[shown]!r}")
        changed = sorted(n for n in self.files.keys() | other.files.keys() if self.files.get(n) != other.files.get(n))
        found += [f"files: {', '.join(changed)}"] if changed else []
        found += [f"{other.left} processes left, not {self.left}"] if self.left != other.left else []
        if other.cpu_s > 2 * self.cpu_s + _MOST_MORE_S:
            found.append(f"{other.cpu_s:.0f} s of CPU time, not {self.cpu_s:.0f}")
        return found


def command(case: Case, *, traced: bool) -> list[str]:
    """How the case is started, without traceops or with it."""
    own = [sys.executable, "-m", "traceops", "run", "--out", _RUN_FOLDER, *case.options]
    words = [sys.executable if word == "python" else word for word in case.command]
    if case.way == "command":
        return [*own, "--no-prefix", "--", *words] if traced else words
    if case.way == "run":
        if traced:
            return [*own, "--nproc", "2", "--all-ranks", "--no-prefix", "--", case.start, *case.words]
        run = "from torch.distributed.run import main; main()"  # as its console script has it
        safe = "-P" if sys.version_info >= (3, 11) else "-s"
        torchrun = [sys.executable, safe, "-c", run, "--standalone", "--nproc-per-node=2"]
        return [*torchrun, *case.start.split(), *case.words]
    if case.way != "capture":
        raise ValueError(f"{case.name}: no way to start is called {case.way!r}")
    return [sys.executable, *([as_script.__file__] if traced else []), *case.start.split(), *case.words]


def run(case: Case, *, traced: bool, limit_s: float = _LIMIT_S) -> Outcome:
    """Run it in a new folder, and do to it what the case says."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, mark = Path(name, "work"), uuid.uuid4().hex
        folder.mkdir()
        for file, text in {"main.py": case.main, **case.files}.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("PYTHONUNBUFFERED", None)  # a line in pieces is torn by another rank's, with traceops or without
        env |= {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
            "TRACEOPS_CACHE": "off",
            **case.env,
            _MARK: mark,
        }
        if traced and case.way == "capture":
            env.setdefault("TRACEOPS_CAPTURE", json.dumps({"out": _RUN_FOLDER}))
        words = command(case, traced=traced)
        if case.before:
            words = ["bash", "-c", f'{case.before}\nexec env "$@"', "bash", *words]
        if case.own_mounts:
            words = ["unshare", "--mount", *words]
        began = _cpu_s()
        process = subprocess.Popen(
            words, cwd=folder, env=env, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        if case.signal or case.during:
            _disturb(process, folder, case, limit_s)
        ended_by_us = False
        try:
            texts = process.communicate(case.stdin.encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            ended_by_us = True
            process.kill()
            _end(_marked(mark))  # they may hold its pipes
            texts = process.communicate()
        time.sleep(case.settle_s)
        left = _left(mark)
        files = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.relative_to(folder).parts[0].startswith(_RUN_FOLDER)
        }
        printed = [_without_ours(text, str(folder)) for text in texts]
        return Outcome(process.returncode, printed[0], printed[1], files, left, _cpu_s() - began, ended_by_us)


def differences(case: Case, deadline: float = math.inf) -> tuple[list[str], Outcome, Outcome]:
    """What is not the same with traceops, and both outcomes."""
    plain, traced = (run(case, traced=traced, limit_s=_limit_s(deadline)) for traced in (False, True))
    if not plain.code and traced.code == NOTHING_CAPTURED:
        traced = replace(traced, code=0)
    plain, traced = _comparable(case, plain), _comparable(case, traced)
    if _has_ranks(case) and sorted(plain.stdout) == sorted(traced.stdout):  # a rank's line torn by another's
        traced = replace(traced, stdout=plain.stdout)
    return plain.differences(traced), plain, traced


def _has_ranks(case: Case) -> bool:
    return case.way == "run" or "torchrun" in case.command


def _limit_s(deadline: float) -> float:
    if math.isinf(deadline):
        return _LIMIT_S
    return max(0.0, min(_LIMIT_OF_A_BUDGET_S, deadline - time.monotonic()))


def _comparable(case: Case, one: Outcome) -> Outcome:
    """Without what differs by chance: of ranks the order of lines, and who sees a failure first.

    A signal's traceback names the line that ran at that moment.
    """
    code, stdout, stderr = one.code, one.stdout, one.stderr
    if _has_ranks(case):
        code = int(code != 0)  # torchrun has a code of its own
        stdout = b"\n".join(sorted(stdout.splitlines()))
    if case.way == "run" or case.signal or "stderr" in case.ignore:
        stderr = b""
    stdout = b"" if "stdout" in case.ignore else stdout
    files = {} if "files" in case.ignore else {n: h for n, h in one.files.items() if n not in case.ignore}
    left = 0 if "left" in case.ignore else one.left
    return replace(one, code=code, stdout=stdout, stderr=stderr, files=files, left=left)


def _without_ours(text: bytes, folder: str) -> bytes:
    """Without what is ours or torchrun's, and what differs each time."""
    text = _TORCHRUN.sub(b"", _OURS.sub(b"", without_chatter(text)))
    return _PID.sub(b"(pid)", _ADDRESS.sub(b"0x", text.replace(folder.encode(), b"HERE")))


def _disturb(process: subprocess.Popen[bytes], folder: Path, case: Case, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not (folder / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(case.after_s)
    if case.during:
        subprocess.run(
            ["bash", "-c", case.during], cwd=folder, env={**os.environ, "PID": str(process.pid)}, check=False
        )
    if case.signal:
        with suppress(ProcessLookupError):
            process.send_signal(case.signal_number)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _left(mark: str) -> int:
    """How many processes of a case are still there 1 s after it has ended; they are killed."""
    deadline = time.monotonic() + 1.0
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    _end(found)
    return len(found)


def _end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(mark: str) -> list[int]:
    needle, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@dataclass(frozen=True)
class Result:
    """What a case showed: the differences, in words, and what it took."""

    found: list[str]
    seconds: float
    more_s: float  # of CPU time, with traceops


def examine(case: Case, deadline: float) -> Result | None:
    """Run both; None where the deadline cut one off. An error of the harness is a difference too."""
    began = time.monotonic()
    try:
        found, plain, traced = differences(case, deadline)
        more_s = traced.cpu_s - plain.cpu_s
        if (plain.ended_by_us or traced.ended_by_us) and time.monotonic() > deadline:
            return None
    except Exception as error:  # the other cases go on
        found, more_s = [f"the harness failed: {error!r}"], 0.0
    result = Result(found, time.monotonic() - began, more_s)
    print("\n    ".join([f"{result.seconds:5.1f} s  {case.name}", *found]), file=sys.stderr, flush=True)
    return result


def main() -> int:
    """Run the cases and print what differs; 1 where anything does that is not listed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", default="0/1", metavar="K/N", help="every Nth case, from the Kth on")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="the first N, of a run that was cut off")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with the text in their name")
    parser.add_argument("--file", default="", metavar="NAME", help="cases of cases/NAME.toml")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N signals more, at random moments")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="cases side by side, with two cores each")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="begin no case after S seconds")
    parser.add_argument("--list", action="store_true", help="only print the names")
    args = parser.parse_args()
    began = time.monotonic()
    kth, of = map(int, args.slice.split("/"))
    for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a shell's & and nohup have them ignored
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)
    cases = load()
    every = (*cases, *at_random_moments(cases, args.random, args.seed))
    chosen = [one for one in every if args.only in one.name and args.file in ("", one.file)][kth::of][args.skip :]
    if args.list:
        print(*(f"{one.way:8}{one.name}" for one in chosen), sep="\n")
        return 0
    compileall.compile_dir(ROOT / "traceops", quiet=2)  # as an installed package is
    skipped = {case.name: reason for case in chosen if (reason := reason_to_skip(case))}
    able = [case for case in chosen if case.name not in skipped]
    for_cases_s = args.budget * (1 - _FOR_AGAIN if args.lanes > 1 else 1)
    results = list(side_by_side(examine, able, args.lanes, began + for_cases_s))
    for name, reason in skipped.items():
        print(f"{name}: left out, as {reason}")
    late = [case.name for case, result in results if result is None]
    if late:
        print(f"{len(late)} cases did not end within the budget: {'; '.join(late)}")
    deadline = began + args.budget
    wrong = sum([not report(case, result, deadline, again=args.lanes > 1) for case, result in results if result])
    more_s = [result.more_s for _, result in results if result]
    took = f"{len(more_s)} of {len(chosen)} cases in {time.monotonic() - began:.0f} s"
    print(f"{took}, {wrong} with a difference that is not listed")
    print_kinds(chosen, results, wrong)
    if more_s:
        print(
            f"CPU time with traceops: {statistics.median(more_s):.1f} s more in the median, {max(more_s):.1f} at most"
        )
    return int(wrong > 0)


def report(case: Case, result: Result, deadline: float, *, again: bool) -> bool:
    """Print what differs; whether there is no difference but a listed one.

    Beside others a case that differs runs once more, alone: a difference counts when it shows twice.
    """
    if not result.found:
        return True
    if is_listed(case):
        print(f"{case.name}: {case.listed}", *result.found, sep="\n    ", flush=True)
        return True
    print(f"{case.name}: NOT LISTED", *result.found, sep="\n    ", flush=True)
    if not again or time.monotonic() > deadline:
        return False
    alone = examine(case, deadline)
    if alone is None:
        return False
    print("  and alone:", *(alone.found or ["no difference"]), sep="\n    ", flush=True)
    return not alone.found


def is_listed(case: Case) -> bool:
    """Whether docs/capture.md lists the case's difference."""
    return bool(case.listed) and case.listed in " ".join(_LISTED_IN.read_text().split())


def print_kinds(chosen: list[Case], results: list[tuple[Case, Result | None]], wrong: int) -> None:
    """How many cases of each kind ran, and how many differed."""
    ended = [case for case, result in results if result]
    for kind in KINDS:
        of_kind = [case.kind for case in ended].count(kind)
        print(f"{kind}: {of_kind} of {[case.kind for case in chosen].count(kind)}")
    listed = sum(bool(result and result.found) and is_listed(case) for case, result in results)
    print(f"differences: {listed} listed, {wrong} not listed")


if __name__ == "__main__":
    sys.exit(main())
