"""Runs a small training under the capture, in this process, and lets one call of the capture fail.

``python tests/capture/fault_table.py`` fails every call with every error and prints the table of docs/capture.md.
"""

import builtins
import contextlib
import copy
import errno
import gc
import io
import json
import os
import random
import signal
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

import traceops.capture.script as script
from traceops.capture import guard, session, steps
from traceops.capture.progress import LastWords
from traceops.capture.short_way.ways import LongWay
from traceops.capture.threads import DaemonThread, our_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from faults import Call, Faults

CODE = 3
SCRIPT = f"""
import sys, torch
torch.manual_seed(7)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(9):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    during(number)
print([p.tolist() for p in model.parameters()], torch.rand(1).item())
sys.exit({CODE})
"""
SCHEDULE = {"skip_first": 1, "unprofiled": 2, "warmup": 1, "active": 1, "repeat": 2}
ERRORS = (
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    RuntimeError("injected"),
    MemoryError(),
)
_OURS = (str(Path(guard.__file__).parent), str(Path(guard.__file__).parents[1] / "core"))


@dataclass(frozen=True)
class Outcome:
    """What a run did for its user, and what it said of its capture."""

    code: int
    printed: str
    traced: int
    reason: dict | None


class Table:
    """Runs in a folder of its own; `faults` looks at the calls that are made behind the guard."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        (folder / "train.py").write_text(SCRIPT)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch loads more of itself with the first of each
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            pass
        inside = frozenset({guard.Guard.run.__code__, guard.contained.__code__})
        by_chance = frozenset({LongWay.collected.__code__})
        self.faults = Faults(lambda file: file.startswith(_OURS) and file != guard.__file__, inside, by_chance)

    def clean(self) -> tuple[Outcome, list[Call]]:
        with self.faults.counted() as calls:
            outcome = self.run()
        return outcome, list(calls)

    def failing(self, number: int, error: BaseException) -> Outcome:
        return self.run(fault=(number, copy.copy(error)))

    def run(self, *, evidence: bool = False, out=None, during=lambda number: None, fault=None) -> Outcome:
        """One training.

        evidence: with a responder, as where hangs are watched for. during: called after each step. fault: the number
        of a call and its error.
        """
        state = _state()
        self._number += 1
        out = out or self._folder / f"out{self._number}"
        progress = self._folder / f"progress{self._number}"
        progress.mkdir()
        words = LastWords(progress)
        settings = {"out": str(out), "schedule": SCHEDULE, "progress": str(progress), "launched": True}
        if evidence:
            settings["evidence"] = str(progress)
        os.environ["TRACEOPS_CAPTURE"] = json.dumps(settings)
        boundaries, original = [], steps._Boundary.when_imported
        steps._Boundary.when_imported = lambda self, on: (boundaries.append(self), original(self, on))[1]
        compiled = session.short_way
        session.short_way = LongWay  # or how many calls there are would be by chance
        argv, path = list(sys.argv), list(sys.path)
        printed, said_aloud = io.StringIO(), io.StringIO()
        main, builtins.during = sys.modules["__main__"], during
        try:
            failing = contextlib.nullcontext() if fault is None else self.faults.failing(*fault)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said_aloud), failing:
                code = script.run([str(self._folder / "train.py")], frozenset(sys.modules))[0]
        finally:
            steps._Boundary.when_imported, sys.modules["__main__"] = original, main
            del builtins.during
            session.short_way = compiled
            sys.argv, sys.path[:] = argv, path
            for boundary in boundaries:
                boundary.remove()
            del os.environ["TRACEOPS_CAPTURE"]
        left = self._left(state)
        assert not left, f"the capture left behind: {left}"
        manifest = out / "rank_0" / "manifest.json"
        said = json.loads(manifest.read_text()) if manifest.exists() else {}
        heard = words.heard()
        words.close()
        reason = said.get("failure") or (heard[0].as_dict() if heard else None)
        if reason is None and "gave way" in (said.get("note") or ""):
            reason = {"operation": "start", "error": said["note"]}
        if reason is None and "nothing is captured: " in said_aloud.getvalue():
            reason = {"operation": "prepare", "error": said_aloud.getvalue()}
        for trace in said.get("traces", []):
            assert (out / trace).stat().st_size
        assert all(".part" in path.name for path in out.rglob(".*")), "half-written files say so in their names"
        return Outcome(code, printed.getvalue(), len(list(out.rglob("*.gz"))), reason)

    def _left(self, before: dict[str, object]) -> dict[str, object]:
        for thread in _threads():  # one that was told to end may take a moment
            thread.join(timeout=10.0)
        now = _state()
        session._current = None
        return {name: value for name, value in now.items() if value != before[name]}


def _state() -> dict[str, object]:
    """What of this process the capture must leave as it was."""
    return {
        "profiler": torch._C._autograd._profiler_enabled(),
        "SIGTERM": signal.SIG_DFL if _is_over(signal.getsignal(signal.SIGTERM)) else signal.getsignal(signal.SIGTERM),
        "SIGCHLD": signal.getsignal(signal.SIGCHLD),
        "wakeup": _wakeup(),
        "importers": list(sys.meta_path),
        "filters": list(warnings.filters),
        "filters' version": warnings._filters_version if hasattr(warnings, "_filters_version") else None,
        "dtype": torch.get_default_dtype(),
        "random": random.getstate(),
        "folder": Path.cwd(),
        "threads": [one.name for one in _threads()],
        "collector": [told for told in gc.callbacks if isinstance(getattr(told, "__self__", None), LongWay)],
        "hooks": _patched(),
    }


def _threads() -> list[DaemonThread]:
    return [one for one in our_threads() if one.name in ("traceops-sigterm", "traceops-observer")]


def _is_over(handler: object) -> bool:
    """Whether it is one of ours that does nothing any more but what would be without it."""
    return getattr(handler, "over", False)


def _wakeup() -> int:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    return before


def _patched() -> list[object]:
    from torch.autograd import profiler
    from torch.optim import optimizer

    return [
        profiler.profile._prepare_trace, profiler.profile._start_trace, profiler.warn,
        vars(optimizer.Optimizer)["profile_hook_step"], len(optimizer._global_optimizer_post_hooks),
    ]  # fmt: skip


def main() -> None:
    """Every call and every error."""
    with tempfile.TemporaryDirectory() as folder:
        table = Table(Path(folder))
        table.run()
        clean, calls = table.clean()
        cases, kept, silent = Counter(), Counter(), []
        first = dict(reversed([(call, number) for number, call in enumerate(calls)]))
        for call, number in first.items():
            if (call.function, call.called) == ("before_other_profilers", "setattr"):
                continue  # where one fails that gives back a method of torch's, it stays, and does nothing
            for error in ERRORS:
                outcome = table.failing(number, error)
                assert (outcome.code, outcome.printed) == (clean.code, clean.printed), (call, error)
                operation = outcome.reason["operation"] if outcome.reason else "–"
                if outcome.reason is None and outcome.traced < clean.traced:
                    silent.append(f"{call} {error!r}")
                cases[operation, type(error).__name__] += 1
                kept[operation] += outcome.traced
    names = [type(error).__name__ for error in ERRORS]
    print(f"{len(calls)} calls from {len(first)} places, {sum(cases.values())} runs")
    print(f"exit code {clean.code} and the output of a run without faults in all of them")
    print("| operation | " + " | ".join(names) + " | traces kept |")
    for operation in sorted({operation for operation, _ in cases}):
        counts = [cases[operation, name] for name in names]
        print(f"| {operation} | " + " | ".join(map(str, counts)) + f" | {kept[operation]} of {2 * sum(counts)} |")
    print(*(f"lost without a word: {what}" for what in sorted(set(silent))), sep="\n")


if __name__ == "__main__":
    main()
