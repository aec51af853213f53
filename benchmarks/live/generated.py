"""Files of a run that its ranks would have written, a second of the job's own time at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from traceops.core.live_pulses import HEAD, KINDS, MAGIC, PULSES_FILE, SIZE, Pulse, new_file, place_of
from traceops.core.rank_files import MAGIC as STEPS_MAGIC
from traceops.core.rank_files import OBSERVED_FILE, RECORD, STEPS_FILE, machine_file

START_NS = 1_800_000_000_000_000_000
LINES = {"own": "batch = prepare(batch)", "input": "for batch in loader:", "optimizer": "optimizer.step()",
         "backward": "loss.backward()", "waiting": "loss.item()", "checkpoint": "torch.save(state, path)",
         "evaluation": "model(batch)", "compiling": "model(batch)", "fault": "check_again(batch)"}  # fmt: skip
_NAMES = (*KINDS, "fault")


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
        stacks: list[list[object]] = [["s", [at]] for at in range(len(_NAMES))]
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
