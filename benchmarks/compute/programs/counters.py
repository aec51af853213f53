"""The same kernels under Nsight Compute and under torch.profiler: python counters.py OUT

OUT/kernels.pt.trace.json.gz: three steps of all cases, each in a range of its own name. OUT/ncu.csv: Nsight Compute's
counters of one call per case, in the order of OUT/counted.json. OUT/launched.json: the cases in their order in the
trace, with their operations and least bytes.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attainable
import torch
from attainable import Trial
from moves import Call
from torch.profiler import ProfilerActivity, profile, record_function, schedule

LAUNCHING = 250  # seconds that the cases get under Nsight Compute
WHOLE = 310  # and its process
BUDGET = 360  # and all
COUNTERS = json.loads(Path(__file__).with_name("counters.json").read_text())
MANY_KERNELS = {"sort", "topk", "index_put", "embedding_backward", "foreach_lerp", "dropout"}


def cases() -> list[Trial]:
    def chosen() -> Iterator[Trial]:
        cache = 60e6
        for trial in attainable.products():
            if trial.dtype in ("bf16", "tf32", "fp32", "fp8"):
                yield trial
        for trial in attainable.attention():
            if "T256" not in trial.shape and "efficient" not in trial.shape:
                yield trial
        for trial in attainable.convolutions():
            if trial.dtype == "bf16" and "nhwc" in trial.shape and "depthwise" not in trial.shape:
                yield trial
        for trial in attainable.bandwidth(cache):
            if trial.shape != "4-20MB" and trial.kind not in MANY_KERNELS:
                yield trial

    drawn = list(chosen())
    random.Random(0).shuffle(drawn)  # where time ends early, every kind has been counted
    return drawn


def label(i: int, trial: Trial) -> str:
    return f"{i} {trial.kind} {trial.dtype} {trial.shape}"


def prepared(i: int, trial: Trial) -> tuple[Call, float] | None:
    """A warm call of a case, and its bytes; None where it cannot run here."""
    try:
        calls, moved = trial.make()
        for _ in range(2):
            calls[0]()
        torch.cuda.synchronize()
        return calls[0], moved
    except (RuntimeError, NotImplementedError) as error:
        print(f"{label(i, trial)}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None


def record(out: Path) -> None:
    trials = cases()
    made = {i: ready for i, trial in enumerate(trials) if (ready := prepared(i, trial)) is not None}
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=1, active=3),
        record_shapes=True,
        on_trace_ready=lambda ended: ended.export_chrome_trace(str(out / "kernels.pt.trace.json.gz")),
    ) as recorder:
        for _ in range(4):
            for i, (call, _) in made.items():
                with record_function(label(i, trials[i])):
                    call()
            torch.cuda.synchronize()
            recorder.step()
    rows = [
        {
            "name": label(i, trials[i]), "kind": trials[i].kind, "dtype": trials[i].dtype, "shape": trials[i].shape,
            "size": trials[i].size, "operations": trials[i].operations, "bytes": moved,
        }
        for i, (_, moved) in made.items()
    ]  # fmt: skip
    (out / "launched.json").write_text(json.dumps(rows, indent=1))


def launch(out: Path) -> None:
    """One call per case between the marks that Nsight Compute waits for, as far as time allows."""
    until = time.monotonic() + LAUNCHING
    runtime = torch.cuda.cudart()
    counted = []
    for i, trial in enumerate(cases()):
        if time.monotonic() > until:
            break
        ready = prepared(i, trial)
        if ready is not None:
            runtime.cudaProfilerStart()
            ready[0]()
            torch.cuda.synchronize()
            runtime.cudaProfilerStop()
            counted.append(label(i, trial))
            (out / "counted.json").write_text(json.dumps(counted, indent=1))
        ready = None
        torch.cuda.empty_cache()  # before the first pass all memory that a kernel could reach is saved
    print(f"{len(counted)} cases, {until - time.monotonic():.0f} s left", flush=True)


def nsight_compute() -> str | None:
    found = shutil.which("ncu")
    if found:
        return found
    places = [*Path("/usr/local").glob("cuda*/bin/ncu"), *Path("/opt/nvidia/nsight-compute").glob("*/ncu")]
    return str(places[-1]) if places else None


def known_metrics(ncu: str, out: Path) -> list[str]:
    """Those of the wanted metrics that this Nsight Compute has for the GPU."""
    try:
        asked = subprocess.run(
            [ncu, "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, timeout=25, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        return COUNTERS["core"]
    names = set(re.findall(r"^\s*([a-z0-9]+__[a-z0-9_]+)\s", asked, re.MULTILINE))
    (out / "ncu_metrics.txt").write_text(
        "\n".join(sorted(n for n in names if re.search("tensor|dram|sass_thread|lts__t_sectors", n)))
    )
    return COUNTERS["core"] + [m for m in COUNTERS["more"] if m.split(".")[0] in names]


def count(out: Path, ncu: str, metrics: list[str], seconds: float) -> bool:
    command = [
        *(ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"),
        *("--print-units", "base", "--metrics", ",".join(metrics), "--log-file", str(out / "ncu.csv")),
        *(sys.executable, str(Path(__file__).resolve()), str(out), "--launch"),
    ]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    lines = (out / "ncu.csv").read_text(errors="replace").splitlines() if (out / "ncu.csv").exists() else []
    kernels = sum(line.startswith('"') for line in lines) - 2
    print(f"ncu ended with {code}; {max(kernels, 0)} kernels; {' '.join(lines[:1])[:300]}", flush=True)
    return kernels > 0


def main() -> None:
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:] == ["--record"]:
        record(out)
    elif sys.argv[2:] == ["--launch"]:
        launch(out)
    else:
        began = time.monotonic()
        subprocess.run([sys.executable, __file__, str(out), "--record"], timeout=80, check=False)
        print(f"recorded after {time.monotonic() - began:.0f} s", flush=True)
        ncu = nsight_compute()
        if ncu is None:
            print("no Nsight Compute here")
            return
        metrics = known_metrics(ncu, out)
        print(f"{len(metrics)} metrics after {time.monotonic() - began:.0f} s", flush=True)
        if not count(out, ncu, metrics, WHOLE) and metrics != COUNTERS["core"]:
            print(f"again, with fewer, after {time.monotonic() - began:.0f} s", flush=True)
            count(out, ncu, COUNTERS["core"], max(BUDGET - (time.monotonic() - began), 30))


if __name__ == "__main__":
    main()
