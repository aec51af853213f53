"""Files of a run that its ranks would have written, a second of the job's own time at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from traceops.core.live_pulses import HEAD, KINDS, MAGIC, PULSES_FILE, SIZE, Pulse, new_file, place_of
from traceops.core.rank_files import MAGIC as STEPS_MAGIC
from traceops.core.rank_files import OBSERVED_FILE, RECORD, STEPS_FILE, machine_file
from traceops.live.findings import Detection
from traceops.live.job import Job
from traceops.live.machines import MachineReader, Machines
from traceops.live.stream import LineReader, RankReader

START_NS = 1_800_000_000_000_000_000
LINES = {"own": "batch = prepare(batch)", "input": "for batch in loader:", "optimizer": "optimizer.step()",
         "backward": "loss.backward()", "waiting": "loss.item()", "checkpoint": "torch.save(state, path)",
         "evaluation": "model(batch)", "compiling": "model(batch)", "fault": "check_again(batch)"}  # fmt: skip
_NAMES = (*KINDS, "fault")
# Frames of libraries that the line of that name calls.
_CALLED = {
    "input": ("__next__", "/torch/utils/data/dataloader.py"), "optimizer": ("step", "/torch/optim/sgd.py"),
    "backward": ("_engine_run_backward", "/torch/autograd/graph.py"), "checkpoint": ("save", "/torch/serialization.py"),
    "evaluation": ("evaluate", "/lib/loop.py"), "compiling": ("compile", "/torch/_dynamo/convert_frame.py"),
}  # fmt: skip


@dataclass
class StepParts:
    """What one rank's host does in one step, ms by kind; 'fault' is a line that was not there before."""

    own: float = 20.0
    input: float = 1.0
    optimizer: float = 2.0
    backward: float = 10.0
    checkpoint: float = 0.0
    evaluation: float = 0.0
    fault: float = 0.0
    gc: float = 0.0
    compile: float = 0.0
    cores: float = 0.0  # of all that, waiting for a core

    @property
    def busy(self) -> float:
        """Without what it waits for others."""
        return self.own + self.input + self.optimizer + self.checkpoint + self.evaluation + self.fault + self.gc


@dataclass
class GeneratedRank:
    """Writes the files of one rank. looks_s: looks at its host per second."""

    folder: Path
    rank: int
    random: Random
    looks_s: float = 4.0
    step: int = 0
    resident: int = 1 << 30
    looks: int = 0
    seen: list[int] = field(default_factory=lambda: [0] * len(KINDS))
    ran_ms: float = 0.0
    wait_ms: float = 0.0
    _pulses: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        header = {"rank": self.rank, "started_ns": START_NS, "first": 0, "core_waits": True}
        (self.folder / STEPS_FILE).write_bytes(STEPS_MAGIC + json.dumps(header).encode() + b"\n")
        (self.folder / PULSES_FILE).write_bytes(new_file(self.rank))
        frames: list[list[object]] = [
            ["f", name, "/job/train.py", 1, 10 + at, LINES[name]] for at, name in enumerate(_NAMES)
        ]
        frames += [["f", *called, 1, 1, None] for called in _CALLED.values()]
        called = {name: [len(_NAMES) + at] for at, name in enumerate(_CALLED)}
        stacks: list[list[object]] = [["s", [at, *called.get(name, [])]] for at, name in enumerate(_NAMES)]
        self._append_lines([*frames, *stacks])
        self._steps: list[bytes] = []
        self._samples: list[int] = []

    def _append_lines(self, lines: list[list[object]]) -> None:
        with (self.folder / OBSERVED_FILE).open("a") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)

    def take(self, parts: StepParts, ms: float) -> None:
        """A step of so many ms: what the rank does not do itself it waits in backward."""
        self._steps.append(RECORD.pack(int(1000 * ms), 0, int(1000 * parts.gc), int(1000 * parts.compile), 0, 0, 0, 0))
        backward = max(ms - parts.busy - parts.compile, 0.0)
        weights = [
            {"own": parts.own + parts.gc, "backward": backward, "compiling": parts.compile}.get(
                name, getattr(parts, name, 0.0)
            )
            for name in _NAMES
        ]
        self.ran_ms += max(parts.busy - parts.cores, 0.0) * 0.9
        self.wait_ms += parts.cores
        wanted = self.looks_s * ms / 1000
        count = int(wanted) + (self.random.random() < wanted % 1)
        for at in self.random.choices(range(len(_NAMES)), weights, k=count):
            us = int(1e6 / self.looks_s * self.random.uniform(0.5, 1.5))
            self._samples += [self.step, at, us]
            self.seen[KINDS.index("own") if at == len(KINDS) else at] += us
            self.looks += 1
        self.step += 1

    def write(self, now_ns: int, begun_ns: int, *, ended: bool = False) -> None:
        """What there is by now."""
        with (self.folder / STEPS_FILE).open("ab") as file:
            file.write(b"".join(self._steps))
        if self._samples:
            self._append_lines([["t", self._samples]])
        self._steps, self._samples = [], []
        pulse = Pulse(
            self._pulses, now_ns, self.step, begun_ns, -1, 0, 0, 0, self.resident, 0, 0, 0, int(ended), self.looks,
            tuple(self.seen),
        )  # fmt: skip
        with (self.folder / PULSES_FILE).open("r+b") as file:
            file.seek(place_of(self._pulses))
            file.write(pulse.pack())
            self._pulses += 1
            file.seek(0)
            file.write(HEAD.pack(MAGIC, self.rank, 1, self._pulses).ljust(SIZE, b"\0"))


def write_host(out: Path, ranks: list[GeneratedRank], now_ns: int, others: Sequence[tuple[str, float]] = ()) -> None:
    """What the launcher sees of the host then."""
    ms = now_ns // 1_000_000
    lines: list[list[object]] = [
        ["r", ms, rank.rank, 100 + rank.rank, rank.ran_ms, rank.wait_ms, 0, 0, rank.ran_ms] for rank in ranks
    ]
    lines += [["p", ms, 900 + at, name, pct, 0] for at, (name, pct) in enumerate(others)]
    with (out / machine_file("host")).open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


class Files:
    """The sources of a generated job's monitor."""

    host_bytes = 64 << 30

    def __init__(self, out: Path) -> None:
        self.out, self.machines, self.closer_until = out, Machines(out), -1.0
        self.now_s = 0.0
        self._lines: dict[int, LineReader] = {}

    def lines(self, rank: int) -> LineReader:
        """Of one rank's host."""
        return self._lines.setdefault(rank, LineReader(self.out / f"rank_{rank}"))

    def machine(self, rank: int) -> MachineReader | None:
        """Of its host."""
        return self.machines.of(rank)

    def closer(self) -> None:
        """More looks for four seconds, as ranks do."""
        self.closer_until = self.now_s + 4.0


@dataclass
class Scene:
    """How a generated job goes. parts: of a rank, a time in s and a step, what that step holds; noise: of a step's
    time, as a standard deviation of its logarithm; exchange_ms: of each step, that all ranks wait for each other."""

    parts: Callable[[int, float, int], StepParts]
    ranks: int = 3
    seconds: int = 60
    noise: float = 0.03
    exchange_ms: Callable[[float], float] = lambda second: 0.0
    stops_s: float = 1e9
    resident: Callable[[int, float], int] = lambda rank, second: 1 << 30
    others: Callable[[float], Sequence[tuple[str, float]]] = lambda second: ()
    seed: int = 3


def played(out: Path, scene: Scene) -> tuple[list[Detection], Job]:
    """What is found in a job that goes so, by its monitor at each second."""
    random = Random(scene.seed)
    own = [GeneratedRank(out / f"rank_{rank}", rank, random) for rank in range(scene.ranks)]
    files = Files(out)
    job, found = Job(files), list[Detection]()
    readers = [RankReader(rank.folder, rank.rank) for rank in own]
    clock_ms = 0.0
    for second in range(scene.seconds):
        files.now_s = second
        while clock_ms < 1000 * (second + 1) and clock_ms < 1000 * scene.stops_s:
            at = clock_ms / 1000
            parts = [scene.parts(rank.rank, at, rank.step) for rank in own]
            longest = max(one.busy + one.compile for one in parts) + max(one.backward for one in parts)
            ms = (longest + scene.exchange_ms(at)) * random.lognormvariate(0, scene.noise)
            for rank, one in zip(own, parts, strict=True):
                rank.looks_s = 50.0 if at < files.closer_until else 2.5 if at > 20 else 20.0
                rank.take(one, ms)
            clock_ms += ms
        now_ns = START_NS + (second + 1) * 1_000_000_000
        for rank in own:
            rank.resident = scene.resident(rank.rank, second)
            rank.write(now_ns, START_NS + int(min(clock_ms, 1000 * (second + 1)) * 1e6))
        write_host(out, own, now_ns, scene.others(second))
        files.machines.look()
        found += job.take([look for reader in readers if (look := reader.look()) is not None], now_ns)
    return found, job
