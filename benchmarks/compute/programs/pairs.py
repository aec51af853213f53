"""Programs that waste the device and the same work done well, timed and recorded: python pairs.py OUT [NAME ...]

Writes OUT/traces/NAME/{sick,fixed}.pt.trace.json.gz (a clean program: sick only), a row per case in OUT/truth.jsonl
and one per failure in OUT/failures.jsonl. Cases run in processes of their own kind, one process at a time; what is
compiled is compiled by several processes at once first, and then measured one after the other. BUDGET: seconds for all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
BUDGET = float(os.environ.get("BUDGET", "400"))
LIMIT = int(os.environ.get("LIMIT", "40"))  # seconds per case
PREPARE = int(os.environ.get("PREPARE", "170"))  # seconds for all compilation
COMPILERS = int(os.environ.get("COMPILERS", "8"))
KEPT_FOR_COMPILED = 130.0
DEVICE_LOST = 3  # how a worker ends after an error that leaves its device unusable
BEGAN = time.monotonic()


def left() -> float:
    return BUDGET - (time.monotonic() - BEGAN)


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def finished(out: Path) -> set[str]:
    names = set()
    for path in (out / "truth.jsonl", out / "failures.jsonl"):
        if path.exists():
            names |= {json.loads(line)["name"] for line in path.read_text().splitlines()}
    return names


class TooLong(Exception):
    pass


def _stop(number: int, frame: object) -> None:
    raise TooLong(f"longer than {LIMIT} s")


def work(out: Path, names: list[str], wait: bool) -> None:
    """A worker: measures its cases; with `wait`, makes all of them first and goes on when told to."""
    warnings.filterwarnings("ignore")
    import cases
    import torch
    from measured import make, measure, truth

    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.automatic_dynamic_shapes = False
    signal.signal(signal.SIGALRM, _stop)
    made: dict[tuple[str, bool], Any] = {}

    def states(name: str) -> list[bool]:
        return [True] if cases.CASES[name].clean else [True, False]

    def fail(name: str, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        append(out / "failures.jsonl", {"name": name, "reason": reason})
        say(f"{name}: failed: {reason[:150]!r}")

    failed = set()
    if wait:
        for name in names:
            try:
                for sick in states(name):
                    made[name, sick] = make(cases.CASES[name], sick)
            except Exception as error:
                failed.add(name)
                fail(name, error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print("READY", flush=True)
        sys.stdin.readline()
    for name in names:
        if name in failed:
            continue
        began, case, found = time.monotonic(), cases.CASES[name], []
        signal.alarm(LIMIT)
        try:
            for sick in states(name):
                step = made.pop((name, sick), None) or make(case, sick)
                path = out / "traces" / name / f"{'sick' if sick else 'fixed'}.pt.trace.json.gz"
                found.append(measure(case, step, path))
                step = None
            row = truth(case, found[0], found[-1])
            append(out / "truth.jsonl", row)
            say(
                f"{name}: {time.monotonic() - began:.1f} s; step {row['sick_ms']} -> {row['cured_ms']} "
                f"(again {row['sick_after_ms']} -> {row['cured_after_ms']}), busy {row['busy_sick_ms']} -> "
                f"{row['busy_cured_ms']}, kernels {row['kernels_sick']} -> {row['kernels_cured']}, "
                f"{row['bound']} -> {row['bound_after_cure']}, GiB {row['peak_gib']}"
            )
        except Exception as error:
            step = None
            fail(name, error)
            if "CUDA error" in str(error) and "out of memory" not in str(error):
                sys.exit(DEVICE_LOST)
        finally:
            signal.alarm(0)


def command(out: Path, names: list[str], wait: bool) -> list[str]:
    return [sys.executable, str(HERE), str(out), "--wait" if wait else "--work", *names]


def one_by_one(out: Path, names: list[str], seconds: float) -> None:
    """A worker over `names`; where it dies, another over those behind the case that killed it."""
    until = time.monotonic() + seconds
    while names and time.monotonic() < until - 5:
        try:
            code = subprocess.run(command(out, names, False), timeout=until - time.monotonic(), check=False).returncode
        except subprocess.TimeoutExpired:
            say(f"no time for {', '.join(n for n in names if n not in finished(out))}")
            return
        rest = [name for name in names if name not in finished(out)]
        if not rest:
            return
        if code != DEVICE_LOST:
            append(out / "failures.jsonl", {"name": rest[0], "reason": f"its process ended with {code}"})
            say(f"{rest.pop(0)}: its process ended with {code}")
        names = rest


def compiled_together(out: Path, names: list[str]) -> None:
    """Several workers compile at once; each then measures alone."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    workers = []
    for i in range(min(COMPILERS, len(names))):
        share = names[i::COMPILERS]
        process = subprocess.Popen(
            command(out, share, True), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        ready = threading.Event()

        def follow(process: subprocess.Popen[str] = process, ready: threading.Event = ready) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "READY":
                    ready.set()
                else:
                    print(line, end="", flush=True)
            ready.set()

        threading.Thread(target=follow, daemon=True).start()
        workers.append((share, process, ready))
    until = time.monotonic() + min(PREPARE, left() - 40)
    for share, process, ready in workers:
        if not ready.wait(max(0.1, until - time.monotonic())):
            say(f"not compiled in time: {', '.join(share)}")
            process.kill()
    say("compiled")
    for share, process, _ in workers:
        if process.poll() is None and left() > 5:
            assert process.stdin is not None
            try:
                process.stdin.write("go\n")
                process.stdin.flush()
                process.wait(max(5.0, left()))
            except subprocess.TimeoutExpired:
                say(f"no time for {', '.join(n for n in share if n not in finished(out))}")
        process.kill()


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:3] in (["--work"], ["--wait"]):
        work(out, sys.argv[3:], sys.argv[2] == "--wait")
        return
    import cases

    names = sys.argv[2:] or list(cases.CASES)
    for module in cases.MODULES:
        chosen = [n for n in names if cases.CASES[n].module == module and not cases.CASES[n].compiled]
        if chosen:
            one_by_one(out, chosen, left() - KEPT_FOR_COMPILED)
    together = [n for n in names if cases.CASES[n].compiled]
    if together:
        compiled_together(out, together)
    done = finished(out)
    say(f"{len(done)} of {len(names)}; not reached: {', '.join(n for n in names if n not in done) or 'none'}")


if __name__ == "__main__":
    main()
