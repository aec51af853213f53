"""What today's monitor finds in run folders of jobs that it watched before: their files grow again, second by second.

    python -m benchmarks.live.replay FOLDER    # of NAME/ and NAME.truth.json, by benchmarks.live.gpu or jobs

Looks at hosts are those that the ranks took then.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.live.generated import Files
from benchmarks.live.jobs import HEALTHY, Outcome, judged
from traceops.core.live_pulses import EVENTS_FILE, HEAD, MAGIC, PULSES_FILE, SIZE, Pulse, place_of, read_pulses
from traceops.core.rank_files import MAGIC as STEPS_MAGIC
from traceops.core.rank_files import OBSERVED_FILE, PREFIX, RECORD, STEPS_FILE, SUFFIX, split_log
from traceops.live.findings import Detection
from traceops.live.job import Job
from traceops.live.stream import RankReader, rank_folders


class _Rank:
    """The files of one rank, of which those parts are there that it had written by then."""

    def __init__(self, source: Path, target: Path) -> None:
        raw = (source / STEPS_FILE).read_bytes()
        _, self._records = split_log(raw)
        self.pulses = read_pulses(source / PULSES_FILE)
        self._lines = (source / OBSERVED_FILE).read_text().splitlines(keepends=True)
        self._wrote = self._pulse = self._line = 0
        self._target = target
        target.mkdir(parents=True)
        (target / STEPS_FILE).write_bytes(raw[: raw.index(b"\n", len(STEPS_MAGIC)) + 1])
        (target / OBSERVED_FILE).write_bytes(b"")

    def write(self, now_ns: int) -> None:
        """What was there at that time."""
        new = [pulse for pulse in self.pulses[self._pulse :] if pulse.time_ns <= now_ns]
        if not new:
            return
        upto = new[-1].steps * RECORD.size
        with (self._target / STEPS_FILE).open("ab") as file:
            file.write(self._records[self._wrote : upto])
        self._wrote = max(upto, self._wrote)
        with (self._target / OBSERVED_FILE).open("a") as text:
            while self._line < len(self._lines) and _step(self._lines[self._line]) <= new[-1].steps:
                text.write(self._lines[self._line])
                self._line += 1
        self._write_pulses(new)

    def _write_pulses(self, new: list[Pulse]) -> None:
        path = self._target / PULSES_FILE
        with path.open("r+b" if path.exists() else "w+b") as file:
            for pulse in new:
                file.seek(place_of(pulse.number))
                file.write(pulse.pack())
            self._pulse += len(new)
            file.seek(0)
            file.write(HEAD.pack(MAGIC, 0, 1, new[-1].number + 1).ljust(SIZE, b"\0"))


def _step(line: str) -> int:
    """The latest step of samples; other lines come when they come."""
    told = json.loads(line)
    return max(told[1][::3], default=0) if told[0] == "t" else 0


def replay(source: Path, out: Path, host_bytes: int = Files.host_bytes) -> list[Detection]:
    """What is found, by a monitor that looks once per second. host_bytes: memory of a host."""
    ranks = {number: _Rank(folder, out / folder.name) for number, folder in rank_folders(source).items()}
    times = [pulse.time_ns for rank in ranks.values() for pulse in rank.pulses]
    machines = {path.name: path.read_text().splitlines(keepends=True) for path in source.glob(f"{PREFIX}*{SUFFIX}")}
    files = Files(out)
    files.host_bytes = host_bytes
    job, found = Job(files), list[Detection]()
    readers = [RankReader(out / folder.name, number) for number, folder in rank_folders(source).items()]
    for now_ns in range(min(times), max(times) + 2_000_000_000, 1_000_000_000):
        for rank in ranks.values():
            rank.write(now_ns)
        for name, lines in machines.items():
            there = [line for line in lines if not isinstance(ms := json.loads(line)[1], int) or ms <= now_ns / 1e6]
            (out / name).write_text("".join(there))
        files.machines.look()
        found += job.take([look for reader in readers if (look := reader.look()) is not None], now_ns)
    return found


def main() -> None:
    for truth in sorted(Path(sys.argv[1]).glob("*.truth.json")):
        name = truth.name.removesuffix(".truth.json")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / name
            found = replay(truth.parent / name, out)
            (out / EVENTS_FILE).write_text("".join(f"{json.dumps(one.document())}\n" for one in found))
            told = json.loads(truth.read_text())
            outcome = judged(Outcome(name, told["fault"], told["rank"], 0.0), out, told)
        verdict = f"pages {outcome.wrong}" if outcome.fault in HEALTHY else f"right {outcome.right}"
        print(f"{name} rank {outcome.rank}: seen {outcome.seen_s}, named {outcome.named_s}, {verdict}")
        for message in outcome.messages:
            print(f"    {message}")


if __name__ == "__main__":
    main()
