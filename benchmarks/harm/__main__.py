"""Runs programs by themselves and with traceops, and lists every difference: ``python -m benchmarks.harm``.

Each program runs in a new folder, by `python` and under the capture, or by torchrun and `traceops run`. Compared are
the exit code, what it prints (without traceops's own lines), and every file that it leaves, weights among them. What
docs/capture.md lists as different is in `LISTED`. ``--slice 0/4`` runs every fourth; ``--only TEXT`` those with the
text in their name; ``--random N`` sends N more signals at random moments.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harm.programs import DISTRIBUTED, PROGRAMS, SIGNALS, Program, SignalCase
from traceops.capture import as_script
from traceops.cli.run import NOTHING_CAPTURED
from traceops.launch.display import without_chatter

_LIMIT_S = 120
_OURS = re.compile(rb"traceops: [^\n]*\n?")
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")
# torchrun's own report of a failure has times and pids; `traceops run` tells of it in two lines.
_TORCHRUN = re.compile(rb"^.*torch/distributed/.*\n?|^(?:[WEI]\d{4} |\*{5}).*\n?", re.MULTILINE)
# By docs/capture.md: what a program can see.
LISTED = {"steps in a thread": "a line of Kineto's, where the profiler's thread is not the main one"}
Start = Callable[[Program], list[str]]


@dataclass(frozen=True)
class Outcome:
    """What somebody sees of a program that has run."""

    code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, str]

    def differences(self, other: Outcome) -> list[str]:
        """What is not the same, in words."""
        found = [f"exit code {other.code}, not {self.code}"] if self.code != other.code else []
        for name in ("stdout", "stderr"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                found.append(f"{name} {theirs[-300:]!r}, not {mine[-300:]!r}")
        changed = sorted(n for n in self.files.keys() | other.files.keys() if self.files.get(n) != other.files.get(n))
        return found + ([f"files: {', '.join(changed)}"] if changed else [])


def python(program: Program) -> list[str]:
    """By itself."""
    return [sys.executable, *program.start.split(), *program.words]


def captured(program: Program) -> list[str]:
    """The same under the capture."""
    return [sys.executable, as_script.__file__, *program.start.split(), *program.words]


def torchrun(program: Program) -> list[str]:
    """Two ranks, by torchrun."""
    run = "from torch.distributed.run import main; main()"  # as its console script has it
    own = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-c", run]
    return [*own, "--standalone", "--nproc-per-node=2", program.start, *program.words]


def traceops_run(program: Program) -> list[str]:
    """Two ranks, by `traceops run`."""
    options = ["--nproc", "2", "--out", ".traceops", "--all-ranks", "--no-prefix"]
    return [sys.executable, "-m", "traceops", "run", *options, "--", program.start, *program.words]


def run(program: Program, start: Start, case: SignalCase | None = None) -> Outcome:
    """Run it in a new folder, and send it what the case says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("main.py", program.source), *program.files):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        settings = {"TRACEOPS_CAPTURE": '{"out": ".traceops"}'} if start is captured else {}
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            start(program), cwd=folder, env={**env, **dict(program.env), **settings}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        if case is not None:
            _send(process, folder, case)
        try:
            out, err = process.communicate(program.stdin.encode(), timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        if "outlives" in program.name or "goes on" in program.name:
            time.sleep(5)
        files = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".traceops" not in path.parts
        }
        told = [_plain(text, name) for text in (out, err)]
        return Outcome(process.returncode, told[0], told[1], files)


def _plain(text: bytes, folder: str) -> bytes:
    """Without what is ours or torchrun's, and what differs each time."""
    text = _TORCHRUN.sub(b"", _OURS.sub(b"", without_chatter(text)))
    return _ADDRESS.sub(b"0x", text.replace(folder.encode(), b"HERE"))


def _send(process: subprocess.Popen[bytes], folder: Path, case: SignalCase) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not (folder / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(case.after_s)
    with suppress(ProcessLookupError):
        process.send_signal(case.number)


def _cases(more: int) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """The name of each case, and what finds its differences."""
    for program in PROGRAMS:
        yield program.name, lambda p=program: run(p, python).differences(run(p, captured))  # type: ignore[misc]
    for program in DISTRIBUTED:
        yield f"torchrun: {program.name}", lambda p=program: _of_ranks(p)  # type: ignore[misc]
    rng = random.Random(0)
    moments = [SignalCase(case.program, case.number, rng.uniform(0, 2)) for case in rng.choices(SIGNALS, k=more)]
    for case in (*SIGNALS, *moments):
        name = f"signal {int(case.number)} after {case.after_s:.2f} s: {case.program.name}"
        yield name, lambda c=case: _with_signal(c)  # type: ignore[misc]


def _of_ranks(program: Program) -> list[str]:
    """Of ranks the order of lines is chance, and who sees a failure first: lines are sorted, and stderr is left out."""
    both = [run(program, start) for start in (torchrun, traceops_run)]
    codes = [0 if one.code == NOTHING_CAPTURED else min(one.code, 1) for one in both]  # the launcher's own code
    alike = [
        Outcome(code, b"\n".join(sorted(one.stdout.splitlines())), b"", one.files)
        for code, one in zip(codes, both, strict=True)
    ]
    return alike[0].differences(alike[1])


def _with_signal(case: SignalCase) -> list[str]:
    """A traceback's line depends on the moment: stderr is not compared."""
    both = [run(case.program, start, case) for start in (python, captured)]
    return Outcome(both[0].code, both[0].stdout, b"", both[0].files).differences(
        Outcome(both[1].code, both[1].stdout, b"", both[1].files)
    )


def main() -> int:
    """Run the cases and say what differs; 1 where anything does that is not listed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", default="0/1", metavar="K/N")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--list", action="store_true", help="only print the names")
    args = parser.parse_args()
    kth, of = map(int, args.slice.split("/"))
    named = [case for case in _cases(args.random) if args.only in case[0]]
    chosen = named[kth::of]
    wrong = 0
    for name, differences in chosen:
        if args.list:
            print(name)
            continue
        found = differences()
        if not found:
            continue
        wrong += name not in LISTED
        print(f"{name}: {LISTED.get(name, 'NOT LISTED')}", *found, sep="\n    ", flush=True)
    print(f"{len(chosen)} cases, {wrong} with a difference that is not listed")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
