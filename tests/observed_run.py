"""Writes what a rank and a launcher keep of a whole run, as tests want it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from traceops.core.rank_files import (
    MAGIC,
    OBSERVED_FILE,
    RECORD,
    RECORDED,
    SKIPPED,
    STEPS_FILE,
    loader_file,
    machine_file,
)

BEGAN_NS = 1_800_000_000 * 10**9
TRAIN = "/home/me/train.py"
TORCH = "/usr/lib/python3/site-packages/torch"
# Stacks by name: frames as (function, file, line, text), outermost first.
STACKS = {
    "forward": [
        ("train", TRAIN, 30, "loss = model(batch)"),
        ("Module.__call__", f"{TORCH}/nn/modules/module.py", 9, None),
    ],
    "backward": [
        ("train", TRAIN, 31, "loss.backward()"),
        ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 9, None),
    ],
    "item": [("train", TRAIN, 33, "total += loss.item()")],
    "evaluate": [("train", TRAIN, 40, "evaluate(model)"), ("evaluate", TRAIN, 12, "model(batch)")],
    "validate": [("train", TRAIN, 44, "validate(model)"), ("validate", TRAIN, 15, "model(batch)")],
    "save": [
        ("train", TRAIN, 42, "torch.save(model.state_dict(), path)"),
        ("save", f"{TORCH}/serialization.py", 900, None),
    ],
    "collate": [
        ("train", TRAIN, 29, "for batch in loader:"),
        ("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 5, None),
        ("collate_fn", "/home/me/data.py", 88, "return pad(samples)"),
    ],
    "batch": [
        ("train", TRAIN, 29, "for batch in for_ever(loader):"),
        ("for_ever", TRAIN, 20, "yield from loader"),
        ("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1283, None),
        ("poll", "/usr/lib/python3.11/multiprocessing/connection.py", 257, None),
    ],
    "tokenize": [("train", TRAIN, 35, "tokenize(text)"), ("tokenize", "/home/me/text.py", 7, "for word in text:")],
    "rare": [("train", TRAIN, 50, "rebalance()"), ("rebalance", TRAIN, 51, "for row in table:")],
    # Below a line that says .item() the model runs: the host does not wait there.
    "estimate": [
        ("train", TRAIN, 54, "estimate_loss()"),
        ("estimate_loss.<locals>.<genexpr>", TRAIN, 55, "return sum(model(one).item() for one in data)"),
        ("Module.__call__", f"{TORCH}/nn/modules/module.py", 9, None),
    ],
    "generate": [
        ("main", TRAIN, 60, "tokens = model.generate(prompts)"),
        ("context_decorator.<locals>.decorate_context", f"{TORCH}/utils/_contextlib.py", 9, None),
        ("GenerationMixin.generate", "/usr/lib/python3/site-packages/transformers/generation/utils.py", 9, None),
        ("Module._call_impl", f"{TORCH}/nn/modules/module.py", 9, None),
    ],
    # @torch.no_grad(): the model is called, and then what it computed is read.
    "perplexity": [
        ("train", TRAIN, 70, "told = perplexity(model)"),
        ("context_decorator.<locals>.decorate_context", f"{TORCH}/utils/_contextlib.py", 9, None),
        ("perplexity", TRAIN, 72, "loss = model(batch)"),
        ("Module._call_impl", f"{TORCH}/nn/modules/module.py", 9, None),
    ],
    "perplexity_read": [
        ("train", TRAIN, 70, "told = perplexity(model)"),
        ("context_decorator.<locals>.decorate_context", f"{TORCH}/utils/_contextlib.py", 9, None),
        ("perplexity", TRAIN, 73, "total += loss.item()"),
    ],
    # What torch.compile wrote, on each rank into a file of another name.
    **{
        f"compiled_{letter}": [
            ("train", TRAIN, 30, "loss = model(batch)"),
            ("OptimizedModule.__call__", f"{TORCH}/_dynamo/eval_frame.py", 9, None),
            ("Runner.call", f"/cache/4a/c{letter * 51}.py", 759, None),
        ]
        for letter in "ab"
    },
    # A script without functions.
    "top_stall": [("<module>", TRAIN, 10, "time.sleep(0.1)")],
    "top_batch": [("<module>", TRAIN, 13, "batch = make()")],
    "frozen": [("_run_code", "<frozen runpy>", 3, None)],
}  # fmt: skip


@dataclass
class Step:
    """One step: ms, of it in the garbage collector and in the compiler, and ms by name of a stack."""

    ms: float
    gc_ms: float = 0.0
    compile_ms: float = 0.0
    device_ms: float = 0.0
    recorded: bool = False
    skipped: bool = False  # by a gradient scaler
    core_wait_ms: float = 0.0
    stacks: dict = field(default_factory=dict)


def usual(ms=50.0, forward=0.6, **more):
    """A step that is like the others, the host in the forward pass and waiting in backward."""
    return Step(ms, stacks={"forward": forward * ms, "backward": (1 - forward) * ms}, **more)


def write_rank(root: Path, rank: int, steps, extra=(), **told) -> None:
    """rank_<rank>/ with these steps; a sample stands for 5 ms, and every rank is looked at in every step.

    extra: further lines of observed.jsonl. told: more of the header of steps.bin.
    """
    folder = root / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"rank": rank, "started_ns": BEGAN_NS, "first": 0, **told}).encode() + b"\n"
    records = b"".join(
        RECORD.pack(
            round(s.ms * 1e3), round(s.device_ms * 1e3), round(s.gc_ms * 1e3), round(s.compile_ms * 1e3), 0,
            round(s.core_wait_ms * 10),
            int(s.compile_ms > 0), RECORDED * s.recorded | SKIPPED * s.skipped,
        )
        for s in steps
    )  # fmt: skip
    (folder / STEPS_FILE).write_bytes(MAGIC + header + records)
    lines, frames = [], {}
    for stack in STACKS.values():
        numbers = []
        for function, file, line, text in stack:
            key = (function, file, line)
            if key not in frames:
                frames[key] = len(frames)
                lines.append(["f", function, file, 1, line, text])
            numbers.append(frames[key])
        lines.append(["s", numbers])
    names = list(STACKS)
    samples = []
    for number, step in enumerate(steps):
        for name, ms in step.stacks.items():
            for _ in range(max(round(ms / 5), 1) if ms else 0):
                samples += [number, names.index(name), round(1e3 * ms / max(round(ms / 5), 1))]
    lines += [["t", samples], *extra]
    (folder / OBSERVED_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


# Stacks of a loader's worker: forked below the program's own frames.
_LOOP = [
    ("train", TRAIN, 29, "for batch in loader:"),
    ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 1, None),
]
WORKER = {
    "tokenize": [*_LOOP, ("__getitem__", "/home/me/data.py", 40, "return tokenize(text)"),
                 ("tokenize", "/home/me/data.py", 51, "for word in text:")],
    "collate": [*_LOOP, ("collate_fn", "/home/me/data.py", 88, "return pad(samples)")],
    "library": [*_LOOP, ("map_tensor", f"{TORCH}/utils/data/_utils/fetch.py", 5, None)],
    "idle": [*_LOOP, ("get", "/usr/lib/python3.11/multiprocessing/queues.py", 113, None)],
}  # fmt: skip


def write_loader(root: Path, rank: int, worker: int, looks, began_ns=None) -> None:
    """The file of a worker of the rank's loader that was seen so often in each of these stacks, 40 ms a look.

    looks: counts by name of a stack, or pairs of them, in order of time from began_ns on.
    """
    lines, samples, frames = [] if began_ns is None else [["w", began_ns]], [], 0
    for number, (name, count) in enumerate(looks.items() if isinstance(looks, dict) else looks):
        for function, file, line, text in WORKER[name]:
            lines.append(["f", function, file, 1, line, text])
        lines.append(["s", list(range(frames, frames + len(WORKER[name])))])
        frames += len(WORKER[name])
        samples += [0, number, 40_000] * count
    path = root / f"rank_{rank}" / loader_file(worker, 100 + worker)
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, ["t", samples]]))


def write_machine(root: Path, lines, host="node1") -> None:
    """machine.<host>.jsonl with these lines."""
    (root / machine_file(host)).write_text("".join(json.dumps(line) + "\n" for line in lines))
