"""What the link gives, what each program takes in each way without a profiler, then a trace of each.

alone.py FOLDER until_s: FOLDER/truths.jsonl, FOLDER/traces/NAME.WAY/*.json
"""

import json
import sys
import time
from pathlib import Path

BEGAN = time.monotonic()
import torch  # noqa: E402
from case import by_schedule, small, timed  # noqa: E402
from cases import CUDA, DEVICE, MB, PROGRAMS  # noqa: E402

TRACED = [
    *((name, "sick") for name in PROGRAMS), ("same_stream", "ahead"), ("large_batches", "pinned"),
    ("medium_batches", "ahead"), ("saved_on_host", "pinned"), ("features_out", "ahead"),
]  # fmt: skip


def link() -> dict:
    """GB/s of copies by direction, kind of memory and size, by events."""
    found = {}
    for mb in (0.0625, 1, 16, 64, 256) if CUDA else (0.0625,):
        device = torch.empty(round(mb * MB), dtype=torch.uint8, device=DEVICE)
        for kind in ("pageable", "pinned"):
            host = torch.ones(round(mb * MB), dtype=torch.uint8, pin_memory=CUDA and kind == "pinned")
            for way, (to, of) in {"to_device": (device, host), "to_host": (host, device)}.items():
                took = []
                for _ in range(6):
                    if CUDA:
                        torch.cuda.synchronize()
                    began = time.perf_counter()
                    to.copy_(of, non_blocking=True)
                    if CUDA:
                        torch.cuda.synchronize()
                    took.append(time.perf_counter() - began)
                found[f"{way} {kind} {mb} MiB"] = round(mb * MB / sorted(took)[2] / 1e9, 2)
    return found


def main() -> None:
    folder, until = Path(sys.argv[1]), float(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    told = (folder / "truths.jsonl").open("a")

    def tell(**what: object) -> None:
        told.write(json.dumps(what) + "\n")
        told.flush()

    if CUDA:
        torch.ones(1, device=DEVICE)
    tell(name="link", gbs=link())
    for name, (make, ways, steps) in PROGRAMS.items():
        if time.monotonic() - BEGAN > 0.7 * until:
            print("no time for", name)
            break
        for way in ways:
            tell(name=name, way=way, **timed(make(way), steps, 6))
            if CUDA:
                torch.cuda.empty_cache()
    print(f"{time.monotonic() - BEGAN:.1f} s: truths")
    for name, way in TRACED:
        if time.monotonic() - BEGAN > until:
            print("no time for a trace of", name, way)
            break
        out = folder / "traces" / f"{name}.{way}"
        out.mkdir(parents=True, exist_ok=True)
        loop = PROGRAMS[name][0](way)
        loop(small(5, 2), lambda: None)
        by_schedule(1, 1, 6 if name == "checkpoints" else 3)(loop, out)
        if CUDA:
            torch.cuda.empty_cache()
    print(f"{time.monotonic() - BEGAN:.1f} s: traces")


main()
